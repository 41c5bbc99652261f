"""Benchmarks: each can be started."""

from __future__ import annotations

import importlib

import pytest

from analytics.queries import queries
from benchmarks.__main__ import FOUND
from benchmarks.bench_sql import PARAMETERS


@pytest.mark.parametrize("name", FOUND)
def test_every_benchmark_can_be_started(name: str) -> None:
    """Nothing imports a benchmark, so a module of the product that moved would only be missed when somebody measures."""
    assert callable(importlib.import_module(f"benchmarks.bench_{name}").main)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_benchmark_of_queries_gives_their_parameters(name: str) -> None:
    """A parameter that a query gets later would end the benchmark after it has filled its database for minutes."""
    assert set(queries()[name.partition(",")[0]].parameters) <= {"project", "score", *PARAMETERS[name]}
