"""The fleet as documents: what changed about each project, for its page and the API."""
