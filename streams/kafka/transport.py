"""A transport for Faust that hands agents one message for each chunk of a partition, where Faust's own hands over each record.

It replaces four parts of Faust's aiokafka driver, and nothing else: how records become messages (the drain), which offsets may be
committed (`streams.kafka.partitions`), how the client is set up (read_committed, our connection), and the producer, which idles: stages
produce through `streams.kafka.producing`. Group membership, rebalancing and the timing of commits stay Faust's. Topics are declared
without acks, so Faust's own account of single offsets is empty and has no say.

A rebalance takes all partitions of a member away and deals all out again, also those that it keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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

from streams.kafka.connection import KafkaConnection
from streams.kafka.ownership import Membership
from streams.kafka.partitions import DeliveredChunk, KafkaStage, WorkedPartition, log, release
from streams.kafka.reading import Connections

FETCH_BYTES = 16 * 1024 * 1024
"""Of one partition in one answer of the broker; a larger record comes alone."""
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
    stages: Mapping[str, KafkaStage]
    """By the name of their topic on the cluster."""
    changed: asyncio.Event
    """Set when a partition has room again."""
    membership: Membership
    options: Mapping[str, Any] = field(default_factory=dict)
    """For aiokafka's consumer, over what is set here."""

    def partition(self, tp: TP) -> WorkedPartition | None:
        """The partition, if it is ours."""
        return self.stages[tp.topic].partitions.get(tp.partition)

    def partitions(self) -> list[tuple[TP, WorkedPartition]]:
        """All partitions that are ours."""
        return [
            (TP(topic, number), partition)
            for topic, stage in self.stages.items()
            for number, partition in stage.partitions.items()
        ]


