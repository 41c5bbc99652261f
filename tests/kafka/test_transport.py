"""The transport: every record reaches its stage, offsets are committed only past what is done, and nothing waits for what is slow."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from kafka_server import Broker
from kafka_workers import (
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

from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.reading import Chunk
from streams.kafka.topics import GROUP
from streams.kafka.worker import offset_tracker
from streams.kafka.worker.membership import Membership
from streams.kafka.worker.offset_tracker import OffsetTracker, split
from streams.kafka.worker.partition_queues import PartitionQueues

MakeTopics = Callable[..., None]
TOPIC = EVENTS.source


class Raw(SimpleNamespace):
    """A record, which can be referred to weakly as well."""


def chunk(first: int, count: int = 10, partition: int = 0, step: int = 1) -> Chunk:
    """A chunk whose records have nothing but offsets."""
    return Chunk(TOPIC, partition, [Raw(offset=first + step * place, key=b"", value=b"12345678") for place in range(count)])


def test_a_gap_in_the_offsets_is_passed_over() -> None:
    """Compaction and transactions leave offsets out; what is done behind them must be committed all the same."""
    tracker = OffsetTracker()
    first, second = tracker.deliver(chunk(0, 10, step=7)), tracker.deliver(chunk(500))
    tracker.done(first)
    assert 64 == tracker.committable((TOPIC, 0))
    tracker.done(second)
    assert 510 == tracker.committable((TOPIC, 0))
    assert tracker.committable((TOPIC, 0)) is None


def test_what_is_under_way_holds_back_what_came_later() -> None:
    """Committing past it would lose it with the process."""
    tracker = OffsetTracker()
    first, second, third = (tracker.deliver(chunk(start)) for start in (0, 10, 20))
    tracker.done(third)
    tracker.done(second)
    assert tracker.committable((TOPIC, 0)) is None
    tracker.done(first)
    assert 30 == tracker.committable((TOPIC, 0))


def test_what_is_done_keeps_no_records_while_it_waits() -> None:
    """One slow judge call holds back the offset for minutes: what others have done meanwhile must not pile up in memory."""
    tracker = OffsetTracker()
    first, *others = (tracker.deliver(chunk(start)) for start in range(0, 100, 10))
    records = [weakref.ref(record) for one in others for record in one.chunk.records]
    for one in others:
        tracker.done(one)
    assert {None} == {record() for record in records}
    tracker.done(first)
    assert 100 == tracker.committable((TOPIC, 0))


def test_a_chunk_that_is_delivered_again_is_another_delivery() -> None:
    """After a rebalance the same records come again while the first delivery may still be at work: its end says nothing of the second."""
    tracker = OffsetTracker()
    before = tracker.deliver(chunk(0))
    tracker.forget([(TOPIC, 0)])
    again = tracker.deliver(chunk(0))
    tracker.done(before)
    assert (False, True) == (before.current, again.current)
    assert tracker.committable((TOPIC, 0)) is None
    tracker.done(again)
    assert 10 == tracker.committable((TOPIC, 0))


def test_a_partition_that_goes_before_its_lane_has_begun_is_taken_up_again() -> None:
    """A task that is cancelled before its first step never runs its end: the partition would stand still for ever."""

    async def run() -> list[int]:
        tracker, stage, failures = OffsetTracker(), Collecting(), list[BaseException]()
        lanes, place = PartitionQueues({TOPIC: stage}, tracker, failures.append), frozenset([(TOPIC, 0)])
        await lanes.assigned(place)
        lanes.put(tracker.deliver(chunk(0)))
        await lanes.revoked(place)
        assert [] == stage.chunks
        tracker.forget(place)
        await lanes.assigned(place)
        lanes.put(tracker.deliver(chunk(0)))
        await eventually(lambda: tracker.committable((TOPIC, 0)) == 10, "the chunk that came again")
        await lanes.stop(1)
        assert not failures
        return stage.seen[0]

    assert list(range(10)) == asyncio.run(run())


def test_a_partition_has_room_for_a_few_chunks_and_another_for_as_many() -> None:
    """Memory is bounded by partition, so a slow one takes none of another's."""
    tracker = OffsetTracker()
    held = [tracker.deliver(chunk(start)) for start in range(0, 10 * offset_tracker.AHEAD, 10)]
    assert (False, True) == (tracker.has_room((TOPIC, 0)), tracker.has_room((TOPIC, 1)))
    tracker.taken(held[0])
    assert tracker.has_room((TOPIC, 0))


@pytest.mark.parametrize(
    ("most", "most_bytes", "expected"), [(4, 1000, [4, 4, 2]), (100, 24, [3, 3, 3, 1]), (100, 1, [1] * 10), (100, 1000, [10])]
)
def test_chunks_are_bounded_in_records_and_in_bytes(most: int, most_bytes: int, expected: list[int]) -> None:
    """Ten records of eight bytes; one that is larger than the limit comes alone."""
    assert expected == [len(part) for part in split(chunk(0).records, most, most_bytes)]


