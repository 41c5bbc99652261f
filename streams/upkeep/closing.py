"""Ending sessions: by hand, or because they fell idle. Either way it becomes a record before anything acts on it.

1. The end of a session is recorded in each topic where it has records: among the exchanges for its last turns, among the events for its
   diagnosis.
2. A session without events ends among the events, too: the diagnosis stage, and no other, makes runs, so that nothing depends on which
   topic is read first. It ends there again when exchanges came since, or where no end is recorded there yet (sessions that ended before
   they became runs). Anchors never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import SessionClosed
from streams.log.admission import Accepted

IDLE = "idle"
EXPLICIT = "explicit"
CLOSED_AT_ONCE = 400
"""Ends of idle sessions that are recorded together, two for most sessions, so that no caller waits for thousands."""
LOOKED_UP = 50_000
"""Ends of idle sessions that a server looks up together: the others wait for the next look."""


def closings(rows: Iterable[Mapping[str, Any]], reason: str, now: datetime) -> Accepted:
    """The records that end sessions, one in each topic where a session is to end.

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
            last_at=row["last_at"],
            ingested_at=now,
            reason=reason,
        )
        accepted.add(row["topic"], encode(record))
    return accepted


def sessions_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The sessions that the rows are about, by connection and id."""
    return {(row["connection"], row["session_id"]) for row in rows}


def idle_closings(store: Store, policy: Policy, now: datetime) -> Iterator[Accepted]:
    """Yield the records that end sessions idle for longer than the session gap, CLOSED_AT_ONCE of them at a time: LOOKED_UP at most."""
    gap = timedelta(minutes=policy.session_gap_minutes)
    values = {"as_of": now, "gap_seconds": gap.total_seconds(), "heard_before": now - gap, "limit": LOOKED_UP}
    rows = query_rows(store.cursor(), "idle_sessions", values)
    for start in range(0, len(rows), CLOSED_AT_ONCE):
        yield closings(rows[start : start + CLOSED_AT_ONCE], IDLE, now)
