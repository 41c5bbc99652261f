"""Replay: history is scored again, from tables, Parquet or topics, into a file of its own."""
