"""A stage's assigned partitions, and the chunks in flight through them.

1. Chunks of a partition are processed one after another, in the order of their offsets; partitions are processed concurrently.
2. The committable offset advances over finished chunks, from the earliest on; a chunk in progress holds it back.
3. The chunks of a revoked partition are dropped: their results change nothing any more, and the next owner reads them again.
4. A finished chunk keeps no records, however long it waits for the chunk before it.
5. A partition has room while fewer than AHEAD chunks wait or are being processed: memory is bounded, and no partition waits for another.
6. An exception that escapes a stage ends the process: going on would lose the chunk, or silently stop its partition.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import Protocol

from streams.kafka.reading import Chunk, RawRecord

AHEAD = 2
"""Chunks of a partition at a time: one in progress and one waiting, so that no stage waits for the broker."""
CHUNK_BYTES = 32 * 1024 * 1024
"""In one chunk, uncompressed; a larger record is a chunk of its own."""
RELEASE_SECONDS = 10.0
"""Seconds to wait for work in progress on revoked partitions; their next owner waits as long."""
FAULT = 70
"""Exit code of a worker after an error that is not about a record."""
log = logging.getLogger(__name__)


def end_process(error: BaseException) -> None:
    """End the process at once: another one reads the uncommitted records again."""
    log.critical("a stage cannot go on, so this worker ends: %s", error, exc_info=error)
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
        """End the work, as no further chunk comes: within `grace` seconds give up what still runs after `take` has returned.

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
        partition.taking = asyncio.create_task(partition.work.take(chunk, chunk.done))
        await asyncio.wait([partition.taking])
        if partition.taking.cancelled():
            return
        if (error := partition.taking.exception()) is not None:
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
        """Like `end`, but also refuse all work from now on, whatever is assigned."""
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
        self.taking: asyncio.Task[None] | None = None
        """The work on the current chunk."""
        self.is_closed = False
        """Whether no further chunk is started."""
        self.waiting = 0
        """Chunks that wait or are being processed."""
        self.moved_at = stage.now()
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
    def under_way(self) -> int:
        """The number of delivered chunks that are not done."""
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
            self.note_move()
            yield chunk

    def note_move(self) -> None:
        """Note that the partition advanced."""
        self.moved_at = self.stage.now()

    def committable(self) -> int | None:
        """The offset that may be committed now, None if it is not new; the chunks before it are dropped."""
        offset = None
        while self._open and self._open[0].is_done:
            offset = self._open.popleft().end_offset
        return offset

    async def end(self, grace: float) -> None:
        """See `KafkaStage.end`."""
        self.is_closed = True
        await asyncio.gather(self.work.end(grace), self._await_taking(grace))

    async def _await_taking(self, grace: float) -> None:
        if self.taking is not None and not self.taking.done():
            await asyncio.wait([self.taking], timeout=grace)
            self.taking.cancel()
            await asyncio.wait([self.taking])


class DeliveredChunk(Chunk):
    """A chunk on its way through a stage."""

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
        self.owner.note_move()


def split(records: Sequence[RawRecord], most: int, most_bytes: int) -> Iterator[Sequence[RawRecord]]:
    """Parts with a limited number of records and bytes; a single record may be larger."""
    start = size = 0
    for index, record in enumerate(records):
        length = len(record.value or b"") + len(record.key or b"")
        if index > start and (index - start >= most or size + length > most_bytes):
            yield records[start:index]
            start, size = index, 0
        size += length
    if records:
        yield records[start:]
