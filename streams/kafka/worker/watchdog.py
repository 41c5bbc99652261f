"""Watchdog: ends a worker that makes no progress, so that another process takes its place.

A worker of which the broker heard nothing for the session timeout has lost its partitions. A process that was frozen for most of
that must write nothing more: it may not be the only one. And a client can stop bringing records without a word.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping

from streams.kafka.worker.membership import boot_time
from streams.kafka.worker.offset_tracker import OffsetTracker, Partition

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
    """Ends the process where records of a partition wait and nothing of it has moved for long.

    `waiting` counts the records that could be fetched, by partition, and has None where that is not known, which counts as if some waited;
    `patient` are the topics whose stage waits for others, such as a judge, and may take as long as that takes.
    """

    def __init__(
        self,
        tracker: OffsetTracker,
        waiting: Callable[[], Mapping[Partition, int | None]],
        *,
        patient: Collection[str] = (),
        limit: float = STUCK_SECONDS,
        end: Callable[[str], None] = leave,
    ) -> None:
        self._tracker = tracker
        self._waiting = waiting
        self._patient = patient
        self._limit = limit
        self._end = end
        self._since: dict[Partition, float] = {}
        """By partition that has something to do: since when it has had."""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.check()

    def check(self) -> None:
        """End the process where a partition has stood still for too long."""
        now, under_way = self._tracker.now(), self._tracker.open(self._patient)
        waiting = {place: count for place, count in self._waiting().items() if count != 0}
        self._since = {place: self._since.get(place, now) for place in waiting.keys() | under_way.keys()}
        still = {place: now - max(since, self._tracker.moved_at.get(place, since)) for place, since in self._since.items()}
        if still and still[longest := max(still, key=lambda place: still[place])] > self._limit:
            count = waiting.get(longest, 0)
            self._end(
                f"{longest[0]}, partition {longest[1]}: {'an unknown number of' if count is None else count} records wait, "
                f"{under_way.get(longest, 0)} chunks are under way, and nothing has moved for {still[longest]:.0f} s"
            )
