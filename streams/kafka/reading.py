"""Reading partitions outside of any consumer group, from positions that the reader keeps; and the connections of aiokafka's clients.

aiokafka leaks connections in two cases: the first connection, if a start is cancelled while the node is silent, and a connection that
one of the client's tasks opens while the client closes. They would stay open until garbage collection, which warns about them. The code
that starts a client therefore tracks the connections that the client opens, and closes them (`Connections`). aiokafka has no hook for
that, so importing this module replaces the function with which its clients open connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakSet

import aiokafka.client
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from analytics.deletion.text_keys import is_encrypted
from analytics.store.store import Partition
from schemas.errors import BrokerError, SettingsError
from streams.kafka.connection import KafkaConnection

WAIT_MILLISECONDS = 50
"""Milliseconds that a broker delays an empty answer; this also delays partitions with records."""
PARTITION_BYTES = 2 * 1024 * 1024
"""Bytes of one partition in one answer, unless the reader asks for more; a larger record is sent alone."""
ANSWER_SECONDS = 10.0
"""Timeout in seconds for an answer about positions."""
REQUEST_MILLISECONDS = 3_000
"""Timeout in milliseconds for a request to a single node, so that time is left to ask another node."""
POLL_SECONDS = 1.0
"""Seconds after which the client returns without records, as it always does while a leader is away."""
SESSION_MILLISECONDS = 10_000
"""Milliseconds after which a silent member of a group loses its partitions to the others."""
MAX_POLL_MILLISECONDS = 600_000
"""Milliseconds that a member of a group may work between two reads before it loses its partitions."""
QUIET_SECONDS = 60.0
"""Seconds without progress after which reading to the end of a partition fails."""
# aiokafka logs ten lines per second while a broker is away. Callers get the error anyway.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class RawRecord(Protocol):
    """An undecoded record from the broker; aiokafka's ConsumerRecord fits."""

    @property
    def offset(self) -> int:
        """The offset in its partition."""
        ...

    @property
    def timestamp(self) -> int:
        """The time when the broker received it, in milliseconds since 1970, UTC."""
        ...

    @property
    def key(self) -> bytes | None:
        """Key, which determined the partition."""
        ...

    @property
    def value(self) -> bytes | None:
        """Value; None is a tombstone."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Headers by name, in their order."""
        ...


Decrypter = Callable[[str, Sequence[RawRecord]], Awaitable[Sequence[RawRecord]]]
"""Returns the records of a topic with decrypted values, and without those of erased sessions."""


