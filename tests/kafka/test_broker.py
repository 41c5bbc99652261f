"""The broker that the tests run on: shared, gone afterwards, and one of its own for what stops and kills it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.kafka.connection import KafkaConnection

TESTS = Path(__file__).parents[1]
USE = """
import sys, brokers
with brokers.broker() as found:
    print(found.bootstrap, flush=True)
    sys.stdin.readline()
"""


async def send(connection: KafkaConnection, *values: bytes) -> None:
    """Produce values to partition 0 of the topic `records`."""
    producer = AIOKafkaProducer(**connection.for_aiokafka(), enable_idempotence=True)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(connection.topic("records"), value, partition=0)
    finally:
        await producer.stop()


async def read(connection: KafkaConnection, count: int) -> list[bytes | None]:
    """The first values of partition 0 of the topic `records`."""
    consumer = AIOKafkaConsumer(**connection.for_aiokafka())
    await consumer.start()
    try:
        partition = TopicPartition(connection.topic("records"), 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(count)]
    finally:
        await consumer.stop()


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.any_broker
def test_what_is_produced_is_read(kafka: KafkaConnection, make_topics: object) -> None:
    """A broker that loses records would fail every other test in ways that are hard to read."""
    make_topics("records", partitions=1)  # type: ignore[operator]
    asyncio.run(send(kafka, b"first", b"second"))

    assert [b"first", b"second"] == asyncio.run(read(kafka, 2))
