"""One of three brokers stops and returns: all partitions continue within seconds, without loss or duplicates."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.partitioner import murmur2
from support import builders as build
from support.invariants import rows
from support.kafka_brokers import Cluster
from support.kafka_sinks import sink_over
from support.kafka_workers import EVENTS, EXCHANGES, Means, eventually, keyed, processing, until_committed

from analytics.store.store import Store
from schemas.errors import BrokerError
from schemas.records import Record
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import PartitionWork
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.reading import Chunk
from streams.kafka.sink import Sink
from streams.topology import Stage

pytestmark = pytest.mark.slow
PARTITIONS = 6
AWAY_SECONDS = 15.0
"""How long a node is away: longer than a worker stays in its group without a sign of life."""
BOUND_SECONDS = 120.0
"""Within which each partition must move again, on a machine that is busy; on a quiet one it takes less than ten."""
Places = dict[tuple[str, int], int]
"""By topic and partition: an offset."""


def session_of(partition: int) -> str:
    """Return a session whose records are on this partition."""
    names = (f"s{number}" for number in range(10_000))
    return next(name for name in names if (murmur2(key_of(build.event(name, 0))) & 0x7FFFFFFF) % PARTITIONS == partition)


SESSIONS = [session_of(partition) for partition in range(PARTITIONS)]


@dataclass
class Noting:
    """Runs a stage and records its progress in each partition."""

    means: Means
    topic: str
    reached: Places

    def open_partition(self, number: int) -> PartitionWork:
        """Start the work on a partition."""
        return _NotedPartition(self, (self.topic, number), self.means.open_partition(number))


@dataclass
class _NotedPartition:
    """A partition of `Noting`."""

    notes: Noting
    place: tuple[str, int]
    work: PartitionWork

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Process the chunk and record when it is done."""
        end = chunk.next_offset

        def noted() -> None:
            self.notes.reached[self.place] = max(self.notes.reached[self.place], end)
            done()

        await self.work.take(chunk, noted)

    async def end(self, grace: float) -> None:
        """Forward the call."""
        await self.work.end(grace)


async def insist(producer: RecordProducer, topic: str, records: Sequence[Record]) -> Places:
    """Produce with retries; return the offsets of the last records."""
    while True:
        try:
            produced = await producer.send(topic, keyed(records))
        except BrokerError:
            await asyncio.sleep(0.1)
        else:
            return {(topic, delivery.partition): delivery.offset for delivery in produced}


@dataclass
class Traffic:
    """Produces events of a session on each partition."""

    connection: KafkaConnection
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Produce continuously; started records are completed at the end."""
        tasks = [asyncio.create_task(self._flow(session)) for session in SESSIONS]
        try:
            yield
        finally:
            self.stopped.set()
            await asyncio.gather(*tasks)

    async def _flow(self, session: str) -> None:
        producer = RecordProducer(self.connection)
        while not self.stopped.is_set():
            await insist(producer, EVENTS.source, [build.event(session, self.counts[session])])
            self.counts[session] += 1
            await asyncio.sleep(0.1)
        await producer.stop()


@dataclass
class Installation:
    """The running parts and their progress."""

    connection: KafkaConnection
    store: Store
    sink: Sink
    done: Places

    @classmethod
    @asynccontextmanager
    async def at_work(cls, connection: KafkaConnection, store: Store) -> AsyncIterator[Installation]:
        """Run two workers and a sink."""
        done: Places = defaultdict(int)

        def noting(stage: Stage, means: Means) -> Means:
            return Noting(means, stage.source, done)

        sink = sink_over(store, connection)
        await sink.start()
        try:
            async with processing(connection, wrap=noting), processing(connection, wrap=noting):
                yield cls(connection, store, sink, done)
        finally:
            await sink.stop()

    async def moved(self, what: str, topic: str, records: Sequence[Record]) -> dict[int, float]:
        """Produce records, wait until they are processed and stored, and return the duration by partition."""
        began, producer = time.monotonic(), RecordProducer(self.connection)
        parts = await asyncio.gather(*(insist(producer, topic, [record]) for record in records))
        offsets = {place: offset for part in parts for place, offset in part.items()}
        assert len(offsets) == PARTITIONS
        took: dict[int, float] = {}

        def all_moved() -> bool:
            for place, offset in offsets.items():
                if place[1] not in took and min(self.done[place], self.sink.progress.positions[place]) > offset:
                    took[place[1]] = round(time.monotonic() - began, 1)
            return len(took) == PARTITIONS

        await eventually(all_moved, f"{what}: {topic} to move, where {took} did", BOUND_SECONDS)
        await producer.stop()
        return took


async def coordinator(connection: KafkaConnection) -> int:
    """Return the node that coordinates the workers' group; it leads partitions, too."""
    client = AIOKafkaConsumer(**connection.for_aiokafka())
    await client.start()
    try:
        return int(await client._client.coordinator_lookup(0, connection.topic("driftline")))
    finally:
        await client.stop()


