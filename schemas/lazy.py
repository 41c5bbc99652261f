"""Large libraries that load when they are first used: `from schemas.lazy import duckdb`, others in the same way.

Only this module and `schemas.lazy_numpy` import them, so nothing may use them while it is itself imported
(docs/decisions/0068-memory-at-rest.md). duckdb takes 27 MB and 0.1 s, polars 50 MB and more: `--help` and commands beside a server do
without. httpx2 takes 1.4 MB, which a server that posts nothing does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.lazy_numpy import LazyModule

__all__ = ["duckdb", "httpx2", "pl"]

if TYPE_CHECKING:
    import duckdb
    import httpx2
    import polars as pl
else:
    duckdb, httpx2, pl = (LazyModule(name) for name in ("duckdb", "httpx2", "polars"))
