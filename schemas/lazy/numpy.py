"""numpy as `np`, loaded on first use: 20 MB."""

from typing import TYPE_CHECKING

from schemas.lazy.module import LazyModule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

__all__ = ["NDArray", "np"]  # the type is there for type checkers only
