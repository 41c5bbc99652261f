"""Deletion: retention by age, erasure on request, and compaction, because DuckDB files never shrink."""
