"""The interface between a worker and its stages: a processor makes chunks durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streams.kafka.reading import Chunk


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
