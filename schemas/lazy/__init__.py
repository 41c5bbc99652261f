"""Large libraries that load when they are first used: `from schemas.lazy.duckdb import duckdb`, others in the same way.

Only the modules in here import them, so nothing may use them while it is itself imported (docs/decisions/0068-memory-at-rest.md).
"""
