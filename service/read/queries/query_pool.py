"""Query pool: runs a bounded number of analysts' statements at once, each over the present snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from analytics.store.store import Store
from schemas.errors import BusyError
from service.read.queries.query_processes import ask
from service.read.queries.query_protocol import Outcome, QueryLimits, Question
from service.read.queries.snapshot_cache import Snapshots, SnapshotState


async def _nothing() -> None:
    """Land nothing: the store has every record."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of an answer, a description of them, and the time of their snapshot."""

    outcome: Outcome
    body: bytes
    at: datetime


class QueryPool:
    """Answers questions about a store; made once per server. `flush` writes pending records to the store."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], datetime],
        limits: QueryLimits | None = None,
        flush: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.limits = limits or QueryLimits()
        self._snapshots = Snapshots(store, now, self.limits, flush)
        self._running = 0

    async def answer(self, question: Question) -> Answer:
        """Return the answer to a question.

        QueryError when it cannot be answered within the limits, BusyError when too many are being answered or there is no snapshot
        yet, StoreError when none can be made. Cancelled, it stops the work at once.
        """
        if self._running >= self.limits.at_once:
            raise BusyError(f"{self._running} statements are running already")
        self._running += 1
        try:
            snapshot = await self._snapshots.fresh()
            with self._snapshots.reading(snapshot) as file:
                outcome, body = await ask(file, question, self.limits)
            return Answer(outcome, body, snapshot.at)
        finally:
            self._running -= 1

    def prepare(self) -> None:
        """Make a snapshot ahead of time, so that the next statement need not wait for it."""
        self._snapshots.prepare()

    def snapshot_state(self) -> SnapshotState:
        """Tell of what time the snapshot is, since when a new one is being made, and why the last attempt failed."""
        return self._snapshots.state()

    async def ready(self) -> None:
        """Return as soon as there is a snapshot, however long that takes; StoreError when none can be made."""
        await self._snapshots.ready()

    async def close(self) -> None:
        """Release its resources; callers end their own questions."""
        with contextlib.suppress(OSError):
            await self._snapshots.close()
