"""Large libraries that load on first use, for example `from schemas.lazy import duckdb`.

Only this module and `schemas.lazy_numpy` import them, so no module may use them during its own import
(docs/decisions/0068-memory-at-rest.md). duckdb takes 27 MB and 0.1 s, and polars more than 50 MB, which `--help` and commands beside a
server save. deltalake is an extra. httpx2 takes 1.4 MB, which a server without outgoing requests saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.lazy_numpy import LazyModule

__all__ = ["deltalake", "duckdb", "httpx2", "pl"]

if TYPE_CHECKING:
    import deltalake
    import duckdb
    import httpx2
    import polars as pl
else:
    deltalake, duckdb, httpx2, pl = (LazyModule(name) for name in ("deltalake", "duckdb", "httpx2", "polars"))
