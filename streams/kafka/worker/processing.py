"""The interface between a worker and its stages: chunks of one partition, and a processor that makes them durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol


class RawRecord(Protocol):
    """A record as the broker has it, undecoded: as aiokafka's ConsumerRecord."""

    @property
    def offset(self) -> int:
        """The offset in its partition."""
        ...

    @property
    def timestamp(self) -> int:
        """The time when the broker took it in, in milliseconds since 1970, UTC."""
        ...

    @property
    def key(self) -> bytes | None:
        """Key, which decided on the partition."""
        ...

    @property
    def value(self) -> bytes | None:
        """Value; None is a tombstone."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Headers by name, in their order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Records of one partition in the order of their offsets, at least one.

    Offsets may be missing between two of them: compaction and transactions leave gaps. The same records may come again, in
    another chunk that begins and ends elsewhere. `topic` is the name without the prefix of the installation.
    """

    topic: str
    partition: int
    records: Sequence[RawRecord]

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.records[0].offset

    @property
    def next_offset(self) -> int:
        """The offset after the last record: what may be committed when the chunk is done."""
        return self.records[-1].offset + 1

    def part(self, start: int, stop: int) -> Chunk:
        """Some of its records, by their places."""
        return replace(self, records=self.records[start:stop])


class Processor(Protocol):
    """A stage at work on the partitions that this process has of its source.

    Chunks of one partition come one after another and in order; those of several partitions may come at the same time. No method
    lets an exception out for what a record holds: that becomes a dead letter. What does come out ends the process.
    """

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk; returns when the partition's next chunk may come.

        Calls `done` once, then or later and in the event loop, when all that came of the chunk is durable. Chunks may be
        done in another order than they came; the offset that is committed waits for the earliest.
        """
        ...

    async def assigned(self, partitions: frozenset[int]) -> None:
        """These partitions are new here; called before the first chunk of any of them."""
        ...

    async def end(self, partitions: frozenset[int], grace: float) -> None:
        """No chunk of these partitions comes any more; give up within `grace` seconds what goes on when `take` has returned.

        A `take` that is under way is waited for as long, then cancelled.
        """
        ...

    def revoked(self, partitions: frozenset[int]) -> None:
        """These partitions go to another process, and nothing of them is under way: forget their state."""
        ...
