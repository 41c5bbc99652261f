"""A transport for Faust that gives agents one message per chunk of a partition, instead of Faust's one message per record.

It replaces four parts of Faust's aiokafka driver: the drain, which turns records into messages; the committable offsets
(`streams.kafka.partitions`); the setup of the client (read_committed, our connection); and the producer, which idles because stages
produce through `streams.kafka.producing`. Group membership, rebalancing and the timing of commits stay Faust's. Topics are declared
without acks, so Faust's own tracking of single offsets stays empty and has no effect.

A rebalance revokes all partitions of a member and assigns them again, including those that it keeps.
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
from streams.kafka.partitions import DeliveredChunk, KafkaStage, Membership, WorkedPartition, log, release
from streams.kafka.reading import Connections, Decrypter, require_plain

FETCH_BYTES = 16 * 1024 * 1024
"""Bytes of one partition in one answer of the broker; a larger record is sent alone."""
IDLE_SECONDS = 0.5
"""Seconds that a fetch waits for records if every partition has room."""
BUSY_SECONDS = 0.02
"""Seconds that a fetch waits if a partition is full. It is short, so that the partition is fetched soon after it has room again."""
BEGINNING_SECONDS = 5.0
"""Seconds to wait for the first offsets of partitions without a committed one."""
END_REPORT_SECONDS = 30.0
"""Seconds for which a report of the leader that no records are left stays valid; leaders report twice a second."""
QUIET = "debug"
"""Level at which Faust's services log their starts and stops."""


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
    """Options for aiokafka's consumer that override ours."""
    decrypt: Decrypter = require_plain
    """Decrypts the records of our own topics."""

    def partition(self, tp: TP) -> WorkedPartition | None:
        """Return the partition if this process owns it."""
        return self.stages[tp.topic].partitions.get(tp.partition)

    def partitions(self) -> list[tuple[TP, WorkedPartition]]:
        """Return all partitions that this process owns."""
        return [
            (TP(topic, number), partition)
            for topic, stage in self.stages.items()
            for number, partition in stage.partitions.items()
        ]


class ChunkConsumerThread(driver.AIOKafkaConsumerThread):
    """Runs the client in its own thread, so that heartbeats continue whatever the stages do."""

    mundane_level = QUIET

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._connections = Connections()
        super().__init__(*arguments, **options)

    async def on_start(self) -> None:
        """Start the client, and watch its group membership."""
        with self._connections.tracked():
            await super().on_start()
        transport = cast("ChunkTransport", self.transport)
        transport.hooks.membership.watch(self._ensure_consumer()._coordinator)  # noqa: SLF001 - see `Membership.watch`

    async def on_thread_stop(self) -> None:
        """Stop the client, and close the connections that it leaks."""
        try:
            await super().on_thread_stop()
        finally:
            self._connections.close()

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        hooks = cast("ChunkTransport", transport).hooks
        # Faust uses its own assignor only for apps with tables, but reads this attribute to decide that.
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
        """Seek to the committed offsets; a partition without one gets its first record's offset."""
        return cast("Mapping[TP, int]", await self.call_thread(_seek_to_committed, self._ensure_consumer()))

    def unfetched(self, tp: TP) -> int | None:
        """Return the number of unfetched records of a partition; None if its leader has not reported it lately."""
        consumer: Any = self._ensure_consumer()
        subscription = consumer._subscription.subscription  # noqa: SLF001 - no public way to get it
        assignment = subscription and subscription.assignment
        state = assignment.state_value(tp) if assignment and tp in assignment.tps else None
        if state is None or not state.has_valid_position or state.lso is None:
            return None
        unfetched = max(0, int(state.lso) - int(state.position))
        report_age = time.time() - state.timestamp / 1000
        if not unfetched and report_age >= END_REPORT_SECONDS:
            return None
        return unfetched


