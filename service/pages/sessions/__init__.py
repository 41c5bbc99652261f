"""The page of a session, and the way from its id to it."""
