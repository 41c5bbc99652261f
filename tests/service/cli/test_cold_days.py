"""Commands say what of their period is in the lake only."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders import exchange, score
from support.clocks import NOW
from support.lakes import leave_to_lake
from support.watch_histories import put

from analytics.store.store import Store
from service.mcp.tools import Rights, Tools
from service.setup.settings import Settings

Command = Callable[..., tuple[int, str, str]]
NOTE = f"2 exchanges from before {(NOW - timedelta(days=3)).date().isoformat()} (UTC) are in the lake only"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with an exchange of the last day, and two older ones in the lake."""
    path = tmp_path_factory.mktemp("cooled") / "d.duckdb"
    times = {"a": NOW - timedelta(days=8), "b": NOW - timedelta(days=7), "c": NOW - timedelta(hours=1)}
    with Store(path) as store:
        put(store, "exchanges", [exchange(name, 1, occurred_at=at, ingested_at=at) for name, at in times.items()])
        put(store, "scores", [score(name, 1, exchange_at=at) for name, at in times.items()])
        leave_to_lake(path.parent / "lake", store, NOW, days=3)
    return path


@pytest.mark.parametrize("command", ["scores", "sessions list", "costs --agents", "runs --version 7", "wrap-quality"])
def test_a_list_notes_what_it_leaves_out(driftline: Command, database: Path, command: str) -> None:
    """The note is on standard error, so that a program still reads the rows."""
    since, options = ["--since", (NOW - timedelta(days=14)).isoformat()], [*command.split(), "--db", str(database), "--json"]
    code, out, err = driftline(*options, *since)
    assert code == 0, err
    assert all(json.loads(line) for line in out.splitlines())
    assert err.count(NOTE) == 1
    _, _, err = driftline(*options, "--since", (NOW - timedelta(hours=2)).isoformat())
    assert "in the lake only" not in err


def test_a_list_of_sums_has_no_note(driftline: Command, database: Path) -> None:
    """Diagnoses of runs stay in the database."""
    assert "in the lake only" not in driftline("runs", "--db", str(database))[2]


def test_an_assistant_reads_what_is_left_out(database: Path) -> None:
    """It would conclude that nothing happened before."""
    tools = Tools(Settings(database=database), Rights)
    assert NOTE in tools.list_exchanges()
    assert NOTE in tools.list_sessions()
    assert NOTE not in tools.list_exchanges(since=(NOW - timedelta(hours=2)).isoformat())
