"""The pages: HTML rendered on the server. Scripts only refresh it and send decisions."""
