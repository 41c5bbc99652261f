"""Detection of records that the log already has, by identity and by content."""
