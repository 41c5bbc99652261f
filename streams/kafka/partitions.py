"""A stage at work on the partitions of its source that this process has, and the chunks on their way through it.

1. Chunks of a partition are worked on one after another, in the order of their offsets; those of several partitions side by side.
2. The offset that may be committed moves over chunks that are done, from the earliest on; one that is under way holds it back.
3. A partition that goes away takes its chunks with it: what becomes of them changes nothing any more, and its next owner reads them again.
4. A chunk that is done keeps no records, however long it waits for the one before.
5. A partition has room while fewer than AHEAD chunks wait or are being taken: memory is bounded, and no partition waits for another.
6. What a stage lets out ends the process: going on would lose the chunk, or stop its partition without a word.
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
"""Chunks of a partition at a time: one being taken, one that waits, so that no stage waits for the broker."""
CHUNK_BYTES = 32 * 1024 * 1024
"""In one chunk, uncompressed; a larger record is a chunk of its own."""
RELEASE_SECONDS = 10.0
"""Seconds to wait for what is under way in partitions that go away; their next owner waits as long."""
FAULT = 70
"""Exit code of a worker that met what it cannot make a dead letter of."""
log = logging.getLogger(__name__)


def end_process(error: BaseException) -> None:
    """End the process at once: what is not committed comes again, to another."""
    log.critical("a stage cannot go on, so this worker ends: %s", error, exc_info=error)
    logging.shutdown()
    os._exit(FAULT)


class PartitionWork(Protocol):
    """The work of a stage on one partition, from when it is assigned to this process until it goes away.

    Neither method lets an exception out for what a record holds: that becomes a dead letter.
    """

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk; returns when the next one may come.

        Calls `done` once, then or later and in the event loop, when all that came of the chunk is durable. Chunks may be done in
        another order than they came.
        """
        ...

    async def end(self, grace: float) -> None:
        """No other chunk comes: within `grace` seconds give up what goes on when `take` has returned.

        A `take` that is under way is waited for as long, then cancelled.
        """
        ...


class KafkaStage:
    """See the module. `open_partition` begins the work on a partition; `fail` is called with errors that this process cannot mend.

    `source` is the topic without prefix; `is_foreign` says that it is another program's, whose name has none. Belongs to one event loop.
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
        """Those that this process has, by number."""
        self.changed = asyncio.Event()
        """Set when a partition has room again; the stages of a worker share one."""
        self._open_partition = open_partition
        self._fail = fail
        self.now = now
        """A monotonic clock, in seconds."""
        self._is_stopped = False

    async def run(self, chunk: DeliveredChunk) -> None:
        """Work on a chunk until the partition's next one may come."""
        partition = chunk.owner
        if partition.is_closed or self._is_stopped:
            return
        # A task of its own: Faust cancels what an agent does when its partition goes, and starts a cancelled agent again.
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
        """These partitions are ours from now on. No heartbeat is sent meanwhile, so nothing is done yet."""
        self.partitions |= {number: WorkedPartition(self, number, self._open_partition(number)) for number in numbers}

    async def end(self, grace: float) -> None:
        """Begin nothing more in the partitions that are ours, and finish what is under way for so many seconds at most."""
        await asyncio.gather(*(partition.end(grace) for partition in self.partitions.values()))

    async def stop(self, grace: float) -> None:
        """As `end`, and nothing is taken afterwards, whatever is assigned."""
        self._is_stopped = True
        await self.end(grace)

    def forget(self) -> None:
        """The partitions are ours no more."""
        self.partitions = {}


async def release(stages: Collection[KafkaStage], commit: Callable[[], Awaitable[object]]) -> None:
    """Before the partitions go away: let the stages end what they do, commit what is done, and forget the rest."""
    await asyncio.gather(*(stage.end(RELEASE_SECONDS) for stage in stages))
    await commit()
    for stage in stages:
        stage.forget()


class WorkedPartition:
    """A partition that this process has: what was fetched of it, and the chunks that are not committed."""

    def __init__(self, stage: KafkaStage, number: int, work: PartitionWork) -> None:
        self.stage = stage
        self.number = number
        self.work = work
        self.taking: asyncio.Task[None] | None = None
        """The work on the chunk that is being taken."""
        self.is_closed = False
        """No chunk is begun any more."""
        self.waiting = 0
        """Chunks that wait or are being taken."""
        self.moved_at = stage.now()
        """The time when a chunk was delivered or done last."""
        self._fetched: deque[Sequence[RawRecord]] = deque()
        self._open: deque[DeliveredChunk] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be delivered."""
        return self.waiting < AHEAD and not self.is_closed

    @property
    def fetched(self) -> int:
        """The number of records that were fetched and not delivered."""
        return sum(map(len, self._fetched))

    @property
    def under_way(self) -> int:
        """The number of chunks that were delivered and are not done."""
        return sum(not chunk.is_done for chunk in self._open)

    def fetch(self, records: Sequence[RawRecord]) -> None:
        """Keep records that were fetched, in parts that make a chunk each."""
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
        """Take note that something moved."""
        self.moved_at = self.stage.now()

    def committable(self) -> int | None:
        """The offset that may be committed now, None where there is no new one; what it passes over is forgotten."""
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
        """All that came of it is durable."""
        self.is_done = True
        self.records = self.values = ()
        self.owner.note_move()


def split(records: Sequence[RawRecord], most: int, most_bytes: int) -> Iterator[Sequence[RawRecord]]:
    """Parts of so many records and bytes at most; a single record may be larger."""
    start = size = 0
    for index, record in enumerate(records):
        length = len(record.value or b"") + len(record.key or b"")
        if index > start and (index - start >= most or size + length > most_bytes):
            yield records[start:index]
            start, size = index, 0
        size += length
    if records:
        yield records[start:]
