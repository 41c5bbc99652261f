"""Shell completion: the answer to a shell at each Tab, the values it offers, and the script for each shell.

A shell waits for the answer and prints no errors. So this module loads no command, and it skips sources that cannot be read
immediately, for example a database that a server has open, or a policy with an error.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import typer

from schemas.errors import DriftlineError


def completed(choices: Iterable[str]) -> Callable[[], list[str]]:
    """Return a completion function that offers fixed choices."""
    return lambda: list(choices)


def failure_types() -> list[str]:
    """Return the types of failures."""
    from audit.detectors.detectors import FAILURE_TYPES  # noqa: PLC0415 - only completing it needs the rules

    return list(FAILURE_TYPES)


def project_names(context: typer.Context) -> list[str]:
    """Return the sorted projects in the database, the policy and the token file, if these can be read immediately."""
    from service.setup.settings import load_settings  # noqa: PLC0415 - only completing a project needs it

    names: set[str] = set()
    files = {name: Path(context.params[name]).expanduser() for name in ("database", "policy") if context.params.get(name)}
    with contextlib.suppress(DriftlineError, ValueError):
        settings = load_settings(**files)
        names |= _read_tokens(settings.database) | _read_database(settings.database)
        if settings.policy is not None:
            names |= _read_policy(settings.policy)
    return sorted(names)


def _read_tokens(database: Path) -> set[str]:
    """Return the projects of connections and operators, reading the file without migrating it."""
    from service.setup.access import access_file  # noqa: PLC0415 - as above

    address = f"{access_file(database).resolve().as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as file:
        return {name for (name,) in file.execute("SELECT DISTINCT project FROM holders WHERE project IS NOT NULL")}
    return set()


def _read_policy(policy: Path) -> set[str]:
    from audit.policy import load_policy  # noqa: PLC0415 - as above

    with contextlib.suppress(DriftlineError):
        return set(load_policy(policy).projects)
    return set()


def _read_database(database: Path) -> set[str]:
    from analytics.queries import query_rows  # noqa: PLC0415 - as above
    from schemas.lazy import duckdb  # noqa: PLC0415 - as above

    with contextlib.suppress(duckdb.Error), duckdb.connect(str(database), read_only=True) as connection:
        return {row["project"] for row in query_rows(connection, "known_projects")}
    return set()


COMPLETE = "_complete"
"""The word that a shell's script puts before the typed words. The last typed word is to be completed."""
FILES = ":files"
"""The answer that makes the shell complete file names, if there is no other completion."""


def print_completions(command: Any, before: Sequence[str], last: str) -> None:
    """Print the completions of the last word, one per line, each followed by a tab and its description."""
    lines = [f"{word}\t{summary}\n" for word, summary in completions(command, before, last)]
    sys.stdout.write("".join(lines) or f"{FILES}\t\n")


def completions(command: Any, before: Sequence[str], last: str) -> list[tuple[str, str]]:
    """Return the words that begin with `last` and can follow the previous words, each with its description."""
    from typer._completion_classes import BashComplete  # noqa: PLC0415 - only completing needs it; Typer offers it by its own scripts alone

    name, equals, _ = last.partition("=")
    prefix = name + equals if equals and name.startswith("-") else ""
    # Bash splits --option=value into three words.
    items = BashComplete(command, {}, "driftline", "").get_completions([word for word in before if word != "="], last)
    return [(f"{prefix}{item.value}", " ".join((item.help or "").split())) for item in items]


class Shell(StrEnum):
    """Shells that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def script_of(shell: Shell) -> str:
    """Return the script for a shell."""
    return (resources.files("service.cli") / "shells" / f"driftline.{shell}").read_text(encoding="utf-8")
