"""History as the source of a replay: tables, Parquet files or topics."""