async def require_plain(topic: str, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
    """Return the records. Raises SettingsError if one of them is encrypted."""
    for record in records:
        if is_encrypted(record.value):
            raise SettingsError(
                f"topic {topic}, offset {record.offset}: the record is encrypted, and DRIFTLINE_TEXT_KEY_FILE is not set",
                hint="Set it to the key file of this installation.",
            )
    return records


async def keep_encrypted(topic: str, records: Sequence[RawRecord]) -> Sequence[RawRecord]:  # noqa: ARG001 - a `Decrypter`
    """Return the records as they are."""
    return records


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one partition in the order of their offsets, at least one.

    Offsets may have gaps, because of compaction and transactions. The same records may be delivered again in a chunk with other
    boundaries. `topic` is the name without the prefix of the installation.
    """

    topic: str
    partition: int
    records: Sequence[RawRecord]
    values: Sequence[bytes] = ()
    """The records' values in Driftline's framing; by default their original values."""

    def __post_init__(self) -> None:
        self.values = self.values or values_of(self.records)

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.records[0].offset

    @property
    def next_offset(self) -> int:
        """The offset after the last record, which may be committed when the chunk is done."""
        return self.records[-1].offset + 1

    def part(self, start: int, stop: int) -> Chunk:
        """Return a chunk of the records between two indexes."""
        return Chunk(self.topic, self.partition, self.records[start:stop], self.values[start:stop])


def values_of(records: Sequence[RawRecord]) -> Sequence[bytes]:
    """Return the values; a tombstone counts as an empty value, which is not a record."""
    return [record.value or b"" for record in records]


class Range(NamedTuple):
    """The range of a partition: the position of its first record, and the position after its last."""

    beginning: int
    end: int


@dataclass(frozen=True)
class Read:
    """The result of a read: chunks, and the next position in each of their partitions."""

    chunks: Sequence[Chunk]
    positions: Mapping[Partition, int]


class PartitionReader:
    """See the module; topics are named without prefix. Belongs to one event loop. `options` are for aiokafka's consumer."""

    def __init__(self, connection: KafkaConnection, decrypt: Decrypter = require_plain, **options: Any) -> None:
        self._connection = connection
        self._decrypt = decrypt
        self._options = options
        self._consumer: AIOKafkaConsumer | None = None
        self._connections = Connections()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect. Raises BrokerError if no broker answers."""
        options: dict[str, Any] = {
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "fetch_max_wait_ms": WAIT_MILLISECONDS,
            "max_partition_fetch_bytes": PARTITION_BYTES,
            "request_timeout_ms": REQUEST_MILLISECONDS,
        }
        consumer = AIOKafkaConsumer(**self._connection.for_aiokafka() | options | self._options)
        self._consumer = consumer
        self._connections = Connections()
        try:
            with explained(f"Kafka at {self._connection.bootstrap}"), self._connections.tracked():
                async with asyncio.timeout(ANSWER_SECONDS):
                    await consumer.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Disconnect."""
        consumer = self._consumer
        if consumer is None:
            return
        self._consumer = None
        try:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await consumer.stop()
        finally:
            self._connections.close()

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        """Read only these partitions from now on, from these positions."""
        consumer = self._started()
        consumer.assign([self._tp_of(partition) for partition in positions])
        for partition, position in positions.items():
            consumer.seek(self._tp_of(partition), position)

    async def ranges(self, partitions: Sequence[Partition]) -> dict[Partition, Range]:
        """Return the range of each partition. Raises BrokerError if they cannot be read in time."""
        consumer = self._started()
        tps = [self._tp_of(partition) for partition in partitions]
        # Without this, the client would look up unknown topics one by one, with a pause after each.
        for topic in {tp.topic for tp in tps}:
            consumer._client.add_topic(topic)  # noqa: SLF001 - no public method
        with explained(_list_topics(tps)):
            async with asyncio.timeout(ANSWER_SECONDS):
                ends = await consumer.end_offsets(tps)
                beginnings = await consumer.beginning_offsets(tps)
        return {partition: Range(beginnings[tp], ends[tp]) for partition, tp in zip(partitions, tps, strict=True)}

    async def has_topic(self, topic: str) -> bool:
        """Tell whether the cluster has a topic, without creating it. Raises BrokerError if there is no answer in time."""
        name = self._connection.topic(topic)
        with explained(f"topic {name}"):
            async with asyncio.timeout(ANSWER_SECONDS):
                return name in await self._started().topics()

    async def offsets_at(self, milliseconds: int, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """Return the offset of each partition's first record since a Unix time; None if it has none."""
        tps = [self._tp_of(partition) for partition in partitions]
        with explained(_list_topics(tps)):
            offsets = await self._started().offsets_for_times(dict.fromkeys(tps, milliseconds))
        first_offsets: dict[Partition, int | None] = {}
        for tp in tps:
            first_record = offsets.get(tp)
            first_offsets[self._partition_of(tp)] = None if first_record is None else first_record.offset
        return first_offsets

    def partitions_of(self, topic: str) -> list[Partition]:
        """Return the partitions known so far of a topic that was looked up or is being read."""
        numbers = self._started().partitions_for_topic(self._connection.topic(topic)) or ()
        return [(topic, number) for number in sorted(numbers)]

    async def read(self, max_records: int | None, seconds: float) -> Read:
        """Read the available records, up to a maximum; wait for a limited time if there are none.

        Raises OutOfRangeError if a partition has nothing at its position. Raises BrokerError if the answer is unreadable, or if the keys of
        the records cannot be read; the next call then reads the same records again.
        """
        consumer = self._started()
        try:
            with explained("Kafka"):
                fetched = await consumer.getmany(timeout_ms=int(seconds * 1000), max_records=max_records)
                positions = {self._partition_of(tp): await consumer.position(tp) for tp in fetched}
        except OffsetOutOfRangeError as error:
            raise OutOfRangeError([self._partition_of(tp) for tp in error.args[0]]) from error
        chunks = []
        try:
            for tp, fetched_records in fetched.items():
                topic, number = self._partition_of(tp)
                records = await self._decrypt(topic, fetched_records)
                if records:
                    chunks.append(Chunk(topic, number, records))
        except BrokerError:
            # The client is past these records. A partition that was revoked meanwhile has no position here.
            for tp, fetched_records in fetched.items():
                if fetched_records and tp in consumer.assignment():
                    consumer.seek(tp, fetched_records[0].offset)
            raise
        return Read(chunks, positions)

    async def read_until(
        self, partition: Partition, start: int, end: int, max_records: int | None = None
    ) -> AsyncGenerator[tuple[Sequence[RawRecord], int]]:
        """Read a partition between two offsets: yields records in batches, each with the next offset.

        The last batch may be empty, because transaction markers and compaction leave gaps. Raises BrokerError without progress for QUIET_SECONDS.
        """
        self.read_from({partition: start})
        topic, number = partition
        topic_name = self._connection.topic(topic)
        loop = asyncio.get_running_loop()
        reached = start
        last_progress_at = loop.time()
        while reached < end:
            try:
                chunks = (await self.read(max_records, POLL_SECONDS)).chunks
            except OutOfRangeError as error:
                raise BrokerError(f"topic {topic_name}: its records were removed while they were read") from error
            records = [record for chunk in chunks for record in chunk.records if record.offset < end]
            position = min(await self.position(partition), end)
            if position > reached:
                reached = position
                last_progress_at = loop.time()
                yield records, position
            elif loop.time() > last_progress_at + QUIET_SECONDS:
                raise BrokerError(
                    f"topic {topic_name}, partition {number}: "
                    f"the broker sent nothing for {QUIET_SECONDS:g} s at offset {reached}, before the end at {end}"
                )

    async def position(self, partition: Partition) -> int:
        """Return the next position in a partition."""
        return int(await self._started().position(self._tp_of(partition)))

    def move(self, partition: Partition, position: int) -> None:
        """Continue at another position."""
        self._started().seek(self._tp_of(partition), position)

    def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise BrokerError("Kafka: the reader is not connected")
        return self._consumer

    def _tp_of(self, partition: Partition) -> TopicPartition:
        return TopicPartition(self._connection.topic(partition[0]), partition[1])

    def _partition_of(self, tp: TopicPartition) -> Partition:
        return tp.topic.removeprefix(self._connection.prefix), tp.partition


class GroupReader(PartitionReader):
    """Reads the partitions that a consumer group assigns to this process.

    The group only distributes the partitions: nothing is committed to it, because the caller keeps the positions. `on_change` is called in
    the event loop with the partitions of this process, and with none while the group distributes them again. A new partition is read as
    soon as `resume_at` names its position. No heartbeat is sent during the call, so it must be short.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        group: str,
        on_change: Callable[[Sequence[Partition]], None],
        decrypt: Decrypter = require_plain,
    ) -> None:
        super().__init__(
            connection,
            decrypt,
            group_id=connection.topic(group),
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            max_poll_interval_ms=MAX_POLL_MILLISECONDS,
            session_timeout_ms=SESSION_MILLISECONDS,
            heartbeat_interval_ms=SESSION_MILLISECONDS // 5,
        )
        self._on_change = on_change

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group, for all partitions of these topics."""
        self._started().subscribe([self._connection.topic(topic) for topic in topics], listener=_Rebalance(self))

    def change(self, tps: Collection[TopicPartition]) -> None:
        """Pass on the partitions of this process."""
        # Until they have a position, the client would look for one in the group, which has none.
        self._started().pause(*tps)
        self._on_change(sorted(map(self._partition_of, tps)))

    async def read(self, max_records: int | None, seconds: float) -> Read:
        """Read as `PartitionReader.read` does. Raises OutOfRangeError if the client looked for a position before the caller named one."""
        try:
            return await super().read(max_records, seconds)
        except BrokerError as error:
            if isinstance(error.__cause__, NoOffsetForPartitionError):
                raise OutOfRangeError([self._partition_of(error.__cause__.args[0])]) from error
            raise

    def resume_at(self, positions: Mapping[Partition, int]) -> None:
        """Read partitions of this process from these positions. Raises BrokerError if one is not ours any more."""
        consumer = self._started()
        with explained("Kafka"):
            for partition, position in positions.items():
                consumer.seek(self._tp_of(partition), position)
                consumer.resume(self._tp_of(partition))


class _Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes changes of the assignment on to the reader."""

    def __init__(self, reader: GroupReader) -> None:
        self._reader = reader

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:  # noqa: ARG002 - aiokafka's
        self._reader.change(())

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._reader.change(assigned)


def _list_topics(tps: Sequence[TopicPartition]) -> str:
    return ", ".join(sorted({f"topic {tp.topic}" for tp in tps}))


class OutOfRangeError(Exception):
    """Raised for partitions without a record at the position to read from."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        super().__init__(", ".join(f"{topic}/{number}" for topic, number in partitions))
        self.partitions = partitions


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise errors of the library as BrokerError, except OffsetOutOfRangeError."""
    try:
        yield
    except OffsetOutOfRangeError:
        raise
    except TimeoutError as error:
        raise BrokerError(f"{what}: no answer in time") from error
    except KafkaError as error:
        raise BrokerError(f"{what}: {words_of(error)}") from error


def words_of(error: BaseException) -> str:
    """Return an error's message on one line, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


class Connections:
    """The connections that one client's tasks open; `close` them when the client has stopped, or if its start fails or is cancelled."""

    def __init__(self) -> None:
        self._open: WeakSet[AIOKafkaConnection] = WeakSet()
        self._is_closed = False

    @contextlib.contextmanager
    def tracked(self) -> Iterator[None]:
        """Track the connections of tasks that start here, and of their child tasks."""
        token = _task_connections.set(self)
        try:
            yield
        finally:
            _task_connections.reset(token)

    def add(self, connection: AIOKafkaConnection) -> None:
        """Track a connection; after `close`, close it at once."""
        self._open.add(connection)
        if self._is_closed:
            connection.close()

    def close(self) -> None:
        """Close all open connections and any later one."""
        self._is_closed = True
        for connection in list(self._open):
            connection.close()


_task_connections: ContextVar[Connections | None] = ContextVar("connections of a client", default=None)


async def _connect(*arguments: Any, **options: Any) -> AIOKafkaConnection:
    """Open a connection, and track it if the client's starter tracks connections."""
    connection = await create_conn(*arguments, **options)
    connections = _task_connections.get()
    if connections is not None:
        connections.add(connection)
    return connection


# See the module: aiokafka's clients look this name up for each connection that they open.
aiokafka.client.create_conn = _connect
