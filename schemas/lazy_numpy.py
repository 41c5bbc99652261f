"""numpy as `np`, loaded on first use (20 MB), and how any large library is. Apart from `schemas.lazy`, because the rules may use numpy alone."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "NDArray", "np"]  # NDArray is there for type checkers only


class LazyModule(ModuleType):
    """Stands for the module of this name; loads it once, whichever thread is first, and is as quick as it afterwards."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))  # the next look-up finds the name without coming here
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")
