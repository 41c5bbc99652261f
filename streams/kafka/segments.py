"""Reading one partition up to where it ends now, with a client that belongs to no group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.kafka.worker.processing import RawRecord

POLL_MILLISECONDS = 1000
"""Milliseconds until the client answers that there are no records, which it does for ever while a leader is away."""


async def read_until(
    consumer: AIOKafkaConsumer, place: TopicPartition, end: int, quiet: float
) -> AsyncGenerator[Sequence[RawRecord]]:
    """The records from the client's position up to an offset, some at once, and perhaps more.

    TimeoutError when the position stays where it is for `quiet` seconds.
    """
    async with asyncio.timeout(quiet):
        reached = await consumer.position(place)
    while reached < end:
        position, records = reached, list[RawRecord]()
        async with asyncio.timeout(quiet):
            # Marks of transactions move it on and bring no records.
            while position == reached:
                records = (await consumer.getmany(place, timeout_ms=POLL_MILLISECONDS)).get(place, [])
                position = await consumer.position(place)
        reached = position
        yield records
