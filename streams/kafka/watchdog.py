"""What ends a worker that is of no use any more, so that another process takes its place.

A worker of which the broker heard nothing for the session timeout has lost its partitions. Whoever was frozen for most of that must
write nothing more: it may not be the only one. And a client can stop bringing records without a word.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection

from streams.kafka.deliveries import Deliveries
from streams.kafka.membership import boot_time

STUCK = 75
"""Exit code of a worker that should be started again."""
STUCK_SECONDS = 120.0
TICK_SECONDS = 0.5
log = logging.getLogger(__name__)


def leave(reason: str) -> None:
    """End the process at once: it must produce nothing more."""
    log.critical("%s; this worker ends, and what it had not finished comes again", reason)
    logging.shutdown()
    os._exit(STUCK)


class Pulse:
    """Beats with the event loop. Once a beat comes too late the process ends before anything else is produced."""

    def __init__(self, limit: float, end: Callable[[str], None] = leave, now: Callable[[], float] = boot_time) -> None:
        self._limit = limit
        self._end = end
        self._now = now
        self._last = self._now()

    async def run(self) -> None:
        """Beat until cancelled."""
        self._last = self._now()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.check()
            self._last = self._now()

    def check(self) -> None:
        """End the process where the last beat is too long ago; called before anything is produced."""
        silent = self._now() - self._last
        if silent > self._limit:
            self._end(f"the process stood still for {silent:.0f} s, so others may have its partitions")


class Watchdog:
    """Ends the process where records wait and nothing has moved for long.

    `waiting` counts the records that could be fetched; `patient` are the topics whose stage waits for somebody else, such as a judge,
    and may take as long as that takes.
    """

    def __init__(
        self,
        book: Deliveries,
        waiting: Callable[[], int],
        *,
        patient: Collection[str] = (),
        limit: float = STUCK_SECONDS,
        end: Callable[[str], None] = leave,
        tick: float = TICK_SECONDS,
    ) -> None:
        self._book = book
        self._waiting = waiting
        self._patient = patient
        self._limit = limit
        self._end = end
        self._tick = tick

    async def run(self) -> None:
        """Look again and again until cancelled."""
        idle_since = time.monotonic()
        while True:
            await asyncio.sleep(self._tick)
            waiting, under_way = self._waiting(), self._book.open(self._patient)
            if not waiting and not under_way:
                idle_since = time.monotonic()
            still = time.monotonic() - max(idle_since, self._book.moved_at)
            if still > self._limit:
                self._end(f"{waiting} records wait, {under_way} chunks are under way, and nothing has moved for {still:.0f} s")
                return
