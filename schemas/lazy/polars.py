"""polars as `pl`, loaded on first use: 60 MB."""

from typing import TYPE_CHECKING

from schemas.lazy.module import LazyModule

if TYPE_CHECKING:
    import polars as pl
else:
    pl = LazyModule("polars")

__all__ = ["pl"]
