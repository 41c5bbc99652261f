"""A stage's assigned partitions: the chunks in flight through them, and whether this process still owns them.

1. Chunks of a partition are processed one after another, in the order of their offsets; partitions are processed concurrently.
2. The committable offset advances over finished chunks, from the earliest on; a chunk in progress holds it back.
3. The chunks of a revoked partition are dropped: their results no longer count, and the next owner reads them again.
4. A finished chunk keeps no records, however long it waits for the chunk before it.
5. A partition has room while fewer than AHEAD chunks wait or are being processed: memory is bounded, and no partition waits for another.
6. An exception that escapes a stage ends the process: to continue would lose the chunk, or silently stop its partition.

Ownership:

7. A worker that is silent for the session timeout loses its partitions to other workers. A frozen process knows neither how long it was
   frozen nor whether the broker was frozen instead. So the time that counts is when the last answered request was sent (`Membership`).
8. If that time is too long ago, writes that only the owner may make wait until the next heartbeat is answered or the partitions are
   revoked (`OwnershipGuard`).
9. A client can silently stop delivering the records of a partition. Then this process ends and another one replaces it (`Watchdog`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from schemas.errors import BrokerError
from streams.judging.call_budget import StoppedError
from streams.kafka.producing import Message, Sender
from streams.kafka.reading import Chunk, RawRecord

AHEAD = 2
"""Chunks of a partition at a time: one in progress and one waiting, so that no stage waits for the broker."""
CHUNK_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a chunk, uncompressed. A larger record is a chunk of its own."""
RELEASE_SECONDS = 10.0
"""Seconds to wait for work in progress on revoked partitions; their next owner waits as long."""
FAULT = 70
"""Exit code of a worker after an error that is not about a record."""
log = logging.getLogger(__name__)


def end_process(error: BaseException) -> None:
    """End the process at once: another one reads the uncommitted records again."""
    log.critical("a stage cannot continue, so this worker ends: %s", error, exc_info=error)
    logging.shutdown()
    os._exit(FAULT)


