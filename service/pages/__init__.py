"""The pages: HTML made on the server. Scripts only refresh it and send decisions."""
