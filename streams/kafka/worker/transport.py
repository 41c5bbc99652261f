"""A transport for Faust that hands agents one message for each chunk of a partition, where Faust's own hands over each record.

It replaces four parts of Faust's aiokafka driver, and nothing else: how records become messages (the drain), which offsets may be
committed (the book of deliveries), how the client is set up (read_committed, our connection), and the producer, which idles: stages
produce through `streams.kafka.producing`. Group membership, rebalancing and the timing of commits stay Faust's. Topics are declared
without acks, so Faust's own account of single offsets is empty and has no say.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import aiokafka
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.transport.drivers import aiokafka as driver
from faust.transport.producer import Producer
from faust.types import TP, ConsumerMessage, Message

from streams.kafka import reading
from streams.kafka.connection import KafkaConnection
from streams.kafka.reading import Chunk, RawRecord
from streams.kafka.worker.membership import Membership
from streams.kafka.worker.offset_tracker import OffsetTracker, Partition, split
from streams.kafka.worker.partition_queues import PartitionQueues

FETCH_BYTES = 16 * 1024 * 1024
"""Of one partition in one answer of the broker; a larger record comes alone."""
CHUNK_BYTES = 32 * 1024 * 1024
"""In one chunk, uncompressed; a larger record is a chunk of its own."""
IDLE_SECONDS = 0.5
"""Seconds that a fetch waits for records if every partition could take some."""
BUSY_SECONDS = 0.02
"""Seconds that it waits if one could not: it is looked after again as soon as it can."""
BEGINNING_SECONDS = 5.0
"""Seconds that the leaders of partitions that never committed have to say where those begin."""
TOLD_SECONDS = 30.0
"""Seconds for which a partition counts as read to its end after its leader said so, which it does twice a second."""


QUIET = "debug"
"""Level at which a service of Faust's says that it starts and stops."""


@dataclass(frozen=True, kw_only=True)
class TransportHooks:
    """The objects that our side hands to the transport."""

    connection: KafkaConnection
    queues: PartitionQueues
    tracker: OffsetTracker
    chunk_records: Mapping[str, int]
    """Records a chunk may have, by topic (without prefix)."""
    membership: Membership
    foreign: Collection[str] = ()
    """Topics of other programs, whose names have no prefix."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For aiokafka's consumer, over what is set here."""

    def place(self, tp: TP) -> Partition:
        """The partition by our name of its topic."""
        ours = tp.topic not in self.foreign
        return tp.topic.removeprefix(self.connection.prefix) if ours else tp.topic, tp.partition

    def topic(self, name: str) -> str:
        """The name on the cluster of a topic by our name."""
        return name if name in self.foreign else self.connection.topic(name)


class BatchConsumerThread(driver.AIOKafkaConsumerThread):
    """Runs the client in a thread of its own, so that heartbeats go on whatever the stages do."""

    mundane_level = QUIET

    async def on_start(self) -> None:
        """Start the client, and hear of its place in the group."""
        with reading.noting(self):
            await super().on_start()
        transport = cast("BatchTransport", self.transport)
        transport.hooks.membership.watch(self._ensure_consumer()._coordinator)  # noqa: SLF001 - see `Membership.watch`

    async def on_thread_stop(self) -> None:
        """Stop the client, and close what it leaves open."""
        try:
            await super().on_thread_stop()
        finally:
            reading.close(self)

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        conf, hooks = self.app.conf, cast("BatchTransport", transport).hooks
        # Faust's own assignor takes part where there are tables only, and its choice expects this attribute.
        self._assignor = RoundRobinPartitionAssignor
        options: dict[str, Any] = {
            "client_id": conf.broker_client_id,
            "group_id": conf.id,
            "partition_assignment_strategy": [RoundRobinPartitionAssignor],
            "enable_auto_commit": False,
            "value_deserializer": reading.as_parsed,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": FETCH_BYTES,
            "max_poll_interval_ms": int((conf.broker_max_poll_interval or 0) * 1000),
            "session_timeout_ms": int(conf.broker_session_timeout * 1000),
            "heartbeat_interval_ms": int(conf.broker_heartbeat_interval * 1000),
            "rebalance_timeout_ms": int(conf.broker_rebalance_timeout * 1000),
        }
        return aiokafka.AIOKafkaConsumer(**options | hooks.connection.for_aiokafka() | dict(hooks.options))

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Go to what is committed; where nothing is, that is the partition's first record from now on."""
        return cast("Mapping[TP, int]", await self.call_thread(_seek_to_committed, self._ensure_consumer()))

    def unfetched(self, tp: TP) -> int | None:
        """Return the number of records of a partition not fetched yet; None if its leader has not said so of late."""
        consumer: Any = self._ensure_consumer()
        subscription = consumer._subscription.subscription  # noqa: SLF001 - the client says it nowhere else
        assignment = subscription and subscription.assignment
        state = assignment.state_value(tp) if assignment and tp in assignment.tps else None
        if state is None or not state.has_valid_position or state.lso is None:
            return None
        left = max(0, int(state.lso) - int(state.position))
        return left if left or time.time() - state.timestamp / 1000 < TOLD_SECONDS else None


