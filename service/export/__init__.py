"""Exports: Parquet files, OTLP and backups."""
