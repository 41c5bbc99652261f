"""Open sessions and their silence: which sessions are watched, and how long ago each was heard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from analytics.queries import query_rows
from audit.policy.policy import Policy
from audit.silence import Silence, silence
from schemas.bounds.limits import CLOCK_TOLERANCE
from schemas.lazy.duckdb import duckdb
from streams.engine.record_intake import RecordIntake

_LISTENING: WeakKeyDictionary[RecordIntake, datetime] = WeakKeyDictionary()
Page = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class SilentSession:
    """A session without a sign of life for a while."""

    connection: str
    session_id: str
    project: str
    last_received: datetime
    interval_ms: int
    silence: Silence


@dataclass(frozen=True, slots=True)
class Listed:
    """An open session, and its place in the list of all of them."""

    session: SilentSession
    place: str


def open_sessions(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    now: datetime,
    listening: datetime | None,
    *,
    project: str | None = None,
    silent_since: datetime | None = None,
    after: Page | None = None,
    limit: int | None = None,
) -> list[Listed]:
    """Return the watched sessions, the longest silent first: of one project or all, last heard before a time, after a place."""
    at, place = after or (None, None)
    values = {
        "as_of": now,
        "gap_seconds": timedelta(minutes=policy.session_gap_minutes).total_seconds(),
        "history_seconds": CLOCK_TOLERANCE.total_seconds(),
        "project": project,
        "silent_since": silent_since,
        "after_at": at,
        "after_place": place,
        "limit": limit,
    }
    return [Listed(_session(row, policy, now, listening), row["place"]) for row in query_rows(cursor, "session_signs", values)]


def _session(row: dict[str, Any], policy: Policy, now: datetime, listening: datetime | None) -> SilentSession:
    interval = policy.for_project(row["project"]).settings.heartbeat_interval
    quiet = silence(row["last_received"], listening, now, timedelta(milliseconds=interval), is_idle=row["is_idle"])
    return SilentSession(row["connection"], row["session_id"], row["project"], row["last_received"], interval, quiet)


def note_listening(engine: RecordIntake, since: datetime) -> None:
    """Note since when the server over this engine has listened."""
    _LISTENING[engine] = since


def listening_of(engine: RecordIntake) -> datetime | None:
    """Return the time since which the server over this engine has listened without a break; None without a watchdog."""
    return _LISTENING.get(engine)
