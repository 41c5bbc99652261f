"""Values that only the data knows: names of projects, from the database, the policy and the tokens.

A shell waits for them and prints nothing else, so whatever cannot be read at once is left out: a database that a server has, a
policy with an error.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import DriftlineError

PROJECTS = "projects"


class Completion(NamedTuple):
    """Completion of an option or an argument: by these words, or by a kind of what only the data knows."""

    words: tuple[str, ...] = ()
    kind: str = ""


def completed(words: Iterable[str] = (), kind: str = "") -> Callable[[], list[str]]:
    """Return what Typer takes as `autocompletion`. It is read when the table of commands is made, by `completion_of`."""
    said = Completion(tuple(words), kind)

    def complete() -> list[str]:
        return list(said.words)

    setattr(complete, _SAID, said)
    return complete


def completion_of(autocompletion: Callable[..., Any] | None) -> Completion | None:
    """Return what was said with `completed`; None if nothing was."""
    return getattr(autocompletion, _SAID, None)


_SAID = "completion"


def known_values(kind: str, given: Mapping[str, str]) -> list[str]:
    """Return the values of a kind, sorted; none for a kind that is not known. `given` are options that were typed before."""
    found = _KINDS.get(kind)
    return [] if found is None else sorted(found(given))


def _projects(given: Mapping[str, str]) -> set[str]:
    """Return the projects of the database, the policy and the tokens, as far as they can be read at once."""
    from service.setup.settings import load_settings  # noqa: PLC0415 - only completing a project needs it

    found: set[str] = set()
    with contextlib.suppress(DriftlineError, ValueError):
        chosen = {name: Path(given[option]).expanduser() for option, name in _FILES.items() if option in given}
        settings = load_settings(**chosen)
        for read, file in ((_of_tokens, settings.database), (_of_policy, settings.policy), (_of_database, settings.database)):
            if file is not None:
                found |= read(file)
    return found


_FILES = {"--db": "database", "--policy": "policy"}
"""Options that name a file, and the settings they replace."""


def _of_tokens(database: Path) -> set[str]:
    """Return the projects of connections and operators; the file is read as it is, and not brought up to date."""
    from service.setup.access.access import access_file  # noqa: PLC0415 - as above

    address = f"{access_file(database).resolve().as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as file:
        return {name for (name,) in file.execute("SELECT DISTINCT project FROM holders WHERE project IS NOT NULL")}
    return set()


def _of_policy(policy: Path) -> set[str]:
    from audit.policy.policy import load_policy  # noqa: PLC0415 - as above

    with contextlib.suppress(DriftlineError):
        return set(load_policy(policy).projects)
    return set()


def _of_database(database: Path) -> set[str]:
    from analytics.queries import query_rows  # noqa: PLC0415 - as above
    from schemas.lazy.duckdb import duckdb  # noqa: PLC0415 - as above

    with contextlib.suppress(duckdb.Error), duckdb.connect(str(database), read_only=True) as connection:
        return {row["project"] for row in query_rows(connection, "known_projects")}
    return set()


_KINDS: Mapping[str, Callable[[Mapping[str, str]], Iterable[str]]] = {PROJECTS: _projects}
