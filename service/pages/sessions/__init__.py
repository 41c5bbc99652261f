"""The page of a session, and the redirect to it from an id."""
