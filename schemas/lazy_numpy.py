"""numpy as `np`, loaded on first use (20 MB), and the class for lazy modules.

It is separate from `schemas.lazy` because the rules may use numpy but no other large library.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "NDArray", "np"]  # NDArray exists only for type checkers


class LazyModule(ModuleType):
    """A stand-in for the module of the same name, which loads it on first use. Thread-safe; later look-ups cost nothing extra."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))  # later look-ups find the name directly
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")