class BatchConsumer(driver.Consumer):
    """Yields one message for each chunk; its value is the delivery that stands in the book."""

    mundane_level = QUIET

    def _new_consumer_thread(self) -> BatchConsumerThread:
        return BatchConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def hooks(self) -> TransportHooks:
        """Our side."""
        return cast("BatchTransport", self.transport).hooks

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._held: dict[TP, deque[Sequence[RawRecord]]] = {}
        self._fetching = asyncio.Lock()
        self._era = 0
        super().__init__(*arguments, **options)

    def waiting(self) -> dict[Partition, int | None]:
        """Records that could be given to a stage and were not yet, by partition; None where that is not known, and should be.

        While the group does not answer either, that cannot be known, and another process could not do better.
        """
        if not self.flow_active:
            return {}
        unknown = None if self.hooks.membership.is_sure() else 0
        found: dict[Partition, int | None] = {}
        for tp in self._get_active_partitions():
            place, held = self.hooks.place(tp), sum(map(len, self._held.get(tp, ())))
            if self.hooks.tracker.has_room(place):
                left = cast("BatchConsumerThread", self._thread).unfetched(tp)
                found[place] = held + left if left is not None else held or unknown
        return found

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch and deliver until the consumer stops; what is called by Faust's fetcher."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                if not self.flow_active:
                    await self.can_resume_flow.wait()
                    continue
                for message in self._messages():
                    await self.callback(message)
                await self._fetch()
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    def _messages(self) -> Iterator[Message]:
        """Turn what was fetched into messages, as far as partitions have room."""
        era = self._era
        for tp in list(self._held):
            while self._era == era and self._held[tp] and self.hooks.tracker.has_room(self.hooks.place(tp)):
                yield self._message(tp, self._held[tp].popleft())
            if self._era != era:
                return
            if not self._held[tp]:
                del self._held[tp]

    def _message(self, tp: TP, records: Sequence[RawRecord]) -> Message:
        topic, partition = self.hooks.place(tp)
        delivery, first = self.hooks.tracker.deliver(Chunk(topic, partition, records)), records[0]
        return ConsumerMessage(
            topic=tp.topic,
            partition=tp.partition,
            offset=first.offset,
            timestamp=first.timestamp / 1000,
            timestamp_type=0,
            headers=None,
            key=None,
            value=cast("Any", delivery),
            checksum=None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def _fetch(self) -> None:
        """Fetch for the partitions that have room and of which nothing is held; wait for one where there is none."""
        tracker, hooks = self.hooks.tracker, self.hooks
        tracker.changed.clear()
        mine = set(self._get_active_partitions())
        free = {tp for tp in mine if tp not in self._held and tracker.has_room(hooks.place(tp))}
        if not free:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(tracker.changed.wait(), IDLE_SECONDS)
            return
        era = self._era
        async with self._fetching:
            fetched = await self._getmany(free, timeout=IDLE_SECONDS if free == mine else BUSY_SECONDS)
        if self._era != era:
            return  # the partitions were sought to another place meanwhile, and these records come again
        for key, records in (fetched or {}).items():
            tp = TP(key.topic, key.partition)
            topic, _ = hooks.place(tp)
            self._held[tp] = deque(split(records, hooks.chunk_records[topic], CHUNK_BYTES))

    def _forget(self, partitions: Iterable[TP] | None = None) -> None:
        """Drop what was fetched of these partitions, or of all, and what of it is under way."""
        self._era += 1
        for tp in list(self._held) if partitions is None else partitions:
            self._held.pop(tp, None)
        self.hooks.tracker.forget(None if partitions is None else map(self.hooks.place, partitions))

    def _reset_state(self) -> None:
        super()._reset_state()
        self._forget()

    async def perform_seek(self) -> None:
        """Go back to what is committed, everywhere; a fetch that is under way ends first, and counts for nothing."""
        self._forget()
        async with self._fetching:
            await super().perform_seek()

    async def seek(self, partition: TP, offset: int) -> None:
        """Go to another place in one partition."""
        self._forget([partition])
        async with self._fetching:
            await super().seek(partition, offset)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Let the stages end what they do there, commit what is done, and forget the rest."""
        self.stop_flow()
        await self.hooks.queues.revoked(frozenset(map(self.hooks.place, revoked)))
        await self.commit()
        self._forget()
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Tell the stages before the first record comes. No heartbeat is sent meanwhile, so they only take note."""
        await self.hooks.queues.assigned(frozenset(map(self.hooks.place, assigned)))
        await super().on_partitions_assigned(assigned, generation_id)

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        for topic, partition in self.hooks.tracker.partitions():
            tp = TP(self.hooks.topic(topic), partition)
            if topics is None or tp in topics or tp.topic in topics:
                yield tp

    def _new_offset(self, tp: TP) -> int | None:
        return self.hooks.tracker.committable(self.hooks.place(tp))

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust would warn of partitions where nothing comes; `streams.kafka.worker.watchdog` looks after that."""


class IdleProducer(Producer):
    """Faust wants a producer; nothing is sent through this one."""

    mundane_level = QUIET

    async def flush(self) -> None:
        """Nothing waits."""


class BatchTransport(driver.Transport):
    """The transport; assign it to `app.transport` before the app starts."""

    Consumer = BatchConsumer
    Producer = IdleProducer

    def __init__(self, url: Any, app: Any, hooks: TransportHooks) -> None:
        super().__init__(url, app)
        self.hooks = hooks


async def _seek_to_committed(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """Go to what is committed; where nothing is, commit the partition's first offset and go there. Answers where each goes on.

    Left to itself, aiokafka asks the leader that it knows for the first record of a partition that never committed, again and again. One
    that leads no more only refuses, and nothing is read from that node before the client learns again who leads what.
    """
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
