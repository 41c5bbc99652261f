"""DuckDB: tables derived from the schemas, the store, and one named query per file."""
