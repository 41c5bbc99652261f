"""The transport: every record reaches its stage, only finished offsets are committed, and slow partitions delay no other."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from support.kafka_brokers import Broker
from support.kafka_workers import (
    EVENTS,
    EXCHANGES,
    Collecting,
    eventually,
    numbered,
    offsets,
    produce,
    reading,
    unseen,
    until_committed,
    working,
)

from streams.kafka import partitions
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import DeliveredChunk, KafkaStage, Membership, WorkedPartition, split
from streams.kafka.topics import GROUP

MakeTopics = Callable[..., None]
TOPIC = EVENTS.source


class Raw(SimpleNamespace):
    """A record that supports weak references."""


def records(first: int, count: int = 10, step: int = 1) -> list[Raw]:
    """Return records with offsets only."""
    return [Raw(offset=first + step * place, key=b"", value=b"12345678") for place in range(count)]


def stage_of(notes: Collecting, fail: Callable[[BaseException], None] = lambda _: None) -> KafkaStage:
    """Return a stage with two partitions."""
    stage = KafkaStage(TOPIC, notes.open_partition, records_at_once=100, fail=fail)
    stage.assign([0, 1])
    return stage


def delivered(partition: WorkedPartition, of_chunk: list[Raw]) -> DeliveredChunk:
    """Return a delivered chunk."""
    partition.fetch(of_chunk)
    (chunk,) = partition.deliver()
    partition.waiting -= 1
    return chunk


def test_a_gap_in_the_offsets_is_skipped() -> None:
    """Compaction and transactions leave gaps, which must not block the committed offset."""
    partition = stage_of(Collecting()).partitions[0]
    first, second = delivered(partition, records(0, step=7)), delivered(partition, records(500))
    first.done()
    assert partition.committable() == 64
    second.done()
    assert partition.committable() == 510
    assert partition.committable() is None


def test_a_running_chunk_holds_back_later_offsets() -> None:
    """Committing past a running chunk would lose it if the process died."""
    partition = stage_of(Collecting()).partitions[0]
    first, second, third = (delivered(partition, records(start)) for start in (0, 10, 20))
    third.done()
    second.done()
    assert partition.committable() is None
    first.done()
    assert partition.committable() == 30


def test_a_finished_chunk_keeps_no_records_while_it_waits() -> None:
    """A slow judge call holds back the offset for minutes; finished chunks must not fill the memory meanwhile."""
    partition = stage_of(Collecting()).partitions[0]
    first, *other_chunks = (delivered(partition, records(start)) for start in range(0, 100, 10))
    references = [weakref.ref(record) for chunk in other_chunks for record in chunk.records]
    for chunk in other_chunks:
        chunk.done()
    assert {record() for record in references} == {None}
    first.done()
    assert partition.committable() == 100


def test_a_finished_chunk_of_a_revoked_partition_is_ignored() -> None:
    """After a rebalance the same records may be delivered again while the first delivery runs: its end must not count."""
    stage = stage_of(Collecting())
    before = delivered(stage.partitions[0], records(0))
    stage.forget()
    stage.assign([0])
    redelivered = delivered(stage.partitions[0], records(0))
    before.done()
    assert stage.partitions[0].committable() is None
    redelivered.done()
    assert stage.partitions[0].committable() == 10


def test_the_limit_of_chunks_is_per_partition() -> None:
    """The limit is per partition, so a slow one does not use up another's."""

    async def run() -> None:
        stage = stage_of(Collecting())
        slow, other = stage.partitions[0], stage.partitions[1]
        for start in range(0, 10 * partitions.AHEAD + 10, 10):
            slow.fetch(records(start))
        delivered_chunks = list(slow.deliver())
        assert len(delivered_chunks) == partitions.AHEAD
        assert slow.fetched == 10
        assert slow.has_room is False
        assert other.has_room is True
        await stage.run(delivered_chunks[0])
        assert slow.has_room
        assert stage.changed.is_set()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("most", "most_bytes", "expected"), [(4, 1000, [4, 4, 2]), (100, 24, [3, 3, 3, 1]), (100, 1, [1] * 10), (100, 1000, [10])]
)
def test_chunks_are_bounded_in_records_and_bytes(most: int, most_bytes: int, expected: list[int]) -> None:
    """Ten records of eight bytes; a record above the limit is a chunk of its own."""
    assert [len(part) for part in split(records(0), most, most_bytes)] == expected


