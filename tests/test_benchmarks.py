"""Benchmarks: each can be started."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.__main__ import FOUND


@pytest.mark.parametrize("name", FOUND)
def test_every_benchmark_can_be_started(name: str) -> None:
    """Nothing imports a benchmark, so a module of the product that moved would only be missed when somebody measures."""
    assert callable(importlib.import_module(f"benchmarks.bench_{name}").main)
