"""The records on the topics, and the progress of the workers."""

from __future__ import annotations

from typing import NamedTuple, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from chaos.plant import PARTITIONS

from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import GROUP
from streams.topology import TOPOLOGY


class RawRecord(NamedTuple):
    """A record on a topic."""

    partition: int
    offset: int
    value: bytes | None


async def read_topic(connection: KafkaConnection, topic: str) -> list[RawRecord]:
    """Return the records of a topic, sorted by partition and offset."""
    name = connection.topic(topic)
    records: list[RawRecord] = []
    async with AIOKafkaConsumer(name, **connection.for_aiokafka(), auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(name, partition) for partition in consumer.partitions_for_topic(name) or ()]
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for fetched in (await consumer.getmany(timeout_ms=200)).values():
                records += [RawRecord(record.partition, record.offset, record.value) for record in fetched]
    return sorted(records)


class Sources:
    """The progress of the workers in their source topics; a context manager whose client does not join their group."""

    def __init__(self, connection: KafkaConnection) -> None:
        names = [connection.topic(stage.source) for stage in TOPOLOGY]
        self._partitions = [TopicPartition(name, partition) for name in names for partition in range(PARTITIONS)]
        group = connection.topic(GROUP)
        self._client = AIOKafkaConsumer(**connection.for_aiokafka(), group_id=group, enable_auto_commit=False)

    async def __aenter__(self) -> Self:
        await self._client.start()
        self._client.assign(self._partitions)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.stop()

    async def committed(self) -> int:
        """Return the number of committed records in all partitions."""
        return sum([await self._client.committed(partition) or 0 for partition in self._partitions])

    async def behind(self) -> int:
        """Return the number of records that are not committed."""
        done = await self.committed()  # read before the end offsets, because committed records produce new ones
        return sum((await self._client.end_offsets(self._partitions)).values()) - done
