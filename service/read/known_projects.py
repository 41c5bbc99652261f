"""Known projects: projects with stored records, and projects named by the policy, a connection or an operator.

A misspelt name must not look like a project in which all is well, so commands, endpoints and pages refuse unknown projects and name
the nearest known one.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from analytics.queries import query_rows
from audit.anchors import is_reserved
from schemas.errors import InputError
from schemas.lazy import duckdb
from service.setup.access import AccessStore, access_file
from service.setup.workspace import Workspace
from service.text.formats import plain

if TYPE_CHECKING:
    from audit.policy import Policy

NAMED = 10
"""Maximum number of projects listed in a message."""
IMPORT_FIRST = "Import something first, or start a server: driftline import --help."
"""The advice for an empty database."""


def is_known(cursor: duckdb.DuckDBPyConnection, project: str, named: Collection[str]) -> bool:
    """Return whether a project is known; `named` are the projects of the policy and of tokens, which are checked first.

    Names reserved for anchors count as known: actions that are not allowed for them report that themselves.
    """
    return project in named or is_reserved(project) or bool(query_rows(cursor, "known_project", {"project": project}))


def known_projects(cursor: duckdb.DuckDBPyConnection, named: Iterable[str]) -> list[str]:
    """Return every known project by name; `named` are the projects of the policy and of tokens."""
    stored = {row["project"] for row in query_rows(cursor, "known_projects")}
    return sorted(stored.union(named))


def named_projects(policy: Policy, access: AccessStore | None) -> set[str]:
    """Return the projects that the policy, a connection or an operator names."""
    return {*policy.projects, *(access.projects() if access is not None else ())}


def nearest(project: str, projects: Sequence[str]) -> str:
    """Return `did you mean support?`, or the list of known projects if none is near; empty without known projects."""
    near = difflib.get_close_matches(project, projects, n=1)
    if near:
        return f"did you mean {near[0]}?"
    more = f" and {len(projects) - NAMED} more" if len(projects) > NAMED else ""
    return f"there are {', '.join(projects[:NAMED])}{more}" if projects else ""


def unknown_project(project: str, projects: Sequence[str], *, place: str = "--project") -> InputError:
    """Return the error for an unknown project; `place` is the option or argument that names it."""
    message = f"{place}: there is no project {plain(project, 64)!r}"
    if not projects:
        return InputError(f"{message}: the database is empty", hint=IMPORT_FIRST)
    suggestion = nearest(project, projects)
    return InputError(message, hint=f"{suggestion[0].upper()}{suggestion[1:]}{'' if suggestion.endswith('?') else '.'}")


def require_known(workspace: Workspace, project: str | None, *, place: str = "--project") -> None:
    """Raise an InputError that names the nearest project if this one is unknown; None stands for all projects."""
    if project is None:
        return
    file = access_file(workspace.settings.database)
    with contextlib.ExitStack() as stack:
        cursor = stack.enter_context(contextlib.closing(workspace.store.cursor()))
        access = stack.enter_context(AccessStore(file, workspace.now)) if file.exists() else None
        named = named_projects(workspace.policy, access)
        if not is_known(cursor, project, named):
            raise unknown_project(project, known_projects(cursor, named), place=place)