async def until_led_by_others(cluster: Cluster, connection: KafkaConnection, node: int) -> None:
    """Wait until the node leads no partition, and each partition has a leader."""
    led = {node}
    while led & {node, -1}:
        found = [await asyncio.to_thread(cluster.leaders, connection.topic(one)) for one in (EVENTS.source, EXCHANGES.source)]
        led = {leader for topic in found for leader in topic.values()}


LEAVE: Mapping[str, Callable[[Cluster, int], None]] = {"frozen": Cluster.freeze, "killed": Cluster.kill}
RETURN: Mapping[str, Callable[[Cluster, int], None]] = {"frozen": Cluster.thaw, "killed": Cluster.start}


@pytest.mark.parametrize("way", LEAVE)
def test_all_partitions_move_on_when_a_leader_goes_away_and_when_it_comes_back(
    cluster: Cluster, copied: KafkaConnection, way: str, record_property: Callable[[str, object], None]
) -> None:
    """A worker that asks the old leader about a partition without a committed offset must not stall for five minutes."""
    with TopicAdministration(copied) as administration:
        administration.create(PARTITIONS)

    async def run(store: Store) -> None:
        traffic = Traffic(copied)
        async with Installation.at_work(copied, store) as installation:
            async with traffic.flowing():
                await eventually(lambda: all(traffic.counts[session] > 5 for session in SESSIONS), "the traffic to flow")
                node = await coordinator(copied)
                left = time.monotonic()
                await asyncio.to_thread(LEAVE[way], cluster, node)
                await until_led_by_others(cluster, copied, node)
                changed = time.monotonic()
                probes = [build.event(session, 10_000) for session in SESSIONS]
                without = await installation.moved("the leader changed", EVENTS.source, probes)
                await asyncio.sleep(max(0.0, left + AWAY_SECONDS - time.monotonic()))
                await asyncio.to_thread(RETURN[way], cluster, node)
                again = [build.event(session, 10_001) for session in SESSIONS]
                back, first = await asyncio.gather(
                    installation.moved("the node came back", EVENTS.source, again),
                    # Nothing was ever on these partitions, so nothing of them was ever committed for what is done.
                    installation.moved(
                        "the node came back", EXCHANGES.source, [build.exchange(session, 1) for session in SESSIONS]
                    ),
                )
            measured = (
                f"{way}: others led after {changed - left:.1f} s; from then on {without}; after it was back {back} and {first}"
            )
            record_property("seconds by partition", measured)
            sys.stdout.write(f"{measured}\n")
            await installation.moved("the end", EVENTS.source, [build.closing(session, 1) for session in SESSIONS])
            for stage in (EVENTS, EXCHANGES):
                await until_committed(copied, stage.source, PARTITIONS)
            await eventually(lambda: rows(store, "SELECT count(*) FROM diagnoses") == [(PARTITIONS,)], "all to be diagnosed")
        check(store, traffic.counts)

    with Store(None) as store:
        asyncio.run(run(store))


def check(store: Store, counts: Mapping[str, int]) -> None:
    """Assert that nothing was lost or duplicated."""
    events = sorted((session, count + 2) for session, count in counts.items())
    assert events == sorted(rows(store, "SELECT session_id, count(*) FROM log.agent_events GROUP BY ALL"))
    assert events == sorted(rows(store, "SELECT session_id, event_count FROM diagnoses"))
    exchanges = sorted((build.exchange(one, 1).exchange_id,) for one in SESSIONS)
    assert exchanges == sorted(rows(store, "SELECT exchange_id FROM log.exchanges"))
    assert rows(store, "SELECT reason, detail FROM dead_letters") == []
