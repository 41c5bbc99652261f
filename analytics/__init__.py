"""DuckDB: tables derived from the schemas, the store, and one query a file."""
