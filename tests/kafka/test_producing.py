"""Producing on a real broker: a call ends with all records durable or with a timely error, and the next call works."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
from contextlib import closing

import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.conn import AIOKafkaConnection
from kafka import KafkaAdminClient
from support.kafka_brokers import Broker
from support.kafka_sinks import MakeTopics, producing
from support.kafka_workers import eventually

from schemas.errors import BrokerError
from streams.kafka import reading
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import Produced, RecordProducer
from streams.kafka.reading import PartitionReader


async def values(connection: KafkaConnection, topic: str, partitions: int) -> list[list[bytes | None]]:
    """Return a topic's values by partition."""
    reader = PartitionReader(connection)
    await reader.start()
    topic_partitions = [(topic, number) for number in range(partitions)]
    values_by_partition: list[list[bytes | None]] = [[] for _ in topic_partitions]
    try:
        reader.read_from(dict.fromkeys(topic_partitions, 0))
        ends = sum(offset_range.end for offset_range in (await reader.ranges(topic_partitions)).values())
        while sum(map(len, values_by_partition)) < ends:
            for chunk in (await reader.read(10_000, 0.2)).chunks:
                values_by_partition[chunk.partition] += [record.value for record in chunk.records]
    finally:
        await reader.stop()
    return values_by_partition


def test_a_batch_is_at_its_reported_offsets(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """Records of one key stay in order on the partition of Kafka's own clients, sent together or one by one."""
    make_topics("exchanges")
    messages = [(b"key-%d" % (number % 7), b"%d" % number) for number in range(5_000)]

    async def run() -> None:
        async with producing(kafka) as producer:
            produced = await producer.send("exchanges", messages)
            single = [(await producer.send("exchanges", [(key, b"again")]))[0] for key, _ in messages[:7]]
            on_chosen_partition = await producer.send("exchanges", [(b"any", b"there")] * 20, partition=2)
        stored = await values(kafka, "exchanges", 3)
        assert [delivery.partition for delivery in produced[:7]] == [delivery.partition for delivery in single]
        assert {delivery.partition for delivery in on_chosen_partition} == {2}
        stored_values = [stored[delivery.partition][delivery.offset] for delivery in produced]
        assert stored_values == [value for _, value in messages]
        offsets_of_one_key = [delivery.offset for delivery in produced[::7]]
        assert offsets_of_one_key == sorted(offsets_of_one_key)

    asyncio.run(run())


def test_a_record_that_is_refused_stops_no_other(kafka: KafkaConnection, make_topics: MakeTopics) -> None:
    """After a rejected batch, an idempotent client has a gap in its numbers, and the broker rejects all later batches."""
    make_topics("exchanges", partitions=1)

    async def run() -> None:
        async with producing(kafka) as producer:
            with pytest.raises(BrokerError, match=f"topic {kafka.topic('exchanges')}: .*MessageSizeTooLarge"):
                await producer.send("exchanges", [(b"k", os.urandom(2_000_000))])
            assert await producer.send("exchanges", [(b"k", b"small")]) == [Produced(0, 0)]

    asyncio.run(run())


CALL_TIMEOUT = 60.0
"""Seconds within which every call must end, even on a busy machine."""


def make_exchanges(broker: Broker) -> KafkaConnection:
    """Create a topic on the test's own broker."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics({"exchanges": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    return KafkaConnection(broker.bootstrap)


async def send_with_retries(producer: RecordProducer, value: bytes) -> None:
    """Produce with retries, because a thawed broker or a busy machine is slow."""
    async with asyncio.timeout(CALL_TIMEOUT):
        while True:
            with contextlib.suppress(BrokerError):
                await producer.send("exchanges", [(b"k", value)])
                return


def test_a_frozen_broker_is_not_waited_for(own_broker: Broker) -> None:
    """Calls and the stop end in time although the broker is frozen, and work again afterwards."""
    connection = make_exchanges(own_broker)

    async def run() -> None:
        producer = RecordProducer(connection, time_limit=2.0)
        await send_with_retries(producer, b"first")
        own_broker.freeze()
        async with asyncio.timeout(CALL_TIMEOUT):
            failures = await asyncio.gather(
                *(producer.send("exchanges", [(b"k", b"%d" % number)] * 20) for number in range(5)), return_exceptions=True
            )
        assert [type(failure) for failure in failures] == [BrokerError] * 5
        own_broker.thaw()
        await send_with_retries(producer, b"last")
        patient = RecordProducer(connection, time_limit=10 * CALL_TIMEOUT)
        await send_with_retries(patient, b"patient")
        own_broker.freeze()
        sending = asyncio.create_task(patient.send("exchanges", [(b"k", b"lost")]))
        assert patient._client is not None
        accumulator = patient._client._message_accumulator
        await eventually(lambda: bool(accumulator._batches or accumulator._pending_batches), "the record to be on its way")
        async with asyncio.timeout(CALL_TIMEOUT):
            await patient.stop()
            with pytest.raises(BrokerError):
                await sending
            await producer.stop()
        own_broker.thaw()

    asyncio.run(run())


def open_connections() -> list[AIOKafkaConnection]:
    """Return this process's connections to brokers."""
    return [candidate for candidate in gc.get_objects() if isinstance(candidate, AIOKafkaConnection) and candidate.connected()]


def test_a_start_that_is_given_up_leaves_no_connection_open(own_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aiokafka leaks a client's first connection: each try to reach a frozen broker would leave a socket open."""
    look_up = AIOKafkaConnection._do_version_lookup

    async def look_up_last(self: AIOKafkaConnection) -> None:
        await look_up(self)
        own_broker.freeze()

    monkeypatch.setattr(AIOKafkaConnection, "_do_version_lookup", look_up_last)
    monkeypatch.setattr("streams.kafka.producing.TRIES", 0.01)

    async def run() -> list[AIOKafkaConnection]:
        with pytest.raises(BrokerError, match="did not take the records"):
            await RecordProducer(KafkaConnection(own_broker.bootstrap), time_limit=5.0).start()
        return open_connections()

    assert asyncio.run(run()) == []


def test_a_connection_that_is_opened_while_its_client_closes_is_closed(
    own_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of the client may still be connecting to a slow node, and that connection must be closed, too."""
    connection, late = make_exchanges(own_broker), asyncio.Event()
    make = reading.create_conn

    async def make_late(*arguments: object, **options: object) -> AIOKafkaConnection:
        made = await make(*arguments, **options)
        await asyncio.shield(late.wait())
        return made

    async def run() -> list[AIOKafkaConnection]:
        producer = RecordProducer(connection)
        await send_with_retries(producer, b"first")
        client = producer._client
        assert client is not None
        monkeypatch.setattr(reading, "create_conn", make_late)
        context = contextvars.copy_context()
        context.run(reading._task_connections.set, producer._connections)
        connecting = asyncio.create_task(client.client._get_conn(1, group=ConnectionGroup.COORDINATION), context=context)
        await asyncio.sleep(0)
        await producer.stop()
        late.set()
        await connecting
        return open_connections()

    assert asyncio.run(run()) == []


def test_nobody_there_is_an_error_in_time() -> None:
    """A wrong address must be reported when a server or worker starts."""

    async def run() -> None:
        with pytest.raises(BrokerError, match="Unable to bootstrap"):
            await RecordProducer(KafkaConnection("127.0.0.1:1"), time_limit=2.0).start()

    asyncio.run(run())
