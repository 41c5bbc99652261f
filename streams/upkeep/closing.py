"""Closing sessions, on request or because they are idle. A session is closed by a record, on which the stages act.

1. A `SessionClosed` record goes to each topic on which the session has records: to `exchanges` for its last turns, and to `agent-events`
   for its diagnosis.
2. A session without events is closed on `agent-events`, too, because only the diagnosis stage makes runs. It is closed there again if
   exchanges arrived since. Sessions of anchors are never closed there.
3. Requests that arrive while other sessions are being closed are handled together (`SessionEnds`): a query takes about as long for
   hundreds of sessions as for one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
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
CLOSING_BATCH_SIZE = 400
"""Records of closed sessions that are published together, so that no caller waits behind thousands. Most sessions have two."""
MAX_IDLE_CLOSINGS = 50_000
"""Records of idle sessions in one check; the rest waits for the next one."""


def closings(rows: Iterable[Mapping[str, Any]], reason: str, now: datetime) -> EncodedRecords:
    """Return the records that close sessions, one per row of the query `idle_sessions` or `open_topics`."""
    encoded = EncodedRecords()
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
        encoded.add(row["topic"], encode(record))
    return encoded


def sessions_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the sessions of the rows, by connection and id."""
    return {(row["connection"], row["session_id"]) for row in rows}


def idle_closings(store: Store, policy: Policy, now: datetime) -> Iterator[EncodedRecords]:
    """Yield the records that close sessions idle for longer than the session gap, in batches."""
    gap = timedelta(minutes=policy.session_gap_minutes)
    values = {"as_of": now, "gap_seconds": gap.total_seconds(), "heard_before": now - gap, "limit": MAX_IDLE_CLOSINGS}
    rows = query_rows(store.cursor(), "idle_sessions", values)
    for start in range(0, len(rows), CLOSING_BATCH_SIZE):
        yield closings(rows[start : start + CLOSING_BATCH_SIZE], IDLE, now)


Session = tuple[str, str]
"""Connection and session id."""


class _Request(NamedTuple):
    """A request to close a session, and the future of its caller: whether the session has records."""

    session: Session
    has_records: asyncio.Future[bool]


class SessionEnds:
    """Closes sessions on request; see the module. `publish` makes records durable. Belongs to one event loop."""

    def __init__(self, store: Store, now: Callable[[], datetime], publish: Callable[[EncodedRecords], Awaitable[None]]) -> None:
        self._store = store
        self._now = now
        self._publish = publish
        self._requests: list[_Request] = []
        self._task: asyncio.Task[None] | None = None

    async def end(self, connection: str, session_id: str) -> bool:
        """Record that a session ended; returns False if it has no records. Raises if the record cannot be made durable."""
        request = _Request((connection, session_id), asyncio.get_running_loop().create_future())
        self._requests.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._handle_requests())
        return await request.has_records

    async def _handle_requests(self) -> None:
        """Handle the requests in batches until none waits."""
        try:
            while self._requests:
                batch = self._requests[:CLOSING_BATCH_SIZE]
                del self._requests[:CLOSING_BATCH_SIZE]
                await self._handle_batch(batch)
        finally:
            self._task = None

    async def _handle_batch(self, requests: Sequence[_Request]) -> None:
        try:
            closed = await self._close_sessions({request.session for request in requests})
        except RecordError as error:
            if len(requests) == 1:
                _fail_requests(requests, error)
                return
            # A failure to close one session must not affect the others.
            for request in requests:
                await self._handle_batch([request])
        except BaseException as error:
            _fail_requests(requests, error)
            if not isinstance(error, Exception):
                raise
        else:
            for request in requests:
                if not request.has_records.done():
                    request.has_records.set_result(request.session in closed)

    async def _close_sessions(self, sessions: set[Session]) -> set[Session]:
        """Close sessions; returns those that have records."""
        now = self._now()
        rows = await asyncio.to_thread(self._query_open_topics, sessions, now)
        await self._publish(closings(rows, EXPLICIT, now))
        return sessions_of(rows)

    def _query_open_topics(self, sessions: set[Session], now: datetime) -> list[dict[str, object]]:
        session_ids: dict[str, list[str]] = defaultdict(list)
        for connection, session_id in sorted(sessions):
            session_ids[connection].append(session_id)
        rows: list[dict[str, object]] = []
        with closing(self._store.cursor()) as cursor:
            for connection, ids in session_ids.items():
                rows += query_rows(cursor, "open_topics", {"as_of": now, "sessions": ids, "connection": connection})
        return rows


def _fail_requests(requests: Sequence[_Request], error: BaseException) -> None:
    for request in requests:
        if not request.has_records.done():
            request.has_records.set_exception(error)
