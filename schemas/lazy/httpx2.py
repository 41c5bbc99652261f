"""httpx2, loaded on first use: a server that posts nothing does without its 1.4 MB."""

from typing import TYPE_CHECKING

from schemas.lazy.module import LazyModule

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = LazyModule("httpx2")

__all__ = ["httpx2"]
