"""Dead letters on Kafka: reading them from their topic, and retrying them by producing the record and then a review.

After a kill in between, the dead letter is still open and is retried again. The record is the same, so readers of its topic drop it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from analytics.store.store import Store
from schemas.codec.single_object import encode
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import decodable
from streams.kafka.encryption import decrypter_of, open_encryption
from streams.kafka.producing import Message, RecordProducer, key_of
from streams.kafka.reading import PartitionReader, RawRecord
from streams.log.admission import DEAD_LETTERS
from streams.log.dead_letters import Retry

REVIEWS = "reviews"


async def copy_dead_letters(connection: KafkaConnection, store: Store) -> None:
    """Append all dead letters and reviews of the topics to a store. Raises BrokerError if they cannot be read.

    A value that is not a record is skipped, because the sink makes a dead letter of it. Dead letters that arrive during the call may be
    missing.
    """
    partitions = await asyncio.to_thread(partitions_on, connection, (DEAD_LETTERS, REVIEWS))
    async with open_encryption(connection) as encryption, PartitionReader(connection, decrypter_of(encryption)) as reader:
        for partition, (beginning, end) in (await reader.ranges(partitions)).items():
            async for records, _ in reader.read_until(partition, beginning, end):
                await asyncio.to_thread(_append, store, partition[0], records)


def _append(store: Store, topic: str, records: Sequence[RawRecord]) -> None:
    with store.transaction() as transaction:
        transaction.append(topic, decodable(topic, records), skip_known=True)


async def produce_retries(producer: RecordProducer, retries: Sequence[Retry], now: datetime) -> None:
    """Produce the records, then the reviews of their dead letters. Raises BrokerError unless the broker acknowledges all of them."""
    messages: dict[str, list[Message]] = defaultdict(list)
    for retry in retries:
        messages[retry.topic].append((key_of(retry.record), retry.message))
    for topic, topic_messages in messages.items():
        await producer.send(topic, topic_messages)
    reviews = [retry.review(now) for retry in retries]
    await producer.send(REVIEWS, [(key_of(review), encode(review)) for review in reviews])
