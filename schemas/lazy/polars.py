"""polars as `pl`, loaded on first use: 50 MB and more."""

from typing import TYPE_CHECKING

from schemas.lazy.module import LazyModule

if TYPE_CHECKING:
    import polars as pl
else:
    pl = LazyModule("polars")

__all__ = ["pl"]
