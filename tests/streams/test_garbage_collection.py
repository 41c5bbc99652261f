"""The garbage collector of a server: pauses stay short, and modules loaded late are frozen, too."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from streams.process import LoadedCode, collect_in_short_pauses


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the collector's settings after the test."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def collections(objects: int) -> int:
    """Create this number of lasting objects; return the number of young collections meanwhile."""
    before = gc.get_stats()[0]["collections"]
    cycles: list[list[int]] = [[] for _ in range(objects)]
    assert len(cycles) == objects
    return gc.get_stats()[0]["collections"] - before


def test_a_server_collects_few_objects_at_a_time() -> None:
    """Collecting 50,000 new objects, as on the command line, took up to 107 ms, during which no caller was answered."""
    gc.set_threshold(50_000)
    assert not collections(20_000)
    collect_in_short_pauses()
    assert collections(20_000) >= 15


def test_modules_loaded_late_are_frozen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars and numpy load with the first flush, after the freeze at startup."""
    asyncio.run(LoadedCode().run())  # so that no module of asyncio is loaded for the first time below
    task = LoadedCode()
    collect_in_short_pauses()
    late = [[number] for number in range(1_000)]
    frozen = gc.get_freeze_count()
    asyncio.run(task.run())
    assert gc.get_freeze_count() <= frozen

    monkeypatch.setitem(sys.modules, "loaded_late", ModuleType("loaded_late"))
    asyncio.run(task.run())
    assert gc.get_freeze_count() > frozen + len(late) // 2

    frozen_count = gc.get_freeze_count()
    survivors = [[number] for number in range(1_000)]
    asyncio.run(task.run())
    assert gc.get_freeze_count() <= frozen_count
    assert len(survivors) == len(late)
