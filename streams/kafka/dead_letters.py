"""Dead letters on Kafka: read from their topic, and put back by producing the record and then the review that says so.

Killed in between, the letter is open still and goes back again: the record is the same, so readers of its topic drop it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, KafkaError

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import BrokerError
from streams.kafka import clients
from streams.kafka.connection import KafkaConnection
from streams.kafka.keys import key_of
from streams.kafka.producing import Message, RecordProducer
from streams.kafka.segments import read_until
from streams.kafka.values.decoding import decodable
from streams.kafka.worker.processing import RawRecord
from streams.log.admission import DEAD_LETTERS
from streams.log.dead_letters import Return

REVIEWS = "reviews"
READ_SECONDS = 30.0
"""Seconds of silence of the broker after which reading is given up."""


async def keep_letters(connection: KafkaConnection, store: Store) -> None:
    """Append all dead letters and reviews of the topics to a store; BrokerError when they cannot be read.

    A value that is no record is left out: the reader of the topic writes a letter of its own for it.
    """
    names = {connection.topic(topic): topic for topic in (DEAD_LETTERS, REVIEWS)}
    try:
        async with _started(connection) as consumer:
            missing = names.keys() - await consumer.topics()
        if missing:
            words = f"there is no topic {' and none '.join(sorted(missing))}"
            raise BrokerError(words, hint="`driftline topics create` makes the topics.")
        async with _started(connection, *names) as consumer:
            await _keep(consumer, names, store)
    except KafkaConnectionError as error:
        raise BrokerError(
            f"Kafka at {connection.bootstrap}: no broker answers, so the dead letters cannot be read",
            hint="Check address, security and login (DRIFTLINE_KAFKA…), and that the brokers run.",
        ) from error
    except (KafkaError, TimeoutError) as error:
        words = " ".join(str(error).split()) or f"the broker said nothing for {READ_SECONDS:g} s"
        raise BrokerError(f"topic {connection.topic(DEAD_LETTERS)}: the dead letters cannot be read: {words}") from error


@contextlib.asynccontextmanager
async def _started(connection: KafkaConnection, *topics: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of all partitions of topics that are there: asked for others it would wait for them."""
    # Not a seek: the consumer looks for where to begin as soon as it starts, and would overwrite it.
    options = {"group_id": None, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer = AIOKafkaConsumer(*topics, **connection.for_aiokafka(), **options)
    try:
        async with asyncio.timeout(READ_SECONDS):
            await clients.start(consumer)
        yield consumer
    finally:
        await clients.stop(consumer)


async def _keep(consumer: AIOKafkaConsumer, names: Mapping[str, str], store: Store) -> None:
    """Read what there is at the beginning of this; what comes meanwhile may be left for the next time."""
    async with asyncio.timeout(READ_SECONDS):
        ends = await consumer.end_offsets(sorted(consumer.assignment()))
    for place, end in ends.items():
        async for records in read_until(consumer, place, end, READ_SECONDS):
            await asyncio.to_thread(_append, store, names[place.topic], records)


def _append(store: Store, topic: str, records: Sequence[RawRecord]) -> None:
    with store.transaction() as transaction:
        transaction.append(topic, decodable(topic, records), skip_known=True)


async def put_back(producer: RecordProducer, returns: Sequence[Return], now: datetime) -> None:
    """Produce the records, then the reviews that say so; BrokerError when the broker does not have them all."""
    messages: dict[str, list[Message]] = defaultdict(list)
    for one in returns:
        messages[one.topic].append((key_of(one.record), one.message))
    for topic, part in messages.items():
        await producer.send(topic, part)
    reviews = [one.review(now) for one in returns]
    await producer.send(REVIEWS, [(key_of(review), encode(review)) for review in reviews])
