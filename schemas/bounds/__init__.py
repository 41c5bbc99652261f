"""Bounds of records beyond their types, for single records and for columns. No bytes, no topics."""
