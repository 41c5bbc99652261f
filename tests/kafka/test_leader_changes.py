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
"""How long a node is away: longer than the session timeout of a worker in its group."""
BOUND_SECONDS = 120.0
"""How long a partition may take to move again on a busy machine; on an idle one it takes less than 10 s."""
Offsets = dict[tuple[str, int], int]
"""Offsets by topic and partition."""


def session_of(partition: int) -> str:
    """Return a session whose records are on this partition."""
    names = (f"s{number}" for number in range(10_000))
    return next(name for name in names if (murmur2(key_of(build.event(name, 0))) & 0x7FFFFFFF) % PARTITIONS == partition)


SESSIONS = [session_of(partition) for partition in range(PARTITIONS)]


@dataclass
class ProgressRecorder:
    """Runs a stage and records its progress in each partition."""

    means: Means
    topic: str
    reached: Offsets

    def open_partition(self, number: int) -> PartitionWork:
        """Start the work on a partition."""
        return _RecordedPartition(self, (self.topic, number), self.means.open_partition(number))


@dataclass
class _RecordedPartition:
    """A partition of `ProgressRecorder`."""

    recorder: ProgressRecorder
    partition: tuple[str, int]
    work: PartitionWork

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Process the chunk and record when it is done."""
        end = chunk.next_offset

        def record_progress() -> None:
            reached = self.recorder.reached
            reached[self.partition] = max(reached[self.partition], end)
            done()

        await self.work.take(chunk, record_progress)

    async def end(self, grace: float) -> None:
        """Forward the call."""
        await self.work.end(grace)


async def produce_with_retries(producer: RecordProducer, topic: str, records: Sequence[Record]) -> Offsets:
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
            await produce_with_retries(producer, EVENTS.source, [build.event(session, self.counts[session])])
            self.counts[session] += 1
            await asyncio.sleep(0.1)
        await producer.stop()


@dataclass
class Installation:
    """The running parts and their progress."""

    connection: KafkaConnection
    store: Store
    sink: Sink
    done: Offsets

    @classmethod
    @asynccontextmanager
    async def running(cls, connection: KafkaConnection, store: Store) -> AsyncIterator[Installation]:
        """Run two workers and a sink."""
        done: Offsets = defaultdict(int)

        def record_progress(stage: Stage, means: Means) -> Means:
            return ProgressRecorder(means, stage.source, done)

        sink = sink_over(store, connection)
        await sink.start()
        try:
            async with processing(connection, wrap=record_progress), processing(connection, wrap=record_progress):
                yield cls(connection, store, sink, done)
        finally:
            await sink.stop()

    async def measure_progress(self, cause: str, topic: str, records: Sequence[Record]) -> dict[int, float]:
        """Produce records, wait until they are processed and stored, and return the duration by partition."""
        began = time.monotonic()
        producer = RecordProducer(self.connection)
        offsets_by_record = await asyncio.gather(*(produce_with_retries(producer, topic, [record]) for record in records))
        offsets = {partition: offset for offsets in offsets_by_record for partition, offset in offsets.items()}
        assert len(offsets) == PARTITIONS
        seconds: dict[int, float] = {}

        def all_partitions_moved() -> bool:
            for partition, offset in offsets.items():
                number = partition[1]
                position = min(self.done[partition], self.sink.progress.positions[partition])
                if number not in seconds and position > offset:
                    seconds[number] = round(time.monotonic() - began, 1)
            return len(seconds) == PARTITIONS

        await eventually(all_partitions_moved, f"{cause}: all partitions of {topic} to move", BOUND_SECONDS)
        await producer.stop()
        return seconds


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
        leaders = [
            await asyncio.to_thread(cluster.leaders, connection.topic(source)) for source in (EVENTS.source, EXCHANGES.source)
        ]
        led = {leader for leaders_of_topic in leaders for leader in leaders_of_topic.values()}


STOP_NODE: Mapping[str, Callable[[Cluster, int], None]] = {"frozen": Cluster.freeze, "killed": Cluster.kill}
RESUME_NODE: Mapping[str, Callable[[Cluster, int], None]] = {"frozen": Cluster.thaw, "killed": Cluster.start}


@pytest.mark.parametrize("failure", STOP_NODE)
def test_all_partitions_move_on_when_a_leader_goes_away_and_when_it_comes_back(
    cluster: Cluster, replicated_kafka: KafkaConnection, failure: str, record_property: Callable[[str, object], None]
) -> None:
    """A worker that asks the old leader about a partition without a committed offset must not stall for five minutes."""
    with TopicAdministration(replicated_kafka) as administration:
        administration.create(PARTITIONS)

    async def run(store: Store) -> None:
        traffic = Traffic(replicated_kafka)
        async with Installation.running(replicated_kafka, store) as installation:
            async with traffic.flowing():
                await eventually(lambda: all(traffic.counts[session] > 5 for session in SESSIONS), "the traffic to flow")
                node = await coordinator(replicated_kafka)
                stopped = time.monotonic()
                await asyncio.to_thread(STOP_NODE[failure], cluster, node)
                await until_led_by_others(cluster, replicated_kafka, node)
                changed = time.monotonic()
                probes = [build.event(session, 10_000) for session in SESSIONS]
                without = await installation.measure_progress("the leader changed", EVENTS.source, probes)
                await asyncio.sleep(max(0.0, stopped + AWAY_SECONDS - time.monotonic()))
                await asyncio.to_thread(RESUME_NODE[failure], cluster, node)
                more_probes = [build.event(session, 10_001) for session in SESSIONS]
                back, first = await asyncio.gather(
                    installation.measure_progress("the node came back", EVENTS.source, more_probes),
                    # These partitions were empty until now, so they have no committed offset.
                    installation.measure_progress(
                        "the node came back", EXCHANGES.source, [build.exchange(session, 1) for session in SESSIONS]
                    ),
                )
            measured = (
                f"{failure}: other nodes led after {changed - stopped:.1f} s; seconds by partition without the node {without}, "
                f"after its return {back} and {first}"
            )
            record_property("seconds by partition", measured)
            sys.stdout.write(f"{measured}\n")
            await installation.measure_progress("the end", EVENTS.source, [build.closing(session, 1) for session in SESSIONS])
            for stage in (EVENTS, EXCHANGES):
                await until_committed(replicated_kafka, stage.source, PARTITIONS)
            await eventually(lambda: rows(store, "SELECT count(*) FROM diagnoses") == [(PARTITIONS,)], "all to be diagnosed")
        check(store, traffic.counts)

    with Store(None) as store:
        asyncio.run(run(store))


def check(store: Store, counts: Mapping[str, int]) -> None:
    """Assert that nothing was lost or duplicated."""
    events = sorted((session, count + 2) for session, count in counts.items())
    assert events == sorted(rows(store, "SELECT session_id, count(*) FROM log.agent_events GROUP BY ALL"))
    assert events == sorted(rows(store, "SELECT session_id, event_count FROM diagnoses"))
    exchanges = sorted((build.exchange(session, 1).exchange_id,) for session in SESSIONS)
    assert exchanges == sorted(rows(store, "SELECT exchange_id FROM log.exchanges"))
    assert rows(store, "SELECT reason, detail FROM dead_letters") == []
