"""The server's end of commands that run beside it."""
