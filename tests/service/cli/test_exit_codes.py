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
    """Return every command by its words, including hidden ones."""
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


EVERY = dict(commands(typer.main.get_command(application())))


@functools.cache
def functions(module: str) -> dict[str, ast.AST]:
    """Return the functions of a module by name, including nested ones."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def can_fail(module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> bool:
    """Return whether a function ends the command with `FAILED`, directly or through another function of the command line."""
    node = functions(module).get(name)
    if node is None or (module, name) in seen:
        return False
    seen |= {(module, name)}
    for called in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | methods(node):
        called_function = getattr(importlib.import_module(module), called, None)
        module_name = getattr(called_function, "__module__", module) if called_function is not None else module
        if called in ENDS and module_name == "service.cli.exit_codes":
            return True
        if module_name.startswith("service.cli.commands") and can_fail(module_name, called, seen):
            return True
    return False


def methods(node: ast.AST) -> set[str]:
    """Return the methods that a function calls, of classes of the same module, found by name."""
    return {one.func.attr for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)}


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"help", "worker"}))
def test_exit_code_1_is_documented_exactly_where_it_can_occur(name: str) -> None:
    """Build gates rely on it: an undocumented code is taken for an error."""
    function = inspect.unwrap(EVERY[name].callback)

    assert can_fail(function.__module__, function.__name__) == (failure_condition(EVERY[name].callback) is not None)


@pytest.mark.parametrize("name", [name for name, one in EVERY.items() if failure_condition(one.callback) is not None])
def test_the_help_documents_the_exit_codes(name: str) -> None:
    """Users look there first."""
    help_text = (
        CliRunner().invoke(application([name.split(maxsplit=1)[0]]), [*name.split(), "--help"], prog_name="driftline").output
    )
    plain = " ".join(help_text.replace("│", " ").split())

    assert f"Exit 1 if {failure_condition(EVERY[name].callback)}." in plain


def test_commands_exit_through_the_shared_codes_only() -> None:
    """A literal number would be a code that no table documents."""
    literal_exits = []
    for file in FOLDER.rglob("*.py"):
        name = file.relative_to(FOLDER.parent).as_posix()
        calls = [one for one in ast.walk(ast.parse(file.read_bytes())) if isinstance(one, ast.Call)]
        called_names = {ast.unparse(one.func) for one in calls}
        if name != "service/cli/exit_codes.py" and called_names & {"typer.Exit", "typer.confirm", "sys.exit"}:
            literal_exits.append(name)

    assert [name for name in literal_exits if not name.startswith("service/read/queries/") and "child" not in name] == []


def test_help_explains_every_exit_code(driftline: Command) -> None:
    """`driftline help exit-codes` is available offline."""
    code, out, _ = driftline("help", "exit-codes")

    assert code == 0
    assert all(str(int(one)) in out for one in ExitCode)
    assert set(MEANINGS) == set(ExitCode)


def test_declining_has_its_own_exit_code(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script sees that nothing was done and that it was no mistake; without a terminal it is an error."""
    assert driftline("import", "events", str(FOLDER.parent / "examples" / "session.json"))[0] == 0
    monkeypatch.setattr("typer.confirm", lambda *_args, **_options: False)
    assert driftline("erase", "--connection", "local")[0] == 1
    assert "decline" in str(failure_condition(EVERY["erase"].callback))
    monkeypatch.undo()


def test_without_a_terminal_the_error_names_the_option(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A build job has no keyboard."""
    database = str(tmp_path / "fleet.duckdb")
    assert run(["import", "events", str(FOLDER.parent / "examples" / "session.json"), "--db", database]) == 0
    result = CliRunner().invoke(application(["erase"]), ["erase", "--connection", "local", "--db", database], input="")
    del capfd

    assert "cannot ask for consent: the input has ended" in str(result.exception)
