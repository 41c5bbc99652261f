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


def list_projects(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, object]]:
    """Return the projects that the command prints as JSON."""
    capsys.readouterr()
    assert run(["projects", "--json", "--until", UNTIL, *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_worst_project_comes_first_with_its_change(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The person on call reads one line: the project, its state, what changed, and since when."""
    first, *other_rows = list_projects(capsys, "--db", str(database))

    assert first["health"] == "critical"
    assert first["reasons"] == ["open_incidents"]
    assert first["openIncidents"] == 1
    assert {"series", "name", "before", "after", "since"} <= set(first["change"])  # type: ignore[call-overload]
    assert [one["project"] for one in other_rows] == ["web", "new-agents"]
    assert [one["health"] for one in other_rows] == ["ok", "empty"]


def test_the_table_has_the_figures_of_the_json(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A project without data has dashes instead of figures."""
    assert run(["projects", "--until", UNTIL, "--db", str(database)]) == 0
    table_lines = capsys.readouterr().out.splitlines()

    assert "what changed" in table_lines[0]
    assert ["→" in line for line in table_lines[2:4]] == [True, True]
    assert "→" not in table_lines[4]


def test_projects_can_be_filtered_by_state(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts ask for critical projects; an unknown state is refused with the valid ones."""
    assert [one["project"] for one in list_projects(capsys, "--health", "ok", "--db", str(database))] == ["web"]
    assert list_projects(capsys, "--health", "warning", "--db", str(database)) == []
    assert run(["projects", "--health", "fine", "--db", str(database)]) == 2
    assert "must be one of critical, warning, unknown, ok, empty" in " ".join(capsys.readouterr().err.split())


def test_a_truncated_list_says_how_many_are_missing(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A silently truncated list looks complete."""
    capsys.readouterr()
    assert run(["projects", "--limit", "1", "--json", "--db", str(database)]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 1
    assert "there are more than 1" in output.err


def test_an_empty_database_says_what_to_do_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with only headings would look broken."""
    path = tmp_path / "empty.duckdb"
    Store(path).close()
    assert run(["projects", "--db", str(path)]) == 0
    assert "no projects yet. Import something first" in " ".join(capsys.readouterr().err.split())


def test_the_fleet_is_the_same_beside_a_running_server(
    children: Nursery, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that finds the database in use asks the server."""
    before = list_projects(capsys, "--db", str(database))
    home = Home(tmp_path)
    children.serve(home, "--judge", "none").serving()
    code, output = children.run(home, "projects", "--json", "--until", UNTIL)

    assert code == 0
    assert [json.loads(line) for line in output.splitlines()] == before
