"""Workers in a test's own event loop, and what the broker says of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord
from support.clocks import NOW, TickingClock

from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Record
from streams.engine.embedded import StageRunner
from streams.judging.judged_stages import read_no_judgements
from streams.kafka.agents import Worker
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import TextEncryption, decrypter_of
from streams.kafka.partitions import KafkaStage, Membership, PartitionWork
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.reading import Chunk, Decrypter, require_plain
from streams.kafka.stages import ComputingContext
from streams.kafka.states import StateTopic
from streams.kafka.topics import GROUP
from streams.topology import Stage, stage_named

PATIENCE = 300.0
FAST = {"broker_commit_interval": 0.1, "broker_session_timeout": 6.0, "broker_heartbeat_interval": 0.3}
"""Settings under which a rebalance takes little time."""
EVENTS, EXCHANGES = stage_named("diagnosis"), stage_named("intake")
STAGES = (EXCHANGES, EVENTS)
POLICY = Policy()


class Means(Protocol):
    """What a stage opens its partitions with."""

    def open_partition(self, number: int) -> PartitionWork:
        """Open a partition."""
        ...


@dataclass
class Collecting:
    """Records the chunks that it receives. Each chunk waits for its `gate`; `finish` marks it as done."""

    seen: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    chunks: list[Chunk] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Partitions that went away, each as often as it did."""
    gate: Callable[[Chunk], bool] = lambda _: True
    finish: Callable[[Chunk, Callable[[], None]], object] = lambda _, done: done()
    mine: set[int] = field(default_factory=set)

    def open_partition(self, number: int) -> PartitionWork:
        """Record the opened partition."""
        self.mine.add(number)
        return _CollectedPartition(self, number)

    @property
    def count(self) -> int:
        """Return how often each record was received."""
        return sum(map(len, self.seen.values()))


@dataclass
class _CollectedPartition:
    """A partition of `Collecting`."""

    notes: Collecting
    number: int

    async def take(self, chunk: Chunk, on_done: Callable[[], None]) -> None:
        """Record the chunk once the gate is open."""
        assert chunk.partition == self.number
        assert chunk.partition in self.notes.mine
        records = chunk.records
        self.notes.chunks.append(Chunk(chunk.topic, chunk.partition, records))
        await eventually(lambda: self.notes.gate(chunk), "the gate")
        self.notes.seen[chunk.partition] += [record.offset for record in records]
        self.notes.finish(chunk, on_done)

    async def end(self, grace: float) -> None:  # noqa: ARG002 - as the protocol has it
        """Record the end of the partition."""
        self.notes.mine.discard(self.number)
        self.notes.ended.append(self.number)


@asynccontextmanager
async def working(
    connection: KafkaConnection,
    means: Mapping[Stage, Means],
    *,
    foreign: Iterable[KafkaStage] = (),
    grace: float = 5.0,
    membership: Membership | None = None,
    decrypt: Decrypter = require_plain,
    **consumer: object,
) -> AsyncIterator[Worker]:
    """Yield a worker with these stages, stopped at the end."""
    failures: list[BaseException] = []
    stages = [
        KafkaStage(stage.source, of_stage.open_partition, records_at_once=stage.records_at_once)
        for stage, of_stage in means.items()
    ]
    for stage in (*stages, *foreign):
        stage._fail = failures.append
    worker = Worker(connection, [*stages, *foreign], membership=membership, settings=FAST, consumer=consumer, decrypt=decrypt)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace)
    assert failures == []


@asynccontextmanager
async def processing(
    kafka: KafkaConnection,
    stages: Sequence[Stage] = STAGES,
    wrap: Callable[[Stage, Means], Means] = lambda _, one: one,
    encryption: TextEncryption | None = None,
) -> AsyncIterator[Worker]:
    """Yield a worker with the real stages; `wrap` may put a wrapper around each stage."""
    redactor, producer = Redactor(POLICY.redaction), RecordProducer(kafka, encryption=encryption)
    await producer.start()
    runs = StageRunner(POLICY, read_no_judgements, redactor, TickingClock(NOW))
    states = {stage.name: StateTopic(kafka, stage.name, producer, encryption=encryption) for stage in stages}
    means = {
        stage: wrap(
            stage,
            ComputingContext(
                stage=stage,
                runner=runs,
                redactor=redactor,
                producer=producer,
                states=states[stage.name],
            ),
        )
        for stage in stages
    }
    async with working(kafka, means, decrypt=decrypter_of(encryption)) as worker:
        yield worker
    assert worker.app._crash_reason is None
    await producer.stop()
    for topic in states.values():
        topic.close()


def keyed(records: Sequence[Record]) -> list[tuple[bytes, bytes]]:
    """Return records as produced messages."""
    return [(key_of(record), encode(record)) for record in records]


async def eventually(condition: Callable[[], bool], description: str, patience: float = PATIENCE) -> None:
    """Return as soon as the condition holds; if it never does, fail with the description of the condition."""
    ends_at = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < ends_at, f"waited {patience:g} s for {description}"
        await asyncio.sleep(0.01)


async def produce(
    connection: KafkaConnection, topic: str, values: Iterable[tuple[bytes, bytes]], partition: int | None = None
) -> None:
    """Produce to a topic."""
    producer = RecordProducer(connection)
    await producer.start()
    await producer.send(topic, list(values), partition=partition)
    await producer.stop()


def numbered(count: int, start: int = 0) -> list[tuple[bytes, bytes]]:
    """Return messages with distinct keys and values."""
    return [(b"key-%d" % number, b"value-%d" % number) for number in range(start, start + count)]


@asynccontextmanager
async def reading(connection: KafkaConnection, group: str | None = None) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer with manual assignment; with a group, it returns that group's committed offsets."""
    consumer = AIOKafkaConsumer(
        **connection.for_aiokafka(),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def offsets(connection: KafkaConnection, topic: str, partitions: int) -> tuple[list[int], list[int]]:
    """Return the workers' committed offsets, 0 if there is none, and the ends of the partitions."""
    places = [TopicPartition(connection.topic(topic), number) for number in range(partitions)]
    async with reading(connection, connection.topic(GROUP)) as consumer:
        ends = await consumer.end_offsets(places)
        return [await consumer.committed(place) or 0 for place in places], [ends[place] for place in places]


async def until_committed(connection: KafkaConnection, topic: str, partitions: int, patience: float = PATIENCE) -> None:
    """Return when the workers have committed every record of a topic."""
    ends_at = time.monotonic() + patience
    while True:
        committed, ends = await offsets(connection, topic, partitions)
        if committed == ends:
            return
        assert time.monotonic() < ends_at, f"waited {patience:g} s for {topic}: {committed} of {ends} committed"
        await asyncio.sleep(0.1)


async def contents(connection: KafkaConnection, topic: str, partitions: int) -> list[ConsumerRecord[bytes, bytes]]:
    """Return every record of a topic, partition by partition."""
    async with reading(connection) as consumer:
        places = [TopicPartition(connection.topic(topic), number) for number in range(partitions)]
        consumer.assign(places)
        ends, records = await consumer.end_offsets(places), []
        while [place for place in places if await consumer.position(place) < ends[place]]:
            for part in (await consumer.getmany(timeout_ms=200)).values():
                records += part
        return sorted(records, key=lambda record: (record.partition, record.offset))


def unseen(workers: Sequence[Collecting], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Return partition and offset of the records that no worker has seen, if every offset has a record."""
    return [
        (partition, offset)
        for partition, end in enumerate(ends)
        for offset in sorted(set(range(end)).difference(*(worker.seen[partition] for worker in workers)))
    ]
