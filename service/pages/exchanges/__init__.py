"""The page of an exchange, and the review queue."""
