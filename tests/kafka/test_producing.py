"""Producing on a real broker: a call ends with everything there, or with an error in time; and the next call works again."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import closing

import pytest
from kafka import KafkaAdminClient
from kafka_server import Broker
from sinks import MakeTopics, producing

from schemas.errors import BrokerError
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import Produced, RecordProducer
from streams.kafka.reading import PartitionReader


async def values(connection: KafkaConnection, topic: str, partitions: int) -> list[list[bytes | None]]:
    """What is on a topic, by partition."""
    reader = PartitionReader(connection)
    await reader.start()
    places = [(topic, number) for number in range(partitions)]
    found: list[list[bytes | None]] = [[] for _ in places]
    try:
        reader.read_from(dict.fromkeys(places, 0))
        ends = sum(one.end for one in (await reader.ranges(places)).values())
        while sum(map(len, found)) < ends:
            for chunk in (await reader.read(10_000, 0.2)).chunks:
                found[chunk.partition] += [record.value for record in chunk.records]
    finally:
        await reader.stop()
    return found


async def served(connection: KafkaConnection) -> None:
    """Return when the broker takes records: one that has just come, or come back, needs a while that is no fault of a producer."""
    async with producing(connection) as other:
        await other.send("exchanges", [(b"k", b"other")])


def test_a_batch_is_where_it_is_said_to_be(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Thousands at once or one by one, records of one key stay in order on the partition that Kafka's own clients give the key."""
    make_topics("exchanges")
    many = [(b"key-%d" % (number % 7), b"%d" % number) for number in range(5_000)]

    async def run() -> None:
        async with producing(kafka) as producer:
            produced = await producer.send("exchanges", many)
            single = [(await producer.send("exchanges", [(key, b"again")]))[0] for key, _ in many[:7]]
            chosen = await producer.send("exchanges", [(b"any", b"there")] * 20, partition=2)
        found = await values(kafka, "exchanges", 3)
        assert [one.partition for one in produced[:7]] == [one.partition for one in single]
        assert {2} == {one.partition for one in chosen}
        assert [value for _, value in many] == [found[one.partition][one.offset] for one in produced]
        assert [produced[place].offset for place in range(0, 5_000, 7)] == sorted(one.offset for one in produced[::7])

    asyncio.run(run())


def test_a_record_that_is_refused_stops_no_other(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """An idempotent client that had one batch refused has a gap in its numbers, at which a broker refuses everything after it."""
    make_topics("exchanges", partitions=1)

    async def run() -> None:
        async with producing(kafka) as producer:
            with pytest.raises(BrokerError, match=f"topic {kafka.topic('exchanges')}: .*MessageSizeTooLarge"):
                await producer.send("exchanges", [(b"k", os.urandom(2_000_000))])
            assert [Produced(0, 0)] == await producer.send("exchanges", [(b"k", b"small")])

    asyncio.run(run())


def test_a_frozen_broker_is_not_waited_for(own_broker: Broker) -> None:
    """A machine that swaps or pauses answers nothing: calls and the stop come to an end all the same, and then it goes on."""
    connection = KafkaConnection(own_broker.bootstrap)
    with closing(KafkaAdminClient(bootstrap_servers=own_broker.bootstrap)) as admin:
        admin.create_topics({"exchanges": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)

    async def run() -> None:
        await served(connection)
        producer = RecordProducer(connection, time_limit=2.0)
        await producer.start()
        own_broker.freeze()
        began = time.monotonic()
        failures = await asyncio.gather(
            *(producer.send("exchanges", [(b"k", b"%d" % number)] * 20) for number in range(5)), return_exceptions=True
        )
        assert [BrokerError] * 5 == [type(one) for one in failures]
        assert time.monotonic() - began < 15
        own_broker.thaw()
        await served(connection)
        assert 0 <= (await producer.send("exchanges", [(b"k", b"last")]))[0].offset
        own_broker.freeze()
        sending = asyncio.create_task(producer.send("exchanges", [(b"k", b"lost")]))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await producer.stop()
        assert time.monotonic() - began < 10
        with pytest.raises(BrokerError):
            await sending
        own_broker.thaw()

    asyncio.run(run())


def test_nobody_there_is_an_error_in_time() -> None:
    """Whoever starts a server or a worker with a wrong address is told so."""

    async def run() -> None:
        with pytest.raises(BrokerError, match="Unable to bootstrap"):
            await RecordProducer(KafkaConnection("127.0.0.1:1"), time_limit=2.0).start()

    asyncio.run(run())
