"""Known identities: which records the log has already, told by identity and by content."""
