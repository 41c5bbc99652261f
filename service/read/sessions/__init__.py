"""A session as a document: everything that is known of it."""
