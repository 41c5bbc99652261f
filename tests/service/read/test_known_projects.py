"""Projects that are not known: refused by every command that asks for one, with the nearest name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import typer

from analytics.store.store import Store
from service.cli.main import application, run
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now

Command = Callable[..., tuple[int, str, str]]
SESSION = '{"session_id": "s1", "event": "tool_call", "tool": "exec", "timestamp": "2026-10-01T09:00:00Z"}\n'
NAMES = ("connections add", "operators add", "import ")
"""How commands begin that name a project: it need not be known."""
ARGUMENTS = {
    "export": ["out", "--by", "project,day"],
    "lake fetch": ["--since", "7d"],
    "rejudge": ["--dry-run"],
    "review queue": ["polite", "{}"],
    "sql": ["runs"],
}
"""The arguments of commands that take more than those without which they cannot be called."""
ELSEWHERE = {
    "compare": "test_comparing",
    "evaluate": "test_evaluating_command",
    "judges test": "cli/test_judges",
    "replay": "streams/replay/test_refusals",
}
"""Commands that need no database, or more than one with events: the tests that have it."""


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by the words that are typed."""
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def required_arguments(command: Any) -> list[str]:
    """A value for each argument without which a command cannot be called."""
    return ["1" for one in command.params if one.required and one.param_type_name == "argument"]


ASKING = {
    name: ARGUMENTS.get(name, required_arguments(command))
    for name, command in commands(typer.main.get_command(application()))
    if name not in ELSEWHERE and not name.startswith(NAMES) and any("--project" in one.opts for one in command.params)
}
"""Every other command with --project, and its arguments."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one session of the project support. Importing takes longer than every test of this file."""
    folder = tmp_path_factory.mktemp("imported")
    events, database = folder / "events.jsonl", folder / "driftline.duckdb"
    events.write_text(SESSION)
    assert run(["import", "events", str(events), "--project", "support", "--db", str(database)]) == 0
    return database


@pytest.fixture
def filled(imported: Path, tmp_path: Path) -> Path:
    """The database of a folder with one session of the project support."""
    return Path(shutil.copy(imported, tmp_path))


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("command", ASKING)
def test_a_misspelt_project_is_refused_with_the_nearest_name(driftline: Command, command: str) -> None:
    """An empty result for a misspelt name would look like a project without runs."""
    code, out, err = driftline(*command.split(), *ASKING[command], "--project", "suport")
    assert code == 2
    assert out == ""
    assert err.startswith("error: --project: ")
    assert "'suport'" in err
    assert "Did you mean support?" in err


def test_without_a_near_name_all_names_are_listed(driftline: Command, filled: Path) -> None:
    """Ten names are enough to show the naming scheme."""
    assert "There are support.\n" in driftline("runs", "--project", "ops")[2]
    with AccessStore(access_file(filled), utc_now) as access:
        for number in range(11):
            access.add(Holder("connection", f"c{number}", f"team-{number:02}"))
    assert "There are support, team-00" in driftline("runs", "--project", "ops")[2]
    assert "team-08 and 2 more.\n" in driftline("runs", "--project", "ops")[2]


def test_an_empty_database_is_reported_as_empty(driftline: Command, tmp_path: Path) -> None:
    """No name would be valid in an empty database."""
    Store(tmp_path / "driftline.duckdb").close()
    code, _, err = driftline("scores", "--project", "support")
    assert code == 2
    assert err.startswith("error: --project: ")
    assert "the database is empty" in err


@pytest.mark.parametrize("kind", ["connection", "operator", "policy"])
def test_a_project_of_a_token_or_the_policy_is_known(
    driftline: Command,
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Literal["connection", "operator", "policy"],
) -> None:
    """A project is set up before its first session ends."""
    if kind == "policy":
        (tmp_path / "policy.yaml").write_text("version: 1\nprojects: {checkout: {enabled: true}}\n")
        monkeypatch.setenv("DRIFTLINE_POLICY", str(tmp_path / "policy.yaml"))
    else:
        with AccessStore(access_file(filled), utc_now) as access:
            access.add(Holder(kind, "north", "checkout"))
    code, _, err = driftline("runs", "--project", "checkout")
    assert code == 0
    assert "no runs of project checkout yet" in err


@pytest.mark.usefixtures("filled")
def test_the_banner_of_a_new_project_has_a_note(driftline: Command) -> None:
    """It is printed before the first record, so the name may be new or misspelt."""
    code, out, err = driftline("banner", "suport")
    assert code == 0
    assert "Open incidents: 0" in out
    assert err.startswith("note: PROJECT: ")
    assert "'suport'. Did you mean support?" in err
    assert driftline("banner", "support")[2] == ""
