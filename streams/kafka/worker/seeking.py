"""Start positions of a worker's partitions; each has a committed position from then on.

Left to itself, aiokafka asks the leader that it knows for the first record of a partition that never committed, again and again. One that
leads no more only refuses, and nothing is read from that node before the client learns again who leads what.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError
from aiokafka.structs import OffsetAndMetadata

BEGINNING_SECONDS = 5.0
"""Seconds that the leaders of partitions that never committed have to say where those begin."""


async def seek_to_committed(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """Go to what is committed; where nothing is, commit the partition's first offset and go there. Answers where each goes on."""
    if not consumer.assignment():
        return {}
    committed: dict[TopicPartition, int | None] = await consumer.seek_to_committed()
    beginnings = await _beginnings(consumer, [place for place, offset in committed.items() if offset is None])
    positions = {place: offset for place, offset in (committed | beginnings).items() if offset is not None}
    ours = consumer.assignment()
    for place in positions.keys() & ours:
        consumer.seek(place, positions[place])
    if first := {place: OffsetAndMetadata(beginnings[place], "") for place in beginnings.keys() & ours}:
        # Who has joined meanwhile changed the group, and what is assigned then comes here once more.
        with contextlib.suppress(CommitFailedError):
            await consumer.commit(first)
    return positions


async def _beginnings(consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset at which each partition begins.

    It is empty if one has no leader at the moment: the others must not wait for that.
    """
    try:
        async with asyncio.timeout(BEGINNING_SECONDS):
            return dict(await consumer.beginning_offsets(places))
    except (KafkaError, TimeoutError):
        return {}
