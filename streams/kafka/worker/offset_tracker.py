"""Offset tracker: chunks handed to the stages and not yet committed, per partition.

1. A delivery is told from another by what it is, not by its offsets: the same records may be delivered twice in one process.
2. The offset of a partition moves over deliveries that are done, from the earliest on; one that is under way holds it back.
3. A partition that is forgotten (revoked, sought to another place) drops its deliveries: what becomes of them changes nothing.
4. A delivery that is done keeps no records, however long it waits for the one before.
5. A partition has room while fewer than AHEAD deliveries wait or are being taken, so memory is bounded and no partition waits for another.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from time import monotonic

from streams.kafka.reading import Chunk, RawRecord

AHEAD = 2
"""Deliveries of a partition at a time: one being taken, one that waits, so that no stage waits for the broker."""
Partition = tuple[str, int]
"""Topic (without prefix) and number."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One chunk on its way through a stage."""

    chunk: Chunk
    """Without its records once it is done."""
    next_offset: int
    """The offset that may be committed when it is done."""
    finished: bool = False
    taken: bool = False
    current: bool = True
    """False once its partition was forgotten."""


@dataclass
class OffsetTracker:
    """The book. Belongs to one event loop."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a partition has room again."""
    moved_at: dict[Partition, float] = field(default_factory=dict)
    """The time when something of a partition was delivered or done last, by `now`."""
    now: Callable[[], float] = monotonic
    """A monotonic clock, in seconds."""
    _open: dict[Partition, deque[Delivery]] = field(default_factory=lambda: defaultdict(deque))

    def deliver(self, chunk: Chunk) -> Delivery:
        """Enter the partition's next chunk."""
        delivery = Delivery(chunk, chunk.next_offset)
        self._open[chunk.topic, chunk.partition].append(delivery)
        self.moved_at[chunk.topic, chunk.partition] = self.now()
        return delivery

    def done(self, delivery: Delivery) -> None:
        """All that came of the delivery is durable."""
        delivery.finished = True
        delivery.chunk = Chunk(delivery.chunk.topic, delivery.chunk.partition, ())
        self.moved_at[delivery.chunk.topic, delivery.chunk.partition] = self.now()

    def taken(self, delivery: Delivery) -> None:
        """The stage takes the partition's next delivery."""
        delivery.taken = True
        self.changed.set()

    def has_room(self, partition: Partition) -> bool:
        """Tell whether the partition may have another delivery."""
        # They are taken in their order, and there may be thousands that are taken and not done.
        return sum(1 for _ in takewhile(lambda one: not one.taken, reversed(self._open.get(partition, deque())))) < AHEAD

    def open(self, without: Collection[str] = ()) -> dict[Partition, int]:
        """Count the deliveries that are not done, by partition that has any, without the topics in `without`."""
        queues = {place: queue for place, queue in self._open.items() if place[0] not in without}
        counts = {place: sum(not one.finished for one in queue) for place, queue in queues.items()}
        return {place: count for place, count in counts.items() if count}

    def partitions(self) -> list[Partition]:
        """The partitions that have deliveries."""
        return [partition for partition, queue in self._open.items() if queue]

    def committable(self, partition: Partition) -> int | None:
        """The offset that may be committed now, or None where there is no new one; what it passes over is taken off the book."""
        queue, offset = self._open.get(partition, deque()), None
        while queue and queue[0].finished:
            offset = queue.popleft().next_offset
        return offset

    def forget(self, partitions: Iterable[Partition] | None = None) -> None:
        """Drop the deliveries of these partitions, or of all."""
        for partition in list(self._open) if partitions is None else partitions:
            for delivery in self._open.pop(partition, ()):
                delivery.current = False
        self.changed.set()


def split(records: Sequence[RawRecord], most: int, most_bytes: int) -> Iterator[Sequence[RawRecord]]:
    """Parts of so many records and bytes at most; a single record may be larger."""
    start = size = 0
    for place, record in enumerate(records):
        length = len(record.value or b"") + len(record.key or b"")
        if place > start and (place - start >= most or size + length > most_bytes):
            yield records[start:place]
            start, size = place, 0
        size += length
    if records:
        yield records[start:]
