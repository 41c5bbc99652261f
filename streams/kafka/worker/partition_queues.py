"""A lane for each partition of a stage: its deliveries go to the processor one after another, those of others beside them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict, deque
from collections.abc import Callable

from streams.kafka.worker.offset_tracker import Delivery, OffsetTracker, finishing
from streams.kafka.worker.processing import Processor

log = logging.getLogger(__name__)
FAULT = 70
"""Exit code of a worker that met what it cannot make a dead letter of."""


def end_process(error: BaseException) -> None:
    """End the process at once: what is not committed comes again, to another."""
    log.critical("a stage cannot go on, so this worker ends: %s", error, exc_info=error)
    logging.shutdown()
    os._exit(FAULT)


class PartitionQueues:
    """The lanes of one stage. `fail` is called with errors that a processor raises, which this process cannot mend."""

    def __init__(
        self, processor: Processor, tracker: OffsetTracker, fail: Callable[[BaseException], None] = end_process
    ) -> None:
        self._processor = processor
        self._tracker = tracker
        self._fail = fail
        self._waiting: dict[int, deque[Delivery]] = defaultdict(deque)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._held: set[int] = set()
        self._closed = False

    def put(self, delivery: Delivery) -> None:
        """Put a delivery into its partition's lane; it never waits."""
        partition = delivery.chunk.partition
        # What was on its way here when its partition went is another's.
        if self._closed or not delivery.current or partition not in self._held:
            return
        self._waiting[partition].append(delivery)
        if partition not in self._running:
            self._running[partition] = asyncio.create_task(self._run(partition))

    async def assigned(self, partitions: frozenset[int]) -> None:
        """These partitions are new here."""
        self._held |= partitions
        await self._processor.assigned(partitions)

    async def revoked(self, partitions: frozenset[int]) -> None:
        """These partitions go elsewhere: nothing of them is under way when this returns."""
        self._held -= partitions
        for partition in partitions:
            self._waiting.pop(partition, None)
        await self._processor.revoked(partitions)
        await self._ended([self._running[partition] for partition in partitions if partition in self._running])

    async def stop(self, grace: float) -> None:
        """Finish what is under way, for `grace` seconds at most."""
        self._closed = True
        self._waiting.clear()
        await self._processor.stop(grace)
        await self._ended(list(self._running.values()))

    async def _run(self, partition: int) -> None:
        """Take up deliveries until none waits."""
        try:
            while self._waiting.get(partition):
                delivery = self._waiting[partition].popleft()
                if delivery.current:
                    await self._processor.take(delivery.chunk, finishing(self._tracker, delivery))
                self._tracker.taken(delivery)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the records must come again
            self._fail(error)
        finally:
            self._running.pop(partition, None)

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> None:
        """A processor that let go of a partition takes nothing of it any more; a call that still hangs is given up."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that is cancelled before its first step never comes to its `finally`.
        for partition in [one for one, task in self._running.items() if task.done()]:
            del self._running[partition]
