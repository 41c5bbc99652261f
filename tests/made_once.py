"""What is made once per test run, whichever of its workers needs it first."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_server import locked


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this name that all workers have in common, filled by `make`; whoever comes meanwhile waits."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".new")
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
