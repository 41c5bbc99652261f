"""Answers say what of their period is in the lake only."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import exchange, score
from support.lakes import leave_to_lake
from support.watch_histories import put

from analytics.store.store import Store

OPS = "/api/audit/ops"
PERIODICAL = ["/api/audit/costs/agents", *(f"{OPS}/{name}" for name in ("costs/agents", "scores", "anomalies", "sessions"))]
ENDLESS = [f"{OPS}/{name}" for name in ("summary", "wrap-quality")]


@pytest.fixture(autouse=True)
def stored(store: Store) -> None:
    """Store two exchanges of last week and one of today."""
    times = {"a": NOW - timedelta(days=8), "b": NOW - timedelta(days=7), "c": NOW - timedelta(hours=1)}
    put(store, "exchanges", [exchange(name, 1, occurred_at=at, ingested_at=at) for name, at in times.items()])
    put(store, "scores", [score(name, 1, exchange_at=at) for name, at in times.items()])


@pytest.mark.parametrize("path", [*PERIODICAL, *ENDLESS])
def test_an_answer_counts_what_it_leaves_out(path: str, *, store: Store, call: Call, tokens: Tokens, tmp_path: Path) -> None:
    """A sum over a part of its period would look like the sum of all of it."""
    assert call("GET", path, tokens.root).json()["coldDays"] is None
    leave_to_lake(tmp_path / "lake", store, NOW, days=3)
    expected = {"until": (NOW - timedelta(days=3)).date().isoformat(), "exchanges": 2}
    assert call("GET", path, tokens.root).json()["coldDays"] == expected


@pytest.mark.parametrize("path", PERIODICAL)
def test_only_the_period_counts(path: str, *, store: Store, call: Call, tokens: Tokens, tmp_path: Path) -> None:
    """Nothing is missing from an answer about hot days."""
    leave_to_lake(tmp_path / "lake", store, NOW, days=3)
    day, hour = (NOW - timedelta(days=8)).isoformat(), (NOW - timedelta(hours=2)).isoformat()
    until = (NOW - timedelta(days=7, hours=12)).isoformat()
    assert call("GET", path, tokens.root, params={"from": hour}).json()["coldDays"] is None
    assert call("GET", path, tokens.root, params={"from": day, "to": until}).json()["coldDays"]["exchanges"] == 1
