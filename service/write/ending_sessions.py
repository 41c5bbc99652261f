"""Ending the sessions of a workspace: manually, or because they are idle."""

from __future__ import annotations

from analytics.queries import query_rows
from schemas.errors import InputError
from service.setup.workspace import Workspace
from streams.upkeep.closing import EXPLICIT, IDLE, closings, sessions_of


def close_idle_sessions(workspace: Workspace) -> int:
    """Record the end of every session that has been idle for longer than the session gap; return their number."""
    seconds = workspace.policy.session_gap_minutes * 60
    values = {"as_of": workspace.now(), "gap_seconds": seconds, "heard_before": None, "limit": None}
    rows = query_rows(workspace.store.cursor(), "idle_sessions", values)
    step = workspace.settings.batch_records
    for start in range(0, len(rows), step):
        workspace.runner.publish(closings(rows[start : start + step], IDLE, workspace.now()))
    return len(sessions_of(rows))


def finalize_session(workspace: Workspace, session_id: str, connection: str | None = None) -> int:
    """Record the end of a session and run the stages; return the number of its connections.

    Raises InputError if the session has no records.
    """
    values = {"sessions": [session_id], "connection": connection, "as_of": workspace.now()}
    rows = query_rows(workspace.store.cursor(), "open_topics", values)
    if not rows:
        raise InputError(
            f"no record of a session {session_id!r}", hint="`driftline runs` lists the sessions that were diagnosed."
        )
    workspace.runner.publish(closings(rows, EXPLICIT, workspace.now()))
    workspace.runner.run()
    return len(sessions_of(rows))