class PartitionWork(Protocol):
    """The work of a stage on one partition, from its assignment to this process until it is revoked.

    Neither method raises because of a record's content: a bad record becomes a dead letter.
    """

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Process a chunk; returns when the stage has room for the next one.

        Calls `done` once in the event loop, now or later, when all results of the chunk are durable. Chunks may finish out of order.
        """
        ...

    async def end(self, grace: float) -> None:
        """End the work: no further chunk follows. Work that still runs after `grace` seconds is abandoned.

        A running `take` gets the same grace and is then cancelled.
        """
        ...


class KafkaStage:
    """See the module. `open_partition` starts the work on a partition; `fail` is called with unrecoverable errors.

    `source` is the topic without prefix; `is_foreign` marks a topic of another program, whose name has no prefix. Belongs to one event
    loop.
    """

    def __init__(
        self,
        source: str,
        open_partition: Callable[[int], PartitionWork],
        *,
        records_at_once: int,
        is_foreign: bool = False,
        fail: Callable[[BaseException], None] = end_process,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.source = source
        self.records_at_once = records_at_once
        self.is_foreign = is_foreign
        self.partitions: dict[int, WorkedPartition] = {}
        """The partitions of this process, by number."""
        self.changed = asyncio.Event()
        """Set when a partition has room again; the stages of a worker share one."""
        self._open_partition = open_partition
        self._fail = fail
        self.now = now
        """A monotonic clock, in seconds."""
        self._is_stopped = False

    async def run(self, chunk: DeliveredChunk) -> None:
        """Process a chunk; returns when the partition has room for the next one."""
        partition = chunk.owner
        if partition.is_closed or self._is_stopped:
            return
        # A separate task: Faust cancels the agent of a revoked partition, and restarts a cancelled agent.
        partition.running_task = asyncio.create_task(partition.work.take(chunk, chunk.done))
        await asyncio.wait([partition.running_task])
        if partition.running_task.cancelled():
            return
        error = partition.running_task.exception()
        if error is not None:
            partition.is_closed = True
            self._fail(error)
            return
        partition.waiting -= 1
        self.changed.set()

    def assign(self, numbers: Sequence[int]) -> None:
        """Take ownership of these partitions. No heartbeat is sent during this call, so it starts no work."""
        self.partitions |= {number: WorkedPartition(self, number, self._open_partition(number)) for number in numbers}

    async def end(self, grace: float) -> None:
        """Start no further work in our partitions, and finish the work in progress, for `grace` seconds at most."""
        await asyncio.gather(*(partition.end(grace) for partition in self.partitions.values()))

    async def stop(self, grace: float) -> None:
        """Like `end`, but also refuse all work from now on, even in partitions that are assigned later."""
        self._is_stopped = True
        await self.end(grace)

    def forget(self) -> None:
        """Drop the partitions, which are no longer ours."""
        self.partitions = {}


async def release(stages: Collection[KafkaStage], commit: Callable[[], Awaitable[object]]) -> None:
    """Before the partitions are revoked: let the stages finish their work, commit the finished chunks, and drop the rest."""
    await asyncio.gather(*(stage.end(RELEASE_SECONDS) for stage in stages))
    await commit()
    for stage in stages:
        stage.forget()


class WorkedPartition:
    """A partition of this process: its fetched records, and its uncommitted chunks."""

    def __init__(self, stage: KafkaStage, number: int, work: PartitionWork) -> None:
        self.stage = stage
        self.number = number
        self.work = work
        self.running_task: asyncio.Task[None] | None = None
        """The asyncio task that processes the current chunk."""
        self.is_closed = False
        """Whether no further chunk is started."""
        self.waiting = 0
        """Chunks that wait or are being processed."""
        self.progressed_at = stage.now()
        """The time when a chunk was last delivered or finished."""
        self._fetched: deque[Sequence[RawRecord]] = deque()
        self._open: deque[DeliveredChunk] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be delivered."""
        return self.waiting < AHEAD and not self.is_closed

    @property
    def fetched(self) -> int:
        """The number of fetched records that were not delivered yet."""
        return sum(map(len, self._fetched))

    @property
    def unfinished(self) -> int:
        """The number of delivered chunks that are unfinished."""
        return sum(not chunk.is_done for chunk in self._open)

    def fetch(self, records: Sequence[RawRecord]) -> None:
        """Keep fetched records, split into chunks."""
        self._fetched += split(records, self.stage.records_at_once, CHUNK_BYTES)

    def deliver(self) -> Iterator[DeliveredChunk]:
        """Yield chunks for the stage as long as there is room."""
        while self._fetched and self.has_room:
            chunk = DeliveredChunk(self, self._fetched.popleft())
            self._open.append(chunk)
            self.waiting += 1
            self.note_progress()
            yield chunk

    def note_progress(self) -> None:
        """Note the time of this progress."""
        self.progressed_at = self.stage.now()

    def committable(self) -> int | None:
        """Return the offset that may be committed now, None if it is not new; the chunks before it are dropped."""
        offset = None
        while self._open and self._open[0].is_done:
            offset = self._open.popleft().end_offset
        return offset

    async def end(self, grace: float) -> None:
        """See `KafkaStage.end`."""
        self.is_closed = True
        await asyncio.gather(self.work.end(grace), self._await_running_task(grace))

    async def _await_running_task(self, grace: float) -> None:
        if self.running_task is not None and not self.running_task.done():
            await asyncio.wait([self.running_task], timeout=grace)
            self.running_task.cancel()
            await asyncio.wait([self.running_task])


class DeliveredChunk(Chunk):
    """A chunk that was delivered to a stage."""

    __slots__ = ("end_offset", "is_done", "owner")

    def __init__(self, owner: WorkedPartition, records: Sequence[RawRecord]) -> None:
        super().__init__(owner.stage.source, owner.number, records)
        self.owner = owner
        self.end_offset = self.next_offset
        """The offset that may be committed when it is done."""
        self.is_done = False

    def done(self) -> None:
        """Note that all of its results are durable."""
        self.is_done = True
        self.records = self.values = ()
        self.owner.note_progress()


def split(records: Sequence[RawRecord], max_records: int, max_bytes: int) -> Iterator[Sequence[RawRecord]]:
    """Yield parts with a limited number of records and bytes; a single record may be larger."""
    start = 0
    size = 0
    for index, record in enumerate(records):
        length = len(record.value or b"") + len(record.key or b"")
        if index > start and (index - start >= max_records or size + length > max_bytes):
            yield records[start:index]
            start = index
            size = 0
        size += length
    if records:
        yield records[start:]


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


def boot_time() -> float:
    """Return the seconds since the machine started."""
    return time.clock_gettime(CLOCK)


def leave(reason: str) -> None:
    """End the process at once, so that it produces nothing more."""
    log.critical("%s; this worker ends, and another one reads the uncommitted records again", reason)
    logging.shutdown()
    os._exit(STUCK)


