"""For programs of users: the client of a server."""
