"""The DuckDB file: connection, lock, tables, transactions and the store's internal tables. Deletion is in `analytics.deletion`."""
