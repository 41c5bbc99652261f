"""Selection of sessions to evaluate: finished ones that were named, or the newest of a tag or a project."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from analytics.queries import query_rows
from audit.anchors.names import is_reserved
from schemas.errors import InputError
from schemas.lazy.duckdb import duckdb

MOST = 10_000
"""Sessions that are evaluated at once, at most."""
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_ALL = 10 * MOST
_SHOWN = 100
"""Characters of a name that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The selection of finished sessions that are to be evaluated."""

    sessions: Sequence[str] = ()
    """Ids, alone or as connection/id. Naming sessions gets all of them, so `project` only tells equal ids apart."""
    tags: Sequence[str] = ()
    """One of them is enough: on an exchange of the session, or in `tags` of its session_start."""
    project: str | None = None
    is_confined: bool = False
    """True if nothing may be disclosed of other projects, because the caller may not see them."""
    since: datetime | None = None
    """Only sessions that ended then or later; event time."""
    until: datetime | None = None
    """Only sessions that ended before."""
    limit: int = 100
    """Most sessions, the newest first; those that are named are all taken."""


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """A session that can be evaluated."""

    connection: str
    project: str
    session_id: str
    ended_at: datetime
    """Event time of the end as it was recorded, UTC."""


def finished_sessions(cursor: duckdb.DuckDBPyConnection, wanted: Wanted) -> list[FinishedSession]:
    """The finished sessions that are wanted, the one that ended last first. A session is finished once its end is recorded.

    InputError for a named session that is not there, is not finished or is in several connections, and for other filters beside names.
    """
    if wanted.sessions and (wanted.tags or wanted.since or wanted.until):
        raise InputError("sessions are named and also chosen by tag or time", hint="Name sessions, or choose them; not both.")
    named = list(dict.fromkeys(wanted.sessions))
    if len(named) > MOST or wanted.limit > MOST:
        raise InputError(f"more than {MOST} sessions are chosen", hint="Evaluate them in parts, by tag, project or time.")
    values = {
        # What may be connection/id may be an id with a slash, too.
        "sessions": [part for name in named for part in (name, name.partition("/")[2]) if part] or None,
        "tags": list(wanted.tags) or None,
        "project": wanted.project,
        "since": wanted.since,
        "until": wanted.until,
        "limit": _ALL if named else wanted.limit,
    }
    found = [FinishedSession(**row) for row in query_rows(cursor, "evaluable_sessions", values)]
    if named:
        found = [one for one in found if one.session_id in named or _full(one) in named]
        _check_named(cursor, named, wanted, found)
    return found


def _check_named(
    cursor: duckdb.DuckDBPyConnection, named: Sequence[str], wanted: Wanted, found: Sequence[FinishedSession]
) -> None:
    """InputError for the first name that does not stand for exactly one session."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for one in found:
        by_name[one.session_id].append(_full(one))
        by_name[_full(one)].append(_full(one))
    for name in named:
        full = by_name.get(name, [])
        if not full:
            raise _why_not(cursor, name, wanted)
        if len(full) > 1:
            raise InputError(f"session {_shown(name)} is in several connections", hint=f"Name one: {', '.join(full)}.")


def _why_not(cursor: duckdb.DuckDBPyConnection, name: str, wanted: Wanted) -> InputError:
    """Return the error that says why a named session cannot be evaluated."""
    connection, _, session = name.partition("/")
    asked = [(None, name), (connection, session)]
    rows = [
        row
        for connection, session in asked
        for row in query_rows(cursor, "open_topics", {"sessions": [session], "connection": connection, "as_of": _LONG_AGO})
        if not wanted.is_confined or row["project"] == wanted.project
    ]
    projects = sorted({row["project"] for row in rows})
    if not rows:
        return InputError(f"there is no session {_shown(name)}", hint="`driftline runs` lists those that have ended.")
    if all(map(is_reserved, projects)):
        return InputError(f"session {_shown(name)} is a round of anchor judgements", hint="Anchors are not evaluated.")
    if wanted.project is not None and wanted.project not in projects:
        return InputError(
            f"session {_shown(name)} is not of project {_shown(wanted.project)}", hint=f"It is of {', '.join(projects)}."
        )
    hint = "End it with `driftline finalize`, or wait until it has been idle for the session gap."
    return InputError(f"session {_shown(name)} has not ended yet", hint=hint)


def _full(one: FinishedSession) -> str:
    return f"{one.connection}/{one.session_id}"


def _shown(name: str) -> str:
    return repr(name[:_SHOWN])
