"""State topics: what a stage keeps of its sessions, in a compacted topic of ours with the partitions of the stage's source.

1. A state is durable before the offset that it covers is committed, so after any kill the records it lacks come again.
2. Of several values of one key the one with the highest next offset counts: a worker that was frozen may write after its successor.
   What is no state (`streams.kafka.state.stored_states`) counts for nothing. Where such a value stands last it would outlive the right one in
   compaction, so the reader that finds it writes the right one again.
3. Where more than a few states go farther than their source has records, they are of another topic of that name, and no worker goes
   on from any of them.
4. What was read of a partition stays on local disk when it is given away. When it comes back, only what is new is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from audit.redaction.redactor import Redactor
from schemas.errors import BrokerError
from streams.kafka import clients
from streams.kafka.connection import KafkaConnection
from streams.kafka.keys import keyed
from streams.kafka.producing import Sender
from streams.kafka.segments import read_until
from streams.kafka.state.local_states import LocalStates
from streams.kafka.state.stored_states import DECODE, ENCODE, StateValues, StoredState
from streams.kafka.topics import state_topic
from streams.kafka.worker.processing import RawRecord
from streams.log.admission import DEAD_LETTERS

MAX_STATE_BYTES = 15_000_000
"""Of one session; the topic takes 16 MiB with everything around it."""
READ_SECONDS = 60.0
"""Seconds that the broker may be silent while states are read."""
log = logging.getLogger(__name__)


_TAKEN_AWAY, _NO_STATE = -1, -2
"""In place of an offset: of a tombstone, after which any state is new, and of what is older than anything."""


class StateTopic:
    """The states of one stage. Belongs to one event loop; `get` may be called from any thread."""

    def __init__(
        self,
        connection: KafkaConnection,
        stage: str,
        producer: Sender,
        local: LocalStates | None = None,
        *,
        source: str | None = None,
        holds: type[Any] | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """`source` is the topic that the stage reads, `holds` the type of the stage's own states; None where that is not looked at.

        `redactor` is for the dead letters of what is no state; without one there are none.
        """
        self.name = state_topic(stage)
        self._connection = connection
        self._source = source
        self._producer = producer
        self._local = local or LocalStates()
        self._values = StateValues(self.name, holds, redactor)
        self.partitions = 0
        """How many partitions the source has; 0 where it is not looked at."""
        self._read: dict[int, int] = {}
        """By partition: the offset in the state topic up to which it was read."""
        self._farthest: dict[int, int] = {}
        """By partition: the offset in the source up to which a state goes that was read."""

    async def load(self, partition: int) -> None:
        """Read what the partition has beyond what was read before; BrokerError when it cannot be read.

        Called before the first records of a partition that was assigned: no other process writes there from then on.
        """
        consumer = AIOKafkaConsumer(
            **self._connection.for_aiokafka(),
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_partition_fetch_bytes=16 * 1024 * 1024,
            fetch_max_bytes=64 * 1024 * 1024,
        )
        place = TopicPartition(self._connection.topic(self.name), partition)
        try:
            await clients.start(consumer)
            end = await self._source_end(consumer, partition)
            self._values.begin(partition, end)
            await self._load(consumer, place)
            self._check(partition, end)
        except (KafkaError, TimeoutError) as error:
            words = " ".join(str(error).split()) or f"the broker said nothing for {READ_SECONDS:g} s"
            raise BrokerError(f"topic {place.topic}, partition {partition}: the states cannot be read: {words}") from error
        finally:
            await clients.stop(consumer)
        if letters := keyed(self._values.letters(partition)):
            await self._producer.send(DEAD_LETTERS, letters)

    async def _source_end(self, consumer: AIOKafkaConsumer, partition: int) -> int | None:
        """Return the end of the source; no state that was written before can go farther."""
        if self._source is None:
            return None
        place = TopicPartition(self._connection.topic(self._source), partition)
        end = int((await consumer.end_offsets([place]))[place])
        self.partitions = len(consumer.partitions_for_topic(place.topic) or ())
        return end

    async def _load(self, consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
        first = (await consumer.beginning_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        start = max(self._read.get(place.partition, 0), first)
        # Not before: a broker answers a question about offsets only after the fetch before it on the same connection, half a second later.
        consumer.assign([place])
        consumer.seek(place, start)
        count, outlived = 0, set[bytes]()
        async for records in read_until(consumer, place, end, READ_SECONDS):
            count += len(records)
            await asyncio.to_thread(self._take_in, place.partition, records, outlived)
        if outlived:
            log.warning(
                "%s, partition %d: %d states were overwritten, such as by a late worker",
                self.name,
                place.partition,
                len(outlived),
            )
            right = await asyncio.to_thread(self._local.get, place.partition, outlived)
            await self._producer.send(self.name, list(right.items()), partition=place.partition)
        self._read[place.partition] = max(end, start)
        if count:
            log.info("%s, partition %d: %d states read", self.name, place.partition, count)

    def _check(self, partition: int, end: int | None) -> None:
        """BrokerError where states go farther than their source: what comes on it now would count as seen."""
        farthest = max(self._farthest.get(partition, 0), self._values.farthest(partition))
        if self._source is not None and end is not None and farthest > end:
            raise BrokerError(
                f"topic {self._connection.topic(self._source)}, partition {partition}, ends at offset {end}, and {self.name} has "
                f"states up to {farthest}: it is not the topic that they were made from, or brokers have lost records",
                hint="Start again under another prefix; or delete the state topics and create them again, and every session starts again.",
            )

    def _take_in(self, partition: int, records: Sequence[RawRecord], outlived: set[bytes]) -> None:
        """Keep the newest values; `outlived` are the keys whose last value so far is not the newest."""
        known = self._local.get(partition, {record.key for record in records if record.key is not None})
        ends = {key: DECODE(value).next_offset for key, value in known.items()}
        newest: dict[bytes, bytes | None] = {}
        for record in records:
            key, value = record.key, record.value
            if key is None:
                continue
            end = _TAKEN_AWAY if value is None else _or_none(self._values.next_offset(partition, record))
            if value is not None and end < ends.get(key, _TAKEN_AWAY):
                outlived.add(key)
                continue
            ends[key], newest[key] = end, value
            outlived.discard(key)
        self._local.put(partition, newest)
        self._farthest[partition] = max(self._farthest.get(partition, 0), *ends.values(), 0)

    def get(self, partition: int, keys: Iterable[str]) -> dict[str, StoredState]:
        """The states of those sessions that have one."""
        found = self._local.get(partition, [key.encode() for key in keys])
        return {key.decode(): DECODE(value) for key, value in found.items()}

    async def save(self, partition: int, states: Mapping[str, StoredState]) -> None:
        """Write states; durable on return. BrokerError when they may not be. `is_too_large` tells what cannot be written."""
        values = {key.encode(): ENCODE(state) for key, state in states.items()}
        if values:
            await self._producer.send(self.name, list(values.items()), partition=partition)
            await asyncio.to_thread(self._local.put, partition, values)

    def close(self) -> None:
        """Take away what is kept on local disk."""
        self._local.close()


def _or_none(next_offset: int | None) -> int:
    return _NO_STATE if next_offset is None else next_offset


def is_too_large(state: StoredState) -> bool:
    """Tell whether the state is larger than a state topic takes."""
    return len(state.state) + len(state.identities) > MAX_STATE_BYTES
