"""Known identities: detection of records that the log already has, by identity and by content."""