class ChunkConsumerThread(driver.AIOKafkaConsumerThread):
    """Runs the client in a thread of its own, so that heartbeats go on whatever the stages do."""

    mundane_level = QUIET

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._connections = Connections()
        super().__init__(*arguments, **options)

    async def on_start(self) -> None:
        """Start the client, and hear of its place in the group."""
        with self._connections.noted():
            await super().on_start()
        transport = cast("ChunkTransport", self.transport)
        transport.hooks.membership.watch(self._ensure_consumer()._coordinator)  # noqa: SLF001 - see `Membership.watch`

    async def on_thread_stop(self) -> None:
        """Stop the client, and close what it leaves open."""
        try:
            await super().on_thread_stop()
        finally:
            self._connections.close()

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        conf, hooks = self.app.conf, cast("ChunkTransport", transport).hooks
        # Faust's own assignor takes part where there are tables only, and its choice expects this attribute.
        self._assignor = RoundRobinPartitionAssignor
        options: dict[str, Any] = {
            "client_id": conf.broker_client_id,
            "group_id": conf.id,
            "partition_assignment_strategy": [RoundRobinPartitionAssignor],
            "enable_auto_commit": False,
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


class ChunkConsumer(driver.Consumer):
    """Yields one message for each chunk, which is its value."""

    mundane_level = QUIET

    def _new_consumer_thread(self) -> ChunkConsumerThread:
        return ChunkConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def hooks(self) -> TransportHooks:
        """Our side."""
        return cast("ChunkTransport", self.transport).hooks

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._fetching = asyncio.Lock()
        super().__init__(*arguments, **options)

    def waiting(self) -> dict[tuple[str, int], int | None]:
        """Records that could be given to a stage and were not yet, by topic (without prefix) and partition.

        None where that is not known, and should be: while the group does not answer either, it cannot be known, and another process
        could not do better.
        """
        if not self.flow_active:
            return {}
        unknown = None if self.hooks.membership.is_sure() else 0
        counts: dict[tuple[str, int], int | None] = {}
        for tp in self._get_active_partitions():
            partition = self.hooks.partition(tp)
            if partition is not None and partition.has_room:
                left = cast("ChunkConsumerThread", self._thread).unfetched(tp)
                count = partition.fetched + left if left is not None else partition.fetched or unknown
                counts[partition.stage.source, tp.partition] = count
        return counts

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch and deliver until the consumer stops; what is called by Faust's fetcher."""
        try:
            while not (self.should_stop or fetcher.should_stop):
                if not self.flow_active:
                    await self.can_resume_flow.wait()
                    continue
                for tp, partition in self.hooks.partitions():
                    for chunk in partition.deliver():
                        await self.callback(self._message(tp, chunk))
                await self._fetch()
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    def _message(self, tp: TP, chunk: DeliveredChunk) -> Message:
        return ConsumerMessage(
            topic=tp.topic,
            partition=tp.partition,
            offset=chunk.first_offset,
            timestamp=chunk.records[0].timestamp / 1000,
            timestamp_type=0,
            headers=None,
            key=None,
            value=cast("Any", chunk),
            checksum=None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def _fetch(self) -> None:
        """Fetch for the partitions that have room and of which nothing is held; wait for one where there is none."""
        self.hooks.changed.clear()
        active = {tp: partition for tp, partition in self.hooks.partitions() if tp in self._get_active_partitions()}
        free = {tp for tp, partition in active.items() if not partition.fetched and partition.has_room}
        if not free:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.hooks.changed.wait(), IDLE_SECONDS)
            return
        async with self._fetching:
            fetched = await self._getmany(free, timeout=IDLE_SECONDS if len(free) == len(active) else BUSY_SECONDS)
            for tp, records in (fetched or {}).items():
                # Of one that has gone meanwhile, or came anew, they come again.
                active[TP(tp.topic, tp.partition)].fetch(records)

    async def perform_seek(self) -> None:
        """Go to what is committed, everywhere. A fetch that is under way ends first: what it brings is behind the client's position."""
        async with self._fetching:
            await super().perform_seek()

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Let the stages end what they do, commit what is done, and forget the rest."""
        self.stop_flow()
        await release(self.hooks.stages.values(), self.commit)
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Tell the stages before the first record comes."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for tp in sorted(assigned):
            numbers[tp.topic].append(tp.partition)
        for topic, of_topic in numbers.items():
            self.hooks.stages[topic].assign(of_topic)
        _log_assignment({self.hooks.stages[topic].source: of_topic for topic, of_topic in numbers.items()})
        await super().on_partitions_assigned(assigned, generation_id)

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp, _ in self.hooks.partitions() if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        partition = self.hooks.partition(tp)
        return None if partition is None else partition.committable()

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust would warn of partitions where nothing comes; `streams.kafka.ownership.Watchdog` looks after that."""


class IdleProducer(Producer):
    """Faust wants a producer; nothing is sent through this one."""

    mundane_level = QUIET

    async def flush(self) -> None:
        """Nothing waits."""


class ChunkTransport(driver.Transport):
    """The transport; assign it to `app.transport` before the app starts."""

    Consumer = ChunkConsumer
    Producer = IdleProducer

    def __init__(self, url: Any, app: Any, hooks: TransportHooks) -> None:
        super().__init__(url, app)
        self.hooks = hooks


def _log_assignment(numbers: Mapping[str, Sequence[int]]) -> None:
    if numbers:
        log.info("assigned: %s", "; ".join(f"{topic} {', '.join(map(str, of_topic))}" for topic, of_topic in numbers.items()))
    else:
        log.warning("no partition is left for this worker: there are more workers than partitions; it waits for one to go")


async def _seek_to_committed(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """Go to what is committed; where nothing is, commit the partition's first offset and go there. Answers where each goes on.

    Left to itself, aiokafka asks the leader that it knows for the first record of a partition that never committed, again and again. One
    that leads no more only refuses, and nothing is read from that node before the client learns again who leads what.
    """
    if not consumer.assignment():
        return {}
    committed: dict[TopicPartition, int | None] = await consumer.seek_to_committed()
    beginnings = await _beginnings(consumer, [tp for tp, offset in committed.items() if offset is None])
    positions = {tp: offset for tp, offset in (committed | beginnings).items() if offset is not None}
    ours = consumer.assignment()
    for tp in positions.keys() & ours:
        consumer.seek(tp, positions[tp])
    if first := {tp: OffsetAndMetadata(beginnings[tp], "") for tp in beginnings.keys() & ours}:
        # Who has joined meanwhile changed the group, and what is assigned then comes here once more.
        with contextlib.suppress(CommitFailedError):
            await consumer.commit(first)
    return positions


async def _beginnings(consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset at which each partition begins.

    It is empty if one has no leader at the moment: the others must not wait for that.
    """
    try:
        async with asyncio.timeout(BEGINNING_SECONDS):
            return dict(await consumer.beginning_offsets(tps))
    except (KafkaError, TimeoutError):
        return {}
