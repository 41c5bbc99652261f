"""Ending sessions that callers name: those that come while others are being ended are looked up and ended together.

Where a session ends is one question to the tables, which costs about as much for hundreds of sessions as for one; and ends that come to
a topic together are worked on together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import datetime
from typing import NamedTuple

from analytics.queries import query_rows
from analytics.store.store import Store
from schemas.errors import RecordError
from streams.log.admission import Accepted
from streams.upkeep.closing import CLOSED_AT_ONCE, EXPLICIT, closings, sessions_of

Session = tuple[str, str]
"""Connection and session id."""


class _Call(NamedTuple):
    """A caller that waits for the end of a session, and for whether a record of it is there."""

    session: Session
    known: asyncio.Future[bool]


class SessionEnds:
    """See the module. `record` makes ends durable. Belongs to one event loop."""

    def __init__(self, store: Store, now: Callable[[], datetime], record: Callable[[Accepted], Awaitable[None]]) -> None:
        self._store = store
        self._now = now
        self._record = record
        self._waiting: list[_Call] = []
        self._task: asyncio.Task[None] | None = None

    async def end(self, connection: str, session_id: str) -> bool:
        """Record that a session ended; False where no record of it is there. Raises what keeps its end from becoming durable."""
        call = _Call((connection, session_id), asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._task is None:
            self._task = asyncio.create_task(self._end_all())
        return await call.known

    async def _end_all(self) -> None:
        """End what waits, some at a time, until nothing does."""
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
            # One session that cannot be ended keeps no other from its end.
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
        """End sessions; those of which a record is there."""
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
