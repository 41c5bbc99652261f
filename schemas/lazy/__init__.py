"""Large libraries that load when they are first used: `from schemas.lazy.polars import pl`, `from schemas.lazy.numpy import np`.

Only the modules in here import them, so nothing may use them while it is itself imported (docs/decisions/0068-memory-at-rest.md).
"""
