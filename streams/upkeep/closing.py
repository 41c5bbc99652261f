"""Ending sessions, on request or because they are idle. Either way the end becomes a record before anything acts on it.

1. The end of a session is recorded on each topic where it has records: on exchanges for its last turns, on events for its diagnosis.
2. The end of a session without events is recorded on events, too: only the diagnosis stage makes runs, so that nothing depends on which
   topic is read first. It is recorded there again if exchanges came since, or if no end is there yet (sessions that ended before they
   became runs). Sessions of anchors never end there.
3. Requests that arrive while other sessions are being ended are looked up and ended together (`SessionEnds`): a query costs about as much
   for hundreds of sessions as for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.errors import RecordError
from schemas.records import SessionClosed
from streams.log.admission import EncodedRecords

IDLE = "idle"
EXPLICIT = "explicit"
CLOSED_AT_ONCE = 400
"""Ends of idle sessions that are recorded together, two for most sessions: a limit, so that no caller waits behind thousands."""
LOOKED_UP = 50_000
"""Ends of idle sessions that a server looks up together; the rest waits for the next check."""


def closings(rows: Iterable[Mapping[str, Any]], reason: str, now: datetime) -> EncodedRecords:
    """Return the records that end sessions, one on each topic where a session must end.

    The rows are those of the queries `idle_sessions` and `open_topics`.
    """
    accepted = EncodedRecords()
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
    """Return the sessions of the rows, by connection and id."""
    return {(row["connection"], row["session_id"]) for row in rows}


def idle_closings(store: Store, policy: Policy, now: datetime) -> Iterator[EncodedRecords]:
    """Yield the records that end sessions idle for longer than the session gap, CLOSED_AT_ONCE at a time and LOOKED_UP at most."""
    gap = timedelta(minutes=policy.session_gap_minutes)
    values = {"as_of": now, "gap_seconds": gap.total_seconds(), "heard_before": now - gap, "limit": LOOKED_UP}
    rows = query_rows(store.cursor(), "idle_sessions", values)
    for start in range(0, len(rows), CLOSED_AT_ONCE):
        yield closings(rows[start : start + CLOSED_AT_ONCE], IDLE, now)


Session = tuple[str, str]
"""Connection and session id."""


class _Call(NamedTuple):
    """A caller that waits for the end of a session; the answer is whether the session has records."""

    session: Session
    known: asyncio.Future[bool]


class SessionEnds:
    """See the module. `record` makes ends durable. Belongs to one event loop."""

    def __init__(self, store: Store, now: Callable[[], datetime], record: Callable[[EncodedRecords], Awaitable[None]]) -> None:
        self._store = store
        self._now = now
        self._record = record
        self._waiting: list[_Call] = []
        self._task: asyncio.Task[None] | None = None

    async def end(self, connection: str, session_id: str) -> bool:
        """Record that a session ended; False if the session has no records. Raises if the end cannot be made durable."""
        call = _Call((connection, session_id), asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._task is None:
            self._task = asyncio.create_task(self._end_all())
        return await call.known

    async def _end_all(self) -> None:
        """End the waiting sessions, in groups, until none waits."""
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:CLOSED_AT_ONCE], self._waiting[CLOSED_AT_ONCE:]
                await self._end_together(some)
        finally:
            self._task = None

    async def _end_together(self, calls: Sequence[_Call]) -> None:
        try:
            known = await self._ended({call.session for call in calls})
        except RecordError as error:
            if len(calls) == 1:
                _fail(calls, error)
                return
            # A failure to end one session must not affect the others.
            for call in calls:
                await self._end_together([call])
        except BaseException as error:
            _fail(calls, error)
            if not isinstance(error, Exception):
                raise
        else:
            for call in calls:
                if not call.known.done():
                    call.known.set_result(call.session in known)

    async def _ended(self, sessions: set[Session]) -> set[Session]:
        """End sessions; returns those that have records."""
        now = self._now()
        rows = await asyncio.to_thread(self._open_topics, sessions, now)
        await self._record(closings(rows, EXPLICIT, now))
        return sessions_of(rows)

    def _open_topics(self, sessions: set[Session], now: datetime) -> list[dict[str, object]]:
        values = {"as_of": now}
        found = []
        with closing(self._store.cursor()) as cursor:
            for connection in sorted({connection for connection, _ in sessions}):
                named = sorted(session_id for owner, session_id in sessions if owner == connection)
                found += query_rows(cursor, "open_topics", values | {"sessions": named, "connection": connection})
        return found


def _fail(calls: Sequence[_Call], error: BaseException) -> None:
    for call in calls:
        if not call.known.done():
            call.known.set_exception(error)
