"""Ownership of partitions: whether this process still has its partitions, and a watchdog that ends the process when one stalls.

1. A worker that is silent for the session timeout loses its partitions to other workers. A frozen process knows neither how long it was
   frozen nor whether the broker was frozen instead. So the time that counts is when the last answered request was sent (`Membership`).
2. If that time is too long ago, writes that only the owner may make wait until the next heartbeat is answered or the partitions are
   revoked (`OwnershipGuard`).
3. A client can silently stop delivering the records of a partition. Then this process ends and another takes its place (`Watchdog`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from schemas.errors import BrokerError
from streams.judging.call_budget import StoppedError
from streams.kafka.partitions import KafkaStage
from streams.kafka.producing import Message, Sender

SESSION_SECONDS = 15.0
"""A worker that is silent for this many seconds loses its partitions to other workers."""
SURE_SECONDS = SESSION_SECONDS * 2 / 3
"""Seconds after a sign of life in which no other worker can have the partitions, minus time for writes in flight."""
STUCK = 75
"""Exit code of a worker that should be started again."""
STUCK_SECONDS = 120.0
TICK_SECONDS = 0.5
RETRY_SECONDS = 1.0
LAST_SECONDS = 5.0
"""Seconds to wait for calls to the broker when a partition is revoked: the next owner must see their effect."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that continues while the machine sleeps, if the system has one."""
log = logging.getLogger(__name__)


def boot_time() -> float:
    """Seconds since the machine started."""
    return time.clock_gettime(CLOCK)


def leave(reason: str) -> None:
    """End the process at once, so that it produces nothing more."""
    log.critical("%s; this worker ends, and what it had not finished comes again", reason)
    logging.shutdown()
    os._exit(STUCK)


class Membership:
    """Whether this process is still a member of the group, as far as the broker's answers show.

    `limit` is in seconds, and shorter than the session timeout, because a write takes a while to arrive.
    """

    def __init__(self, limit: float, now: Callable[[], float] = boot_time) -> None:
        self._limit = limit
        self._now = now
        self._heard = float("-inf")

    def is_sure(self) -> bool:
        """Return True if no other worker can have our partitions. Safe to call from any thread."""
        return self._now() - self._heard <= self._limit

    def watch(self, coordinator: Any) -> None:
        """Take the times from the client's group coordinator, the only part of the client that has them."""
        beat, join = coordinator._do_heartbeat, coordinator._do_rejoin_group  # noqa: SLF001

        async def heartbeat() -> bool:
            sent = self._now()
            answered = bool(await beat())
            if answered:
                self._heard = sent
            return answered

        async def rejoin(subscription: Any) -> bool:
            joined = bool(await join(subscription))
            if joined:
                self._heard = self._now()
            return joined

        coordinator._do_heartbeat, coordinator._do_rejoin_group = heartbeat, rejoin  # noqa: SLF001


class OwnershipGuard:
    """Repeats a partition's calls to the broker until they succeed or the partition is lost.

    No call starts while the group may have given the partition to another worker. A write counts only if we still own the partition
    afterwards, because a broker that was frozen accepts our earlier requests and then those of the new owner.
    """

    def __init__(self, producer: Sender, is_sure: Callable[[], bool]) -> None:
        self._producer = producer
        self._is_sure = is_sure
        self._given_up = False
        self._under_way: set[asyncio.Task[object]] = set()

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> None:
        """Produce; durable on return. StoppedError once the partition is not ours."""
        if messages:
            await self.insist(lambda: self._producer.send(topic, messages, partition=partition))

    async def insist(self, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call to the broker until it succeeds. StoppedError once the partition is not ours.

        A cancelled caller returns at once while the call goes on: the request may still arrive, and the client swallows a cancellation
        that comes while it closes. `end` waits for the call.
        """
        while True:
            await self._await_ownership()
            try:
                await asyncio.shield(self._begin(work))
            except BrokerError as error:
                log.warning("%s; trying again", error)
            else:
                break
            await asyncio.sleep(RETRY_SECONDS)
        if not self._is_sure():
            await self._await_ownership()

    async def end(self) -> None:
        """Start no further calls."""
        self._given_up = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST_SECONDS)

    async def _await_ownership(self) -> None:
        """Return when we certainly own the partition. StoppedError when it is given up."""
        while not self._given_up:
            if self._is_sure():
                return
            await asyncio.sleep(RETRY_SECONDS)
        raise StoppedError

    def _begin(self, work: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
        async def do() -> object:
            return await work()

        begun = asyncio.create_task(do())
        self._under_way.add(begun)
        begun.add_done_callback(self._note_end)
        return begun

    def _note_end(self, begun: asyncio.Task[object]) -> None:
        self._under_way.discard(begun)
        if not begun.cancelled():
            begun.exception()  # a waiting caller gets the error; without one, this avoids asyncio's warning


class Watchdog:
    """Ends the process if records of a partition wait and the partition has not advanced for too long.

    `waiting` counts the records that could be fetched, by topic and partition. None means that the number is unknown, and counts as
    records waiting. `patient` names the topics whose stage waits for something else, such as a judge, and has no time limit.
    """

    def __init__(
        self,
        stages: Iterable[KafkaStage],
        waiting: Callable[[], Mapping[tuple[str, int], int | None]],
        *,
        patient: Collection[str] = (),
        limit: float = STUCK_SECONDS,
        end: Callable[[str], None] = leave,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stages = tuple(stages)
        self._waiting = waiting
        self._patient = patient
        self._limit = limit
        self._end = end
        self._now = now
        self._since: dict[tuple[str, int], float] = {}
        """The time since which each busy partition has had work."""

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.check()

    def check(self) -> None:
        """End the process if a partition has stalled for too long."""
        now = self._now()
        partitions = {
            (stage.source, partition.number): partition for stage in self._stages for partition in stage.partitions.values()
        }
        under_way = {key: partition.under_way for key, partition in partitions.items() if key[0] not in self._patient}
        waiting = {key: count for key, count in self._waiting().items() if count != 0}
        busy = waiting.keys() | {key for key, count in under_way.items() if count}
        self._since = {key: self._since.get(key, now) for key in busy}
        still = {
            key: now - max(since, partitions[key].moved_at if key in partitions else since)
            for key, since in self._since.items()
        }
        if still and still[longest := max(still, key=lambda key: still[key])] > self._limit:
            count = waiting.get(longest, 0)
            self._end(
                f"{longest[0]}, partition {longest[1]}: {'an unknown number of' if count is None else count} records wait, "
                f"{under_way.get(longest, 0)} chunks are under way, and nothing has moved for {still[longest]:.0f} s"
            )