def test_every_record_is_delivered_in_order_and_committed(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """This is the basic task of a transport."""
    make_topics(TOPIC)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(5000))
        stage = Collecting()
        async with working(kafka, {EVENTS: stage}):
            await eventually(lambda: stage.count >= 5000, "every record")
            await until_committed(kafka, TOPIC, 3)
        committed, ends = await offsets(kafka, TOPIC, 3)
        assert ends == committed
        assert dict(stage.seen) == {number: list(range(end)) for number, end in enumerate(ends)}

    asyncio.run(run())


def test_each_assigned_partition_has_a_committed_position(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Without one, the client asks the presumed leader, and reads nothing from that node until it answers."""
    make_topics(TOPIC)
    places = [TopicPartition(kafka.topic(TOPIC), number) for number in range(3)]

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(20), partition=1)
        stage = Collecting(finish=lambda _chunk, _done: None)
        async with working(kafka, {EVENTS: stage}) as worker:
            await eventually(lambda: stage.count == 20, "the records of one partition")
            assert worker.consumer.waiting() == {(TOPIC, number): 0 for number in range(3)}
        async with reading(kafka, kafka.topic(GROUP)) as consumer:
            assert [await consumer.committed(place) for place in places] == [0, 0, 0]

    asyncio.run(run())


def test_a_stop_commits_finished_work_and_repeats_the_rest(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A stop neither loses nor repeats finished work."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(100))
        first = Collecting()
        async with working(kafka, {EVENTS: first}):
            await eventually(lambda: first.count == 100, "the first hundred")
        assert await offsets(kafka, TOPIC, 1) == ([100], [100])
        await produce(kafka, TOPIC, numbered(100, 100))
        never = Collecting(finish=lambda _chunk, _done: None)
        async with working(kafka, {EVENTS: never}, grace=0):
            await eventually(lambda: never.count == 100, "the second hundred")
        assert await offsets(kafka, TOPIC, 1) == ([100], [200])
        last = Collecting()
        async with working(kafka, {EVENTS: last}):
            await eventually(lambda: last.count == 100, "the second hundred again")
        assert never.seen[0] == last.seen[0] == list(range(100, 200))
        assert await offsets(kafka, TOPIC, 1) == ([200], [200])

    asyncio.run(run())


def test_chunks_finished_out_of_order_are_committed_in_order(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The scoring stage starts a chunk while judges still work on the previous one."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        pending: list[Callable[[], None]] = []
        stage = Collecting(finish=lambda chunk, done: done() if chunk.first_offset else pending.append(done))
        async with working(kafka, {EVENTS: stage}) as worker:
            await produce(kafka, TOPIC, numbered(50))
            await eventually(lambda: stage.count == 50, "the first chunk")
            await produce(kafka, TOPIC, numbered(50, 50))
            await eventually(lambda: stage.count == 100, "the second chunk")
            await worker.consumer.commit()
            assert await offsets(kafka, TOPIC, 1) == ([0], [100])
            pending[0]()
            await until_committed(kafka, TOPIC, 1)

    asyncio.run(run())


def test_aborted_transactions_are_skipped_with_their_markers(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Producers may use transactions, whose markers take up offsets."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        producer = AIOKafkaProducer(**kafka.for_aiokafka(), transactional_id=kafka.topic("transactions"))
        await producer.start()
        for number in range(20):
            await producer.begin_transaction()
            await producer.send(kafka.topic(TOPIC), b"kept" if number % 2 else b"dropped", partition=0)
            await (producer.commit_transaction() if number % 2 else producer.abort_transaction())
        await producer.stop()
        await produce(kafka, TOPIC, [(b"", b"last")])
        stage = Collecting()
        async with working(kafka, {EVENTS: stage}):
            await until_committed(kafka, TOPIC, 1)
        values = [record.value for chunk in stage.chunks for record in chunk.records]
        assert values == [b"kept"] * 10 + [b"last"]

    asyncio.run(run())


def test_a_blocked_partition_delays_no_other(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """A partition with slow sessions must not delay others."""
    make_topics(TOPIC, EXCHANGES.source, partitions=2)

    async def run() -> None:
        opened = asyncio.Event()
        slow = Collecting(gate=lambda chunk: chunk.partition == 1 or opened.is_set())
        other = Collecting()
        for _ in range(5):
            await produce(kafka, TOPIC, numbered(200), partition=0)
        async with working(kafka, {EVENTS: slow, EXCHANGES: other}, max_partition_fetch_bytes=1000):
            await eventually(lambda: bool(slow.chunks), "the slow partition to begin")
            for _ in range(5):
                await produce(kafka, TOPIC, numbered(100), partition=1)
                await produce(kafka, EXCHANGES.source, numbered(100))
            await eventually(lambda: len(slow.seen[1]) == 500, "the other partition")
            await eventually(lambda: other.count == 500, "the other stage")
            assert slow.seen[0] == []
            opened.set()
            await until_committed(kafka, TOPIC, 2)
        assert slow.seen[0] == list(range(1000))

    asyncio.run(run())


def test_no_record_is_lost_while_workers_join_and_leave(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Each change revokes partitions with open chunks. Records may be delivered again, but all arrive, and all are committed."""
    make_topics(TOPIC, partitions=6)

    async def run() -> None:
        workers = [Collecting(finish=lambda _, done: asyncio.get_running_loop().call_later(0.2, done)) for _ in range(3)]
        stop, sent = asyncio.Event(), 0

        async def feed() -> None:
            nonlocal sent
            while not stop.is_set():
                await produce(kafka, TOPIC, numbered(60, sent))
                sent += 60
                await asyncio.sleep(0.01)

        async with AsyncExitStack() as stack:
            feeding = asyncio.create_task(feed())
            await stack.enter_async_context(working(kafka, {EVENTS: workers[0]}))
            await eventually(lambda: workers[0].count > 100, "the first worker")
            async with AsyncExitStack() as other_workers:
                for worker in workers[1:]:
                    await other_workers.enter_async_context(working(kafka, {EVENTS: worker}))
                await eventually(lambda: all(worker.count > 100 for worker in workers[1:]), "all three workers")
                assert sum(len(worker.mine) for worker in workers) == 6
            stop.set()
            await feeding
            await until_committed(kafka, TOPIC, 6)
        _, ends = await offsets(kafka, TOPIC, 6)
        assert sent == sum(ends)
        assert unseen(workers, ends) == []
        assert len(workers[0].ended) >= 12, "each of two changes took all away"

    asyncio.run(run())


def test_records_of_a_revoked_partition_are_dropped() -> None:
    """Otherwise two processes would work on these chunks and write their states; the same holds after a stop."""

    async def run() -> Collecting:
        notes, failures = Collecting(), list[BaseException]()
        stage = stage_of(notes, failures.append)
        late = [delivered(partition, records(0)) for partition in stage.partitions.values()]
        await stage.partitions[0].end(1)
        for chunk in late:
            await stage.run(chunk)
        await stage.stop(1)
        stage.assign([0])
        await stage.run(delivered(stage.partitions[0], records(0)))
        assert failures == []
        return notes

    assert [chunk.partition for chunk in asyncio.run(run()).chunks] == [1]


def test_a_slow_chunk_is_abandoned_when_its_partition_is_revoked() -> None:
    """The agent itself must continue: Faust would restart a cancelled one beside that of the partition's next owner."""

    async def run() -> None:
        notes, failures = Collecting(gate=lambda _: False), list[BaseException]()
        stage = stage_of(notes, failures.append)
        agent = asyncio.create_task(stage.run(delivered(stage.partitions[0], records(0))))
        await eventually(lambda: bool(notes.chunks), "the chunk to be taken")
        await stage.end(0)
        await agent
        assert failures == []
        assert stage.partitions[0].committable() is None
        assert dict(notes.seen) == {}

    asyncio.run(run())


def test_a_member_owns_its_partitions_only_while_the_broker_answers(own_broker: Broker) -> None:
    """A frozen broker may have reassigned the partitions when it continues."""

    async def run() -> None:
        connection = KafkaConnection(own_broker.bootstrap)
        with TopicAdministration(connection) as administration:
            administration.create(1)
        membership = Membership(1.0)
        assert not membership.is_sure()
        async with working(connection, {EVENTS: Collecting()}, membership=membership, heartbeat_interval_ms=200):
            await eventually(membership.is_sure, "the worker to join")
            own_broker.freeze()
            await eventually(lambda: not membership.is_sure(), "the last sign of life to grow old")
            own_broker.thaw()
            await eventually(membership.is_sure, "a heartbeat to be answered")

    asyncio.run(run())
