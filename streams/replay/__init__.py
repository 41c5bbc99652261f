"""Replay: scoring history again, from tables, Parquet or topics, into a file of its own."""
