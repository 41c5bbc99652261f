"""A command beside a running server: the socket, and the parts of a workspace that the server stands in for."""
