"""The pages: what the server knows, for people. Each is whole HTML made here; scripts only keep it fresh and send what people decide."""
