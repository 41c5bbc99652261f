"""duckdb, loaded on first use: 27 MB and 0.1 s, which `--help` and commands beside a server do without."""

from typing import TYPE_CHECKING

from schemas.lazy.module import LazyModule

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = LazyModule("duckdb")

__all__ = ["duckdb"]
