"""A lane for each partition of a worker: its deliveries go to the stage's processor one after another, those of others beside them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from streams.engine.session_queues import SessionQueues
from streams.kafka.worker.offset_tracker import Delivery, OffsetTracker, Partition
from streams.kafka.worker.processing import Processor

log = logging.getLogger(__name__)
RELEASE_SECONDS = 10.0
"""Seconds to wait for what is under way in a partition that goes away; its next owner waits as long."""
FAULT = 70
"""Exit code of a worker that met what it cannot make a dead letter of."""


def end_process(error: BaseException) -> None:
    """End the process at once: what is not committed comes again, to another."""
    log.critical("a stage cannot go on, so this worker ends: %s", error, exc_info=error)
    logging.shutdown()
    os._exit(FAULT)


class PartitionQueues:
    """The lanes. `processors` are by source topic; `fail` is called with errors that one raises, which this process cannot mend."""

    def __init__(
        self,
        processors: Mapping[str, Processor],
        tracker: OffsetTracker,
        fail: Callable[[BaseException], None] = end_process,
    ) -> None:
        self._processors = processors
        self._tracker = tracker
        self._fail = fail
        self._lanes: dict[Partition, SessionQueues[Delivery]] = {}
        self._closed = False

    @property
    def held(self) -> frozenset[Partition]:
        """The partitions that are ours."""
        return frozenset(self._lanes)

    def put(self, delivery: Delivery) -> None:
        """Put a delivery into its partition's lane; it never waits."""
        lane = self._lanes.get((delivery.chunk.topic, delivery.chunk.partition))
        # What was on its way here when its partition went is another's.
        if lane is not None and delivery.current and not self._closed:
            lane.put("", delivery)

    async def assigned(self, partitions: frozenset[Partition]) -> None:
        """These partitions are ours from now on."""
        topics = _by_topic(partitions)
        if partitions:
            log.info("assigned: %s", "; ".join(f"{topic} {_ranges(numbers)}" for topic, numbers in topics.items()))
        else:
            log.warning("no partition is left for this worker: there are more workers than partitions; it waits for one to go")
        self._lanes |= {place: SessionQueues(self._take, self._fail) for place in partitions - self._lanes.keys()}
        for topic, numbers in topics.items():
            await self._processors[topic].assigned(numbers)

    async def revoked(self, partitions: frozenset[Partition]) -> None:
        """These are not: nothing of them is under way when this returns."""
        lanes = [self._lanes.pop(place) for place in partitions & self._lanes.keys()]
        await self._end(lanes, partitions, RELEASE_SECONDS)
        for topic, numbers in _by_topic(partitions).items():
            self._processors[topic].revoked(numbers)

    async def stop(self, grace: float) -> None:
        """Finish what is under way, for `grace` seconds at most; nothing is taken afterwards, whatever is assigned."""
        self._closed = True
        await self._end(list(self._lanes.values()), self.held, grace)

    async def _end(self, lanes: Iterable[SessionQueues[Delivery]], partitions: frozenset[Partition], grace: float) -> None:
        for lane in lanes:
            lane.close()
        ends = [self._processors[topic].end(numbers, grace) for topic, numbers in _by_topic(partitions).items()]
        await asyncio.gather(*(lane.end(grace) for lane in lanes), *ends)

    async def _take(self, _: str, delivery: Delivery) -> None:
        if delivery.current:
            await self._processors[delivery.chunk.topic].take(delivery.chunk, partial(self._tracker.done, delivery))
        self._tracker.taken(delivery)


def _ranges(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _by_topic(partitions: frozenset[Partition]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for topic, partition in partitions:
        found[topic].add(partition)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}
