"""`driftline projects`: the fleet from the command line, the worst first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Home, Nursery, nursery
from support.watch_histories import fallen, history, put, steady

from analytics.store.store import Store
from service.cli.main import run
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now

AS_OF = "2026-11-01T12:00:00Z"
UNTIL = "2026-11-01"


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Processes of ours, which end with the module."""
    with nursery() as opened:
        yield opened


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A project that fell and was checked, one that did not, and one that only has a connection."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        put(store, "scores", [*history(fallen(6), 40), *history(steady, 40, project="web")])
    with AccessStore(access_file(path), utc_now) as access:
        access.add(Holder("connection", "north", "new-agents"))
    assert run(["check-drift", "--as-of", AS_OF, "--db", str(path)]) <= 1
    return path


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, object]]:
    """What the command prints as JSON."""
    capsys.readouterr()
    assert run(["projects", "--json", "--until", UNTIL, *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_worst_project_comes_first_with_what_changed(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who is on call reads one line: which project, how bad, what moved from where to where, and since when."""
    first, *others = listed(capsys, "--db", str(database))

    assert first["health"] == "critical"
    assert first["reasons"] == ["open_incidents"]
    assert first["openIncidents"] == 1
    assert {"series", "name", "before", "after", "since"} <= set(first["change"])  # type: ignore[call-overload]
    assert [one["project"] for one in others] == ["web", "new-agents"]
    assert [one["health"] for one in others] == ["ok", "empty"]


def test_the_table_names_what_the_json_does(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are of the same rows; a project of which nothing is known has dashes and no made-up figures."""
    assert run(["projects", "--until", UNTIL, "--db", str(database)]) == 0
    shown = capsys.readouterr().out.splitlines()

    assert "what changed" in shown[0]
    assert ["→" in line for line in shown[2:4]] == [True, True]
    assert "→" not in shown[4]


def test_only_projects_in_one_state_are_listed(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a script that asks whether anything is critical; a state that there is not is refused with those that there are."""
    assert [one["project"] for one in listed(capsys, "--health", "ok", "--db", str(database))] == ["web"]
    assert listed(capsys, "--health", "warning", "--db", str(database)) == []
    assert run(["projects", "--health", "fine", "--db", str(database)]) == 2
    assert "must be one of critical, warning, unknown, ok, empty" in " ".join(capsys.readouterr().err.split())


def test_more_projects_than_asked_for_are_counted_out(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list that is cut says so."""
    capsys.readouterr()
    assert run(["projects", "--limit", "1", "--json", "--db", str(database)]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "there are more than 1" in said.err


def test_an_empty_database_says_what_to_do_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No table with a head alone."""
    path = tmp_path / "empty.duckdb"
    Store(path).close()
    assert run(["projects", "--db", str(path)]) == 0
    assert "no projects yet. Import something first" in " ".join(capsys.readouterr().err.split())


def test_the_fleet_is_the_same_beside_a_running_server(
    children: Nursery, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that finds the database in use asks the process that has it."""
    before = listed(capsys, "--db", str(database))
    home = Home(tmp_path)
    children.serve(home, "--judge", "none").serving()
    code, said = children.run(home, "projects", "--json", "--until", UNTIL)

    assert code == 0
    assert [json.loads(line) for line in said.splitlines()] == before
