"""Reading partitions that this process alone reads, from positions it keeps itself: no consumer group, nothing committed to Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from analytics.store.transaction import Partition
from schemas.errors import BrokerError
from streams.kafka import clients
from streams.kafka.connection import KafkaConnection
from streams.kafka.worker.processing import Chunk

WAIT_MILLISECONDS = 50
"""Milliseconds that a broker holds back an empty answer; the partitions that have records wait for that answer, too."""
PARTITION_BYTES = 2 * 1024 * 1024
ANSWER_SECONDS = 10.0
"""Seconds that a broker has to answer about positions."""
REQUEST_MILLISECONDS = 3_000
"""Milliseconds that one node has for such an answer, so that another can be asked."""
log = logging.getLogger(__name__)
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # ten lines a second while a broker is away; what it comes to is told


class Range(NamedTuple):
    """The range of a partition: the position of its first record, and the one after its last."""

    beginning: int
    end: int


@dataclass(frozen=True)
class Read:
    """The result of a read: chunks, and the position to go on from in each of their partitions."""

    chunks: Sequence[Chunk]
    positions: Mapping[Partition, int]


class PartitionReader:
    """See the module; topics are named without prefix. Belongs to one event loop."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._consumer: AIOKafkaConsumer | None = None

    async def start(self) -> None:
        """Connect; BrokerError when no broker answers."""
        options: dict[str, Any] = {
            "group_id": None,
            "enable_auto_commit": False,
            "value_deserializer": clients.as_parsed,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "fetch_max_wait_ms": WAIT_MILLISECONDS,
            "max_partition_fetch_bytes": PARTITION_BYTES,
            "request_timeout_ms": REQUEST_MILLISECONDS,
        }
        consumer = AIOKafkaConsumer(**self._connection.for_aiokafka() | options)
        self._consumer = consumer
        try:
            with told("Kafka"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await clients.start(consumer)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Let go of the brokers."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await clients.stop(consumer)

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these positions on, and no others."""
        consumer = self._started()
        consumer.assign([self._place(one) for one in positions])
        for partition, position in positions.items():
            consumer.seek(self._place(partition), position)

    async def ranges(self, partitions: Sequence[Partition]) -> dict[Partition, Range]:
        """Return the range of each partition; BrokerError if they cannot be read in time."""
        consumer, places = self._started(), [self._place(one) for one in partitions]
        # Of topics that it does not know the client would learn one by one, with a pause after each.
        for topic in {place.topic for place in places}:
            consumer._client.add_topic(topic)  # noqa: SLF001 - there is no public way
        with told("Kafka"):
            async with asyncio.timeout(ANSWER_SECONDS):
                ends = await consumer.end_offsets(places)
                beginnings = await consumer.beginning_offsets(places)
        return {one: Range(beginnings[place], ends[place]) for one, place in zip(partitions, places, strict=True)}

    def partitions_of(self, topic: str) -> list[Partition]:
        """The partitions of a topic that is being read, as far as they are known by now."""
        found = self._started().partitions_for_topic(self._connection.topic(topic)) or ()
        return [(topic, number) for number in sorted(found)]

    async def read(self, most: int, seconds: float) -> Read:
        """Read the records that there are, up to so many; wait so long if there are none.

        OutOfRangeError when a partition has nothing at its position; BrokerError when what came cannot be read.
        """
        consumer = self._started()
        try:
            with told("Kafka"):
                found = await consumer.getmany(timeout_ms=int(seconds * 1000), max_records=most)
                positions = {self._name(place): await consumer.position(place) for place in found}
        except OffsetOutOfRangeError as error:
            raise OutOfRangeError([self._name(place) for place in error.args[0]]) from error
        chunks = [Chunk(*self._name(place), records) for place, records in found.items() if records]
        return Read(chunks, positions)

    async def position(self, partition: Partition) -> int:
        """Return the position from which it goes on in a partition."""
        return int(await self._started().position(self._place(partition)))

    def move(self, partition: Partition, position: int) -> None:
        """Go on elsewhere."""
        self._started().seek(self._place(partition), position)

    def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise BrokerError("Kafka: nothing is read at the moment")
        return self._consumer

    def _place(self, partition: Partition) -> TopicPartition:
        return TopicPartition(self._connection.topic(partition[0]), partition[1])

    def _name(self, place: TopicPartition) -> Partition:
        return place.topic.removeprefix(self._connection.prefix), place.partition


class OutOfRangeError(Exception):
    """Partitions that have nothing at the position from which they were to be read."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        super().__init__(", ".join(f"{topic}/{number}" for topic, number in partitions))
        self.partitions = partitions


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Raise errors of the library as BrokerError; OffsetOutOfRangeError stays as it is."""
    try:
        yield
    except OffsetOutOfRangeError:
        raise
    except TimeoutError as error:
        raise BrokerError(f"{what} does not answer") from error
    except KafkaError as error:
        raise BrokerError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error
