"""Telemetry: which sessions are watched, and how long ago each was heard."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import Meta

from analytics.queries import query_rows
from audit.policy.policy import Policy
from audit.silence import Level, Silence, Status, silence
from schemas.bounds.limits import CLOCK_TOLERANCE
from schemas.lazy.duckdb import duckdb
from service.text.answers import Answer, Moment
from service.text.cursors import NextCursor
from streams.engine.record_intake import RecordIntake

_LISTENING: WeakKeyDictionary[RecordIntake, datetime] = WeakKeyDictionary()
_MILLISECOND = timedelta(milliseconds=1)
Page = tuple[datetime, str]


class OpenSession(Answer, frozen=True):
    """An open session."""

    session_id: str
    project: str
    status: Annotated[
        Status,
        Meta(
            description="green up to one interval without a sign of life, yellow up to three, red beyond; green while it waits for its user."
        ),
    ]
    last_received: Annotated[Moment, Meta(description="Time of its last sign of life.")]
    missed_intervals: int
    elapsed_ms: Annotated[int, Meta(description="Milliseconds of silence while this server was running.")]
    interval_ms: Annotated[int, Meta(description="Milliseconds within which the policy expects a sign of life.")]
    connection: str

    @property
    def level(self) -> Level | None:
        """The urgency of its silence; None where nothing is missed."""
        return Silence(timedelta(milliseconds=self.elapsed_ms), self.missed_intervals).level


class Telemetry(Answer, frozen=True):
    """Open sessions, the longest silent first."""

    sessions: list[OpenSession]
    count: int
    next_cursor: NextCursor


class Listed(NamedTuple):
    """An open session, and its place in the list of all of them."""

    session: OpenSession
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


def _session(row: Mapping[str, Any], policy: Policy, now: datetime, listening: datetime | None) -> OpenSession:
    interval = policy.for_project(row["project"]).settings.heartbeat_interval
    quiet = silence(row["last_received"], listening, now, timedelta(milliseconds=interval), is_idle=row["is_idle"])
    return OpenSession.of(
        row,
        status=quiet.status,
        missed_intervals=quiet.missed,
        elapsed_ms=quiet.elapsed // _MILLISECOND,
        interval_ms=interval,
    )


def note_listening(engine: RecordIntake, since: datetime) -> None:
    """Note since when the server over this engine has listened."""
    _LISTENING[engine] = since


def listening_of(engine: RecordIntake) -> datetime | None:
    """Return the time since which the server over this engine has listened without a break; None without a watchdog."""
    return _LISTENING.get(engine)
