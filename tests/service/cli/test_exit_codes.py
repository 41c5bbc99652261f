"""Exit codes: what is documented of each command is what it can return."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import service
from service.cli.exit_codes import MEANINGS, ExitCode, failure_condition
from service.cli.main import application, run

Command = Callable[..., tuple[int, str, str]]
ENDS = {"leave", "agree"}
"""What ends a command with `FAILED`: an answer of no, and a check that failed."""
FOLDER = Path(service.__file__).parent


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by the words that are typed, hidden ones, too."""
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


EVERY = dict(commands(typer.main.get_command(application())))


@functools.cache
def functions(module: str) -> dict[str, ast.AST]:
    """The functions of a module by name, nested ones, too."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def can_fail(module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> bool:
    """Whether a function calls what ends a command with `FAILED`, itself or by another function of the command line."""
    node = functions(module).get(name)
    if node is None or (module, name) in seen:
        return False
    seen |= {(module, name)}
    for called in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | methods(node):
        found = getattr(importlib.import_module(module), called, None)
        place = getattr(found, "__module__", module) if found is not None else module
        if called in ENDS and place == "service.cli.exit_codes":
            return True
        if place.startswith("service.cli.commands") and can_fail(place, called, seen):
            return True
    return False


def methods(node: ast.AST) -> set[str]:
    """The methods that a function calls: those of a class of the same module are found by their names."""
    return {one.func.attr for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)}


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"help", "worker"}))
def test_a_command_says_when_it_ends_with_1_exactly_if_it_can(name: str) -> None:
    """A gate in a build relies on it: a code that no page names is taken for an error."""
    written = inspect.unwrap(EVERY[name].callback)

    assert can_fail(written.__module__, written.__name__) == (failure_condition(EVERY[name].callback) is not None)


@pytest.mark.parametrize("name", [name for name, one in EVERY.items() if failure_condition(one.callback) is not None])
def test_its_help_says_so(name: str) -> None:
    """Where it is looked up first."""
    shown = (
        CliRunner().invoke(application([name.split(maxsplit=1)[0]]), [*name.split(), "--help"], prog_name="driftline").output
    )
    plain = " ".join(shown.replace("│", " ").split())

    assert f"Exit 1 if {failure_condition(EVERY[name].callback)}." in plain


def test_no_command_ends_by_itself() -> None:
    """A bare number somewhere is a code that is in no table."""
    found = []
    for file in FOLDER.rglob("*.py"):
        name = file.relative_to(FOLDER.parent).as_posix()
        calls = [one for one in ast.walk(ast.parse(file.read_bytes())) if isinstance(one, ast.Call)]
        named = {ast.unparse(one.func) for one in calls}
        if name != "service/cli/exit_codes.py" and named & {"typer.Exit", "typer.confirm", "sys.exit"}:
            found.append(name)

    assert [name for name in found if not name.startswith("service/read/queries/") and "child" not in name] == []


def test_every_code_is_explained_by_help(driftline: Command) -> None:
    """`driftline help exit-codes` is in reach where the reference is not."""
    code, out, _ = driftline("help", "exit-codes")

    assert code == 0
    assert all(str(int(one)) in out for one in ExitCode)
    assert set(MEANINGS) == set(ExitCode)


def test_declining_is_a_code_of_its_own_kind(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script sees that nothing was done, and that it was nobody's mistake; without anybody to ask it is an error."""
    assert driftline("import", "events", str(FOLDER.parent / "examples" / "session.json"))[0] == 0
    monkeypatch.setattr("typer.confirm", lambda *_args, **_options: False)
    assert driftline("erase", "--connection", "local")[0] == 1
    assert "decline" in str(failure_condition(EVERY["erase"].callback))
    monkeypatch.undo()


def test_without_an_answer_it_is_an_error_that_names_the_option(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A job in a build has no keyboard."""
    database = str(tmp_path / "fleet.duckdb")
    assert run(["import", "events", str(FOLDER.parent / "examples" / "session.json"), "--db", database]) == 0
    result = CliRunner().invoke(application(["erase"]), ["erase", "--connection", "local", "--db", database], input="")
    del capfd

    assert "cannot ask for consent: the input has ended" in str(result.exception)
