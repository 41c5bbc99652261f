"""A module that loads when one of its names is first used."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for the module of this name; loads it once, whichever thread is first, and is as quick as it afterwards."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))  # the next look-up finds the name without coming here
        return getattr(module, name)