class ChunkConsumer(driver.Consumer):
    """A consumer whose messages have chunks as values."""

    mundane_level = QUIET

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._fetch_lock = asyncio.Lock()
        super().__init__(*arguments, **options)

    @property
    def hooks(self) -> TransportHooks:
        """The hooks of this transport."""
        return cast("ChunkTransport", self.transport).hooks

    def waiting(self) -> dict[tuple[str, int], int | None]:
        """Return the number of records that wait for a stage, by topic (without prefix) and partition.

        None if the number is unknown although the group answers. While the group does not answer, an unknown number counts as 0:
        another process would not know it either.
        """
        if not self.flow_active:
            return {}
        unknown = None if self.hooks.membership.is_sure() else 0
        counts: dict[tuple[str, int], int | None] = {}
        for tp in self._get_active_partitions():
            partition = self.hooks.partition(tp)
            if partition is None or not partition.has_room:
                continue
            unfetched = cast("ChunkConsumerThread", self._thread).unfetched(tp)
            count: int | None = partition.fetched
            if unfetched is not None:
                count = partition.fetched + unfetched
            elif not partition.fetched:
                count = unknown
            counts[partition.stage.source, tp.partition] = count
        return counts

    def _new_consumer_thread(self) -> ChunkConsumerThread:
        return ChunkConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch and deliver until the consumer stops; Faust's fetcher calls this."""
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
        """Fetch for partitions with room and without fetched records; wait if there are none."""
        self.hooks.changed.clear()
        active = {tp: partition for tp, partition in self.hooks.partitions() if tp in self._get_active_partitions()}
        free = {tp for tp, partition in active.items() if not partition.fetched and partition.has_room}
        if not free:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.hooks.changed.wait(), IDLE_SECONDS)
            return
        async with self._fetch_lock:
            timeout = IDLE_SECONDS if len(free) == len(active) else BUSY_SECONDS
            fetched = await self._getmany(free, timeout=timeout)
            for tp, records in (fetched or {}).items():
                # If the partition was revoked or reassigned meanwhile, this object is stale and the records are fetched again.
                partition = active[TP(tp.topic, tp.partition)]
                if partition.stage.is_foreign:
                    partition.fetch(records)
                else:
                    partition.fetch(await self.hooks.decrypt(partition.stage.source, records))

    async def perform_seek(self) -> None:
        """Seek to the committed offsets everywhere. Wait for a running fetch first: the client's position is already past its records."""
        async with self._fetch_lock:
            await super().perform_seek()

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Let the stages finish their work, commit the finished chunks, and drop the rest."""
        self.stop_flow()
        await release(self.hooks.stages.values(), self.commit)
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Assign the partitions to the stages before the first record comes."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for tp in sorted(assigned):
            numbers[tp.topic].append(tp.partition)
        for topic, topic_numbers in numbers.items():
            self.hooks.stages[topic].assign(topic_numbers)
        _log_assignment({self.hooks.stages[topic].source: topic_numbers for topic, topic_numbers in numbers.items()})
        await super().on_partitions_assigned(assigned, generation_id)

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp, _ in self.hooks.partitions() if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        partition = self.hooks.partition(tp)
        return None if partition is None else partition.committable()

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Skip Faust's warning about silent partitions; `streams.kafka.partitions.Watchdog` checks them."""


class IdleProducer(Producer):
    """A producer that sends nothing, because Faust requires one."""

    mundane_level = QUIET

    async def flush(self) -> None:
        """Return at once: nothing is buffered."""


class ChunkTransport(driver.Transport):
    """The transport; assign it to `app.transport` before the app starts."""

    Consumer = ChunkConsumer
    Producer = IdleProducer

    def __init__(self, url: Any, app: Any, hooks: TransportHooks) -> None:
        super().__init__(url, app)
        self.hooks = hooks


def _log_assignment(numbers: Mapping[str, Sequence[int]]) -> None:
    if numbers:
        partitions = [f"{topic} {', '.join(map(str, topic_numbers))}" for topic, topic_numbers in numbers.items()]
        log.info("assigned: %s", "; ".join(partitions))
    else:
        log.warning(
            "no partition is left for this worker: there are more workers than partitions; it waits until another worker leaves"
        )


async def _seek_to_committed(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """Seek to the committed offsets and return the positions. A partition without one commits its first offset and starts there.

    Otherwise aiokafka keeps asking the leader it knows for the first record of such a partition. A former leader only refuses, and
    nothing is read from that node until the client refreshes its metadata.
    """
    if not consumer.assignment():
        return {}
    committed: dict[TopicPartition, int | None] = await consumer.seek_to_committed()
    beginnings = await _first_offsets(consumer, [tp for tp, offset in committed.items() if offset is None])
    positions = {tp: offset for tp, offset in (committed | beginnings).items() if offset is not None}
    ours = consumer.assignment()
    for tp in positions.keys() & ours:
        consumer.seek(tp, positions[tp])
    first_commits = {tp: OffsetAndMetadata(beginnings[tp], "") for tp in beginnings.keys() & ours}
    if first_commits:
        # A new member has changed the group; the next assignment comes through here again.
        with contextlib.suppress(CommitFailedError):
            await consumer.commit(first_commits)
    return positions


async def _first_offsets(consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition.

    The result is empty if a partition has no leader at the moment: the others must not wait for it.
    """
    try:
        async with asyncio.timeout(BEGINNING_SECONDS):
            return dict(await consumer.beginning_offsets(tps))
    except (KafkaError, TimeoutError):
        return {}
