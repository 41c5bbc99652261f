"""numpy as `np`, loaded on first use: 20 MB."""

from typing import TYPE_CHECKING

from schemas.lazy.module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

__all__ = ["np"]
