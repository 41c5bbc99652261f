"""Reading a segment of a partition with aiokafka: no group, nothing committed to Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from schemas.errors import BrokerError
from streams.kafka import clients
from streams.kafka.connection import KafkaConnection
from streams.replay.plan import Segment

QUIET_SECONDS = 60.0
"""Seconds of silence of the cluster in the middle of a partition that count as an error."""
_POLL_MS = 1000
_FETCH_BYTES = 4 * 1024 * 1024


async def chunks_of(
    connection: KafkaConnection, topic: str, segment: Segment, most: int
) -> AsyncGenerator[tuple[list[ConsumerRecord], int]]:
    """The records of a segment, some at once, and the offset after them; at the end once more without records, for gaps."""
    if segment.start >= segment.end:
        return
    place = TopicPartition(connection.topic(topic), segment.partition)
    async with consumer_of(connection) as consumer:
        consumer.assign([place])
        consumer.seek(place, segment.start)
        loop = asyncio.get_running_loop()
        position, heard_at = segment.start, loop.time()
        while position < segment.end:
            fetched = await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=most)
            records = [one for one in fetched.get(place, ()) if one.offset < segment.end]
            reached = min(await consumer.position(place), segment.end)
            if reached > position:
                position, heard_at = reached, loop.time()
                yield records, position
            elif loop.time() > heard_at + QUIET_SECONDS:
                raise BrokerError(
                    f"{place.topic}/{place.partition}: nothing came from offset {position} on for {QUIET_SECONDS:g} s, {segment.end} is the end",
                )


@asynccontextmanager
async def consumer_of(connection: KafkaConnection) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group; BrokerError when the cluster cannot be reached or refuses."""
    options: dict[str, Any] = {
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "max_partition_fetch_bytes": _FETCH_BYTES,
    }
    consumer = AIOKafkaConsumer(**connection.for_aiokafka() | options)
    try:
        await clients.start(consumer)
        yield consumer
    except KafkaError as error:
        raise BrokerError(f"{connection.bootstrap}: {type(error).__name__}: {error}") from error
    finally:
        await clients.stop(consumer)
