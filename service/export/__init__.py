"""Records and scores on their way out: Parquet files and OTLP."""