class Membership:
    """Whether this process is still a member of the group, judged by the broker's answers.

    `limit` is in seconds, and shorter than the session timeout, because a write takes a while to arrive.
    """

    def __init__(self, limit: float, now: Callable[[], float] = boot_time) -> None:
        self._limit = limit
        self._now = now
        self._confirmed_at = float("-inf")

    def is_sure(self) -> bool:
        """Return True if no other worker can have our partitions. Safe to call from any thread."""
        return self._now() - self._confirmed_at <= self._limit

    def watch(self, coordinator: Any) -> None:
        """Take the times from the client's group coordinator, the only part of the client that has them."""
        send_heartbeat = coordinator._do_heartbeat  # noqa: SLF001
        join_group = coordinator._do_rejoin_group  # noqa: SLF001

        async def heartbeat() -> bool:
            sent = self._now()
            answered = bool(await send_heartbeat())
            if answered:
                self._confirmed_at = sent
            return answered

        async def rejoin(subscription: Any) -> bool:
            joined = bool(await join_group(subscription))
            if joined:
                self._confirmed_at = self._now()
            return joined

        coordinator._do_heartbeat = heartbeat  # noqa: SLF001
        coordinator._do_rejoin_group = rejoin  # noqa: SLF001


class OwnershipGuard:
    """Repeats a partition's calls to the broker until they succeed or the partition is lost.

    No call starts while the group may have given the partition to another worker. A write counts only if we still own the partition
    afterwards, because a broker that was frozen accepts our earlier requests and then those of the new owner.
    """

    def __init__(self, producer: Sender, is_sure: Callable[[], bool]) -> None:
        self._producer = producer
        self._is_sure = is_sure
        self._is_ended = False
        self._running_calls: set[asyncio.Task[object]] = set()

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> None:
        """Produce; durable on return. Raises StoppedError once the partition is not ours."""
        if messages:
            await self.repeat(lambda: self._producer.send(topic, messages, partition=partition))

    async def repeat(self, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call to the broker until it succeeds. Raises StoppedError once the partition is not ours.

        A cancelled caller returns at once, but the call continues: the request may still arrive, and the client swallows a cancellation
        while it closes. `end` waits for the call.
        """
        while True:
            await self._await_ownership()
            try:
                await asyncio.shield(self._start_call(work))
            except BrokerError as error:
                log.warning("%s; trying again", error)
            else:
                break
            await asyncio.sleep(RETRY_SECONDS)
        if not self._is_sure():
            await self._await_ownership()

    async def end(self) -> None:
        """Start no further calls."""
        self._is_ended = True
        if self._running_calls:
            await asyncio.wait(self._running_calls, timeout=LAST_SECONDS)

    async def _await_ownership(self) -> None:
        """Wait until we certainly own the partition. Raises StoppedError after `end`."""
        while not self._is_ended:
            if self._is_sure():
                return
            await asyncio.sleep(RETRY_SECONDS)
        raise StoppedError

    def _start_call(self, work: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
        async def call_broker() -> object:
            return await work()

        call = asyncio.create_task(call_broker())
        self._running_calls.add(call)
        call.add_done_callback(self._note_end)
        return call

    def _note_end(self, call: asyncio.Task[object]) -> None:
        self._running_calls.discard(call)
        if not call.cancelled():
            call.exception()  # a waiting caller gets the error; without one, this avoids asyncio's warning


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
        unfinished = {key: partition.unfinished for key, partition in partitions.items() if key[0] not in self._patient}
        waiting = {key: count for key, count in self._waiting().items() if count != 0}
        busy = waiting.keys() | {key for key, count in unfinished.items() if count}
        self._since = {key: self._since.get(key, now) for key in busy}
        idle_seconds: dict[tuple[str, int], float] = {}
        for key, since in self._since.items():
            last_progress = max(since, partitions[key].progressed_at) if key in partitions else since
            idle_seconds[key] = now - last_progress
        if not idle_seconds:
            return
        longest = max(idle_seconds, key=lambda key: idle_seconds[key])
        if idle_seconds[longest] <= self._limit:
            return
        topic, number = longest
        count = waiting.get(longest, 0)
        self._end(
            f"{topic}, partition {number}: {'an unknown number of' if count is None else count} records wait, "
            f"{unfinished.get(longest, 0)} chunks are unfinished, and there was no progress for {idle_seconds[longest]:.0f} s"
        )
