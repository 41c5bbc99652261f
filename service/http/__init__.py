"""The HTTP API: requests in, from known callers, and their answers."""
