"""Ending sessions: by hand, or because they fell idle. Either way it becomes a record before anything acts on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from analytics.queries import query_rows
from schemas.errors import InputError
from schemas.records import SessionClosed
from service.workspace import Workspace
from streams.admission import Accepted, Door


def _publish(workspace: Workspace, rows: Iterable[dict[str, Any]], reason: str) -> set[tuple[str, str]]:
    """Record that sessions ended, in each topic where they have records; answers the sessions, by connection and id."""
    accepted, now = Accepted(), workspace.now()
    door, closed = Door(workspace.redactor, now), set()
    for row in rows:
        record = SessionClosed(
            connection=row["connection"],
            project=row["project"],
            agent=row["agent"],
            session_id=row["session_id"],
            closed_at=row["closed_at"],
            ingested_at=now,
            reason=reason,
        )
        door.admit(accepted, row["topic"], [record], source=reason)
        closed.add((record.connection, record.session_id))
    workspace.runner.publish(accepted)
    return closed


def close_idle_sessions(workspace: Workspace) -> int:
    """Record the end of every session of which nothing was heard for longer than the session gap; answers how many."""
    seconds = workspace.policy.session_gap_minutes * 60
    rows = query_rows(workspace.store.cursor(), "idle_sessions", {"as_of": workspace.now(), "gap_seconds": seconds})
    closed, step = set(), workspace.settings.batch_records
    for start in range(0, len(rows), step):
        closed |= _publish(workspace, rows[start : start + step], "idle")
    return len(closed)


def finalize_session(workspace: Workspace, session_id: str, connection: str | None = None) -> int:
    """Record that a session ended and run the stages; answers in how many connections it was.

    InputError when no record of it is there.
    """
    values = {"session": session_id, "connection": connection, "as_of": workspace.now()}
    rows = query_rows(workspace.store.cursor(), "open_topics", values)
    if not rows:
        raise InputError(
            f"no record of a session {session_id!r}", hint="`driftline runs` lists the sessions that were diagnosed."
        )
    closed = _publish(workspace, rows, "explicit")
    workspace.runner.run()
    return len(closed)
