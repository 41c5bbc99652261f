"""Commands beside a running server: the socket on which it answers them, and the store that they see through it. No command lives here."""
