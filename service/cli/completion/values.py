"""Values of options and arguments for Typer's `autocompletion`: fixed words, and names of projects from the data.

A shell waits for them and prints no errors, so sources that cannot be read at once are left out, such as a database that a server
has, or a policy with an error.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from schemas.errors import DriftlineError


def completed(choices: Iterable[str]) -> Callable[[], list[str]]:
    """Return a completion by fixed words."""
    return lambda: list(choices)


def project_names(context: typer.Context) -> list[str]:
    """Return the sorted projects of the database, the policy and the tokens, as far as these can be read at once."""
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
    from service.setup.access.access import access_file  # noqa: PLC0415 - as above

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
