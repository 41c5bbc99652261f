"""The DuckDB file: connection, lock, tables, transactions and what the store keeps for itself. Rows leave through deletion, next door."""
