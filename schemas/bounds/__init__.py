"""What a record may hold beyond its types, for single records and for columns. No bytes, no topics."""
