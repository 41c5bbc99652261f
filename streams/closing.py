"""Ending sessions: by hand, or because they fell idle. Either way it becomes a record before anything acts on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from schemas.codec import encode
from schemas.records import SessionClosed
from streams.admission import Accepted

IDLE = "idle"
EXPLICIT = "explicit"


def closings(rows: Iterable[Mapping[str, Any]], reason: str, now: datetime) -> Accepted:
    """The records that end sessions, one in each topic where a session has records.

    The rows are those of the queries `idle_sessions` and `open_topics`.
    """
    accepted = Accepted()
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
        accepted.add(row["topic"], encode(record))
    return accepted


def sessions_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The sessions that the rows are about, by connection and id."""
    return {(row["connection"], row["session_id"]) for row in rows}