def test_every_record_comes_in_order_and_all_is_committed_to_the_end(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The first thing a transport is for."""
    make_topics(TOPIC)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(5000))
        seen = Collecting()
        async with working(kafka, {EVENTS: seen}):
            await eventually(lambda: seen.count >= 5000, "every record")
            await until_committed(kafka, TOPIC, 3)
        committed, ends = await offsets(kafka, TOPIC, 3)
        assert ends == committed
        assert {number: list(range(end)) for number, end in enumerate(ends)} == dict(seen.seen)

    asyncio.run(run())


def test_each_partition_that_is_assigned_has_a_committed_position(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Of one that has none the client asks whoever it believes to lead it, and reads nothing from that node until it is answered."""
    make_topics(TOPIC)
    places = [TopicPartition(kafka.topic(TOPIC), number) for number in range(3)]

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(20), partition=1)
        held = Collecting(finish=lambda _chunk, _done: None)
        async with working(kafka, {EVENTS: held}) as worker:
            await eventually(lambda: held.count == 20, "the records of one partition")
            assert {(TOPIC, number): 0 for number in range(3)} == worker.consumer.waiting()
        async with reading(kafka, kafka.topic(GROUP)) as consumer:
            assert [0, 0, 0] == [await consumer.committed(place) for place in places]

    asyncio.run(run())


def test_a_stop_commits_what_is_done_and_the_rest_comes_again(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Nothing is lost by a stop, and nothing that is done is done twice."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        await produce(kafka, TOPIC, numbered(100))
        first = Collecting()
        async with working(kafka, {EVENTS: first}):
            await eventually(lambda: first.count == 100, "the first hundred")
        assert ([100], [100]) == await offsets(kafka, TOPIC, 1)
        await produce(kafka, TOPIC, numbered(100, 100))
        never = Collecting(finish=lambda _chunk, _done: None)
        async with working(kafka, {EVENTS: never}, grace=0):
            await eventually(lambda: never.count == 100, "the second hundred")
        assert ([100], [200]) == await offsets(kafka, TOPIC, 1)
        last = Collecting()
        async with working(kafka, {EVENTS: last}):
            await eventually(lambda: last.count == 100, "the second hundred again")
        assert list(range(100, 200)) == never.seen[0] == last.seen[0]
        assert ([200], [200]) == await offsets(kafka, TOPIC, 1)

    asyncio.run(run())


def test_chunks_done_out_of_order_are_committed_in_order(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """The scoring stage takes the next chunk while judges still answer for the last."""
    make_topics(TOPIC, partitions=1)

    async def run() -> None:
        held: list[Callable[[], None]] = []
        seen = Collecting(finish=lambda chunk, done: done() if chunk.first_offset else held.append(done))
        async with working(kafka, {EVENTS: seen}) as worker:
            await produce(kafka, TOPIC, numbered(50))
            await eventually(lambda: seen.count == 50, "the first chunk")
            await produce(kafka, TOPIC, numbered(50, 50))
            await eventually(lambda: seen.count == 100, "the second chunk")
            await worker.consumer.commit()
            assert ([0], [100]) == await offsets(kafka, TOPIC, 1)
            held[0]()
            await until_committed(kafka, TOPIC, 1)

    asyncio.run(run())


def test_records_of_aborted_transactions_do_not_come_and_their_marks_hold_nothing_up(
    kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """Producers in other languages may use transactions; each leaves a mark that takes up an offset."""
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
        seen = Collecting()
        async with working(kafka, {EVENTS: seen}):
            await until_committed(kafka, TOPIC, 1)
        values = [record.value for chunk in seen.chunks for record in chunk.records]
        assert [b"kept"] * 10 + [b"last"] == values

    asyncio.run(run())


def test_a_stage_that_stands_still_stops_neither_another_nor_its_own_other_partitions(
    kafka: KafkaConnection, make_topics: MakeTopics
) -> None:
    """A partition full of slow sessions is that partition's misfortune."""
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
            assert [] == slow.seen[0]
            opened.set()
            await until_committed(kafka, TOPIC, 2)
        assert list(range(1000)) == slow.seen[0]

    asyncio.run(run())


def test_no_record_is_lost_from_one_worker_to_three_and_back(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Each change takes partitions away with chunks outstanding. Records may come again, but all come, and all is committed."""
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
            async with AsyncExitStack() as others:
                for worker in workers[1:]:
                    await others.enter_async_context(working(kafka, {EVENTS: worker}))
                await eventually(lambda: all(worker.count > 100 for worker in workers[1:]), "all three workers")
                assert 6 == sum(len(worker.mine) for worker in workers)
            stop.set()
            await feeding
            await until_committed(kafka, TOPIC, 6)
        _, ends = await offsets(kafka, TOPIC, 6)
        assert sent == sum(ends)
        assert [] == unseen(workers, ends)
        assert 2 <= sum(kind == "revoked" for kind, _ in workers[0].told)

    asyncio.run(run())


def test_what_comes_when_its_partition_has_gone_is_not_taken() -> None:
    """Chunks that the agent still had would be worked on by two processes, and their states written by both; so would those after a stop."""

    async def run() -> Collecting:
        tracker, failures, stage = OffsetTracker(), list[BaseException](), Collecting()
        lanes = PartitionQueues({TOPIC: stage}, tracker, failures.append)
        await lanes.assigned(frozenset({(TOPIC, 0), (TOPIC, 1)}))
        late = [tracker.deliver(Chunk(EVENTS.source, number, [SimpleNamespace(offset=0)])) for number in (0, 1)]
        await lanes.revoked(frozenset({(TOPIC, 0)}))
        for one in late:
            lanes.put(one)
        await eventually(lambda: bool(stage.chunks), "the chunk that is ours")
        await lanes.stop(1)
        await lanes.assigned(frozenset({(TOPIC, 0)}))
        lanes.put(late[0])
        for _ in range(3):
            await asyncio.sleep(0)
        assert [] == failures
        return stage

    assert [1] == [chunk.partition for chunk in asyncio.run(run()).chunks]


def test_a_member_is_sure_of_its_place_only_while_the_broker_answers(own_broker: Broker) -> None:
    """A broker that stood still may have given the partitions away by the time it goes on."""

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
