"""What lies on the topics, read to the end, and how far the workers have come."""

from __future__ import annotations

from typing import NamedTuple, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from chaos.plant import PARTITIONS

from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import GROUP
from streams.topology import TOPOLOGY


class Lying(NamedTuple):
    """A record on a topic."""

    partition: int
    offset: int
    value: bytes | None


async def read(connection: KafkaConnection, topic: str) -> list[Lying]:
    """Every record of a topic, partition by partition, in order."""
    name = connection.topic(topic)
    found: list[Lying] = []
    async with AIOKafkaConsumer(name, **connection.for_aiokafka(), auto_offset_reset="earliest") as consumer:
        places = [TopicPartition(name, partition) for partition in consumer.partitions_for_topic(name) or ()]
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < ends[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [Lying(record.partition, record.offset, record.value) for record in records]
    return sorted(found)


class Sources:
    """How far the workers have come with the topics they read. A context manager; asks as a client that is no member of the group."""

    def __init__(self, connection: KafkaConnection) -> None:
        names = [connection.topic(stage.source) for stage in TOPOLOGY]
        self._places = [TopicPartition(name, partition) for name in names for partition in range(PARTITIONS)]
        group = connection.topic(GROUP)
        self._client = AIOKafkaConsumer(**connection.for_aiokafka(), group_id=group, enable_auto_commit=False)

    async def __aenter__(self) -> Self:
        await self._client.start()
        self._client.assign(self._places)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.stop()

    async def committed(self) -> int:
        """Records that are done, of all partitions together."""
        return sum([await self._client.committed(place) or 0 for place in self._places])

    async def behind(self) -> int:
        """Records that are not."""
        done = await self.committed()  # asked first, for what is done makes more to do
        return sum((await self._client.end_offsets(self._places)).values()) - done
