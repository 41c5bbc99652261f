"""Dead letters on Kafka: read from their topic, and put back by producing the record and then the review that says so.

Killed in between, the letter is open still and goes back again: the record is the same, so whoever reads its topic drops it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from analytics.store import Store
from schemas.codec import encode
from schemas.errors import BrokerError
from streams.admission import DEAD_LETTERS
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import decode_values
from streams.kafka.keys import key_of
from streams.kafka.producing import Message, RecordProducer
from streams.letters import Return

REVIEWS = "reviews"
READ_SECONDS = 30.0
"""How long the broker may say nothing before reading is given up."""


async def keep_letters(connection: KafkaConnection, store: Store) -> None:
    """Append all dead letters and reviews of the topics to a store; BrokerError when they cannot be read.

    A value that is no record is left out: it has a letter of its own from whoever reads the topic for good.
    """
    consumer = AIOKafkaConsumer(**connection.for_aiokafka(), enable_auto_commit=False, isolation_level="read_committed")
    try:
        await consumer.start()
        for topic in (REVIEWS, DEAD_LETTERS):
            await _keep(consumer, connection.topic(topic), topic, store)
    except (KafkaError, TimeoutError) as error:
        words = " ".join(str(error).split()) or f"the broker said nothing for {READ_SECONDS:g} s"
        raise BrokerError(f"topic {connection.topic(DEAD_LETTERS)}: the dead letters cannot be read: {words}") from error
    finally:
        await consumer.stop()


async def _keep(consumer: AIOKafkaConsumer, name: str, topic: str, store: Store) -> None:
    partitions = consumer.partitions_for_topic(name)
    if not partitions:
        raise BrokerError(f"there is no topic {name}", hint="`driftline topics create` makes the topics.")
    places = [TopicPartition(name, number) for number in sorted(partitions)]
    consumer.assign(places)
    ends = await consumer.end_offsets(places)
    await consumer.seek_to_beginning(*places)
    waiting = [place for place in places if await consumer.position(place) < ends[place]]
    while waiting:
        async with asyncio.timeout(READ_SECONDS):
            found = await consumer.getmany(*waiting, timeout_ms=1000)
        values = [record.value or b"" for records in found.values() for record in records]
        await asyncio.to_thread(_append, store, topic, values)
        waiting = [place for place in waiting if await consumer.position(place) < ends[place]]


def _append(store: Store, topic: str, values: Sequence[bytes]) -> None:
    rejected = {one.index for one in decode_values(topic, values).rejected}
    with store.transaction() as transaction:
        transaction.append(topic, [value for place, value in enumerate(values) if place not in rejected], skip_known=True)


async def put_back(producer: RecordProducer, returns: Sequence[Return], now: datetime) -> None:
    """Produce the records, then the reviews that say so; BrokerError when the broker does not have them all."""
    messages: dict[str, list[Message]] = defaultdict(list)
    for one in returns:
        messages[one.topic].append((key_of(one.record), one.message))
    for topic, part in messages.items():
        await producer.send(topic, part)
    reviews = [one.review(now) for one in returns]
    await producer.send(REVIEWS, [(key_of(review), encode(review)) for review in reviews])
