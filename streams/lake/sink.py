"""The sink of the lake: it writes every record of every topic to the Delta table of its type, in any number of processes.

1. A consumer group gives each process partitions of its own. The group only distributes them: the positions are in the lake.
2. Every few seconds the rows of a topic and the next offsets of its partitions are one Delta commit, so a kill at any moment neither loses
   nor repeats a row. The commit fails if another process has committed the same partition since; this process then reads
   the positions again. So a process that was frozen and has lost its partitions writes nothing.
3. A topic with several record types has several tables. The table of the main type is committed last, and its offset is the position of the
   partition; rows that another table of the topic has already are left out by its own offset.
4. A value that is not a record of its topic becomes a dead letter. It is produced before the commit; after a kill in between, the same dead
   letter is produced again with the same id.
5. After any failure the process drops what it has read, and reads again from the positions in the lake: a commit can fail and still be
   durable.
6. Repetitions on a topic are rows like others. Readers see one row per identity (`analytics.lake`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from analytics.deletion.deleting import ERASURES
from analytics.lake import Lake, no_records, record_types, rows_of
from analytics.store.store import Partition
from audit.redaction import Redactor
from schemas.codec.arrow import INDEX
from schemas.errors import BrokerError, DriftlineError, LakeError, SettingsError, first_line
from schemas.lazy import pl
from schemas.registry import topics
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe, TopicBatch, decode_topics, received_at
from streams.kafka.encryption import TextEncryption, decrypter_of
from streams.kafka.producing import RecordProducer, keyed
from streams.kafka.reading import Chunk, GroupReader, OutOfRangeError, Range, Read
from streams.kafka.sink import DEAD_LETTER_SECONDS, build_gap_letters
from streams.lake.encrypted_rows import encrypt_rows
from streams.lake.maintenance import LakeMaintenance
from streams.log.admission import DEAD_LETTERS

GROUP = "driftline-lake"
"""The beginning of the name of the consumer group; the id of the lake follows, so that each lake has all records."""
FETCH_SECONDS = 0.2
"""Seconds that a fetch waits for records."""
FETCH_RECORDS = 20_000
"""Maximum number of records in a fetch."""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 8.0
"""The pause between tries; it doubles each time."""
MAINTENANCE_SECONDS = 3600.0
MAINTENANCE_RETRY_SECONDS = 60.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LakeLimits:
    """When the sink commits: whichever limit is reached first."""

    seconds: float = 5.0
    """Age of the oldest record that was read."""
    records: int = 200_000
    size: int = 128 * 1024 * 1024
    """Bytes of the records, uncompressed."""


class LakeSink:
    """See the module. Belongs to one event loop.

    `reframe` converts values before they are decoded. It raises DriftlineError while it cannot, and the sink tries again. With
    `maintenance`, it runs when an erasure was committed, and every `MAINTENANCE_SECONDS` in the process that has partition 0 of the erasures.
    """

    def __init__(
        self,
        lake: Lake,
        connection: KafkaConnection,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        reframe: Reframe | None = None,
        limits: LakeLimits | None = None,
        maintenance: LakeMaintenance | None = None,
    ) -> None:
        self.broken = asyncio.Event()
        """Set when the sink cannot continue; `failure` says why."""
        self.failure: BaseException | None = None
        self.committed = 0
        """Records that this process has committed."""
        self.on_commit: Callable[[], None] = lambda: None
        """Called in the event loop after each commit."""
        self._lake = lake
        self._connection = connection
        self._redactor = redactor
        self._now = now
        self._reframe = reframe
        self._limits = limits or LakeLimits()
        self._maintenance = maintenance
        self._erasure_committed = asyncio.Event()
        self.encryption = TextEncryption.of(connection, keeps_keys=True)
        self._producer = RecordProducer(connection, time_limit=DEAD_LETTER_SECONDS, encryption=self.encryption)
        self._reader: GroupReader | None = None
        self._pending = _Pending()
        self._stored: dict[Partition, int] = {}
        """The positions in the lake after which this process has read."""
        self._assigned: Sequence[Partition] = ()
        self._is_stale = False
        """Whether what was read must be read again, from the positions in the lake."""
        self._assignments = 0
        """How often the partitions of this process have changed."""
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create the missing tables, connect, and join the group.

        Raises LakeError if the folder cannot be used, BrokerError if no broker answers, SettingsError if a topic is missing, and
        if the installation encrypts and no key file is set.
        """
        await asyncio.to_thread(partitions_on, self._connection, topics())
        await asyncio.to_thread(self._lake.create)
        if self.encryption is not None:
            await self.encryption.start()
        await self._producer.start()
        group = f"{GROUP}-{await asyncio.to_thread(self._lake.identity)}"
        self._reader = GroupReader(self._connection, group, self._change_partitions, decrypter_of(self.encryption))
        await self._reader.start()
        self._reader.subscribe(topics())
        self._tasks = [asyncio.create_task(self._run(self._reader))]
        if self._maintenance is not None:
            self._tasks.append(asyncio.create_task(self._maintain(self._maintenance)))
        for task in self._tasks:
            task.add_done_callback(self._handle_task_end)

    async def stop(self) -> None:
        """Commit what was read, and leave the group."""
        self._stopping.set()
        self._erasure_committed.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reader is not None:
            await self._reader.stop()
        await self._producer.stop()
        if self.encryption is not None:
            await self.encryption.stop()

    def _change_partitions(self, partitions: Sequence[Partition]) -> None:
        """Take over partitions, and drop what was read of others: their next owner reads it again."""
        self._assigned = partitions
        self._assignments += 1
        self._is_stale = True

    async def _run(self, reader: GroupReader) -> None:
        """Read and commit until the sink is stopped. After a failure, read again from the positions in the lake."""
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._step(reader)
                failures = 0
            except SettingsError:
                raise
            except OutOfRangeError:
                self._is_stale = True
            except DriftlineError as error:
                self._is_stale = True
                failures += 1
                log.warning("records on the topics cannot be written to the lake; trying again: %s", first_line(error))
                await self._wait(min(FIRST_BACKOFF_SECONDS * 2**failures, MAX_BACKOFF_SECONDS))
        with contextlib.suppress(DriftlineError):
            await self._commit_pending()

    async def _step(self, reader: GroupReader) -> None:
        assignments = self._assignments
        if self._is_stale:
            positions = await self._find_positions(self._assigned)
            if assignments != self._assignments:
                return
            reader.resume_at(positions)
            self._is_stale = False
        read = await reader.read(FETCH_RECORDS, FETCH_SECONDS)
        if assignments != self._assignments:
            # Some of it may belong to an earlier assignment, and the client is past the rest.
            self._is_stale = True
            return
        self._pending.add(read)
        if self._pending.is_due(self._limits):
            await self._commit_pending()

    async def _commit_pending(self) -> None:
        """Commit what was read, unless it must be read again. Raises DriftlineError; some topics may then be committed, others not."""
        read = self._pending.take()
        if not self._is_stale and read.positions:
            await self._commit(read.chunks, read.positions)

    async def _commit(self, chunks: Sequence[Chunk], positions: Mapping[Partition, int]) -> None:
        if self._reframe is not None:
            for chunk in chunks:
                chunk.values = await self._reframe(chunk.values)
        batches = await asyncio.to_thread(decode_topics, chunks)
        dead_letters = [letter for batch in batches for letter in batch.build_dead_letters(self._redactor)]
        if dead_letters:
            await self._producer.send(DEAD_LETTERS, keyed(dead_letters))
        # A partition also advances over records of erased sessions, which are in no chunk.
        empty = [
            TopicBatch(topic, [], [], {}, [])
            for topic in {topic for topic, _ in positions} - {batch.topic for batch in batches}
        ]
        for batch in [*batches, *empty]:
            ends = {partition: position for partition, position in positions.items() if partition[0] == batch.topic}
            await asyncio.to_thread(self._commit_topic, batch, ends)
            self._stored.update(ends)
            self.committed += len(batch.records)
            if batch.topic == ERASURES:
                self._erasure_committed.set()
        self.on_commit()

    def _commit_topic(self, batch: TopicBatch, ends: Mapping[Partition, int]) -> None:
        *others, main = record_types()[batch.topic]
        for name in others:
            if name in batch.frames:
                self._commit_beside(name, batch, ends)
        for partition in ends:
            self._require_unchanged(main, partition)
        self._lake.commit(main, self._rows(main, batch), ends)

    def _commit_beside(self, name: str, batch: TopicBatch, ends: Mapping[Partition, int]) -> None:
        """Commit the rows of a type that shares its topic with the main type."""
        stored = {partition: self._lake.position(name, partition) or 0 for partition in ends}
        rows = self._rows(name, batch)
        starts = pl.DataFrame(
            {"_partition": [number for _, number in stored], "start": list(stored.values())},
            schema={"_partition": pl.Int32, "start": pl.Int64},
        )
        missing = rows.join(starts, on="_partition", maintain_order="left").filter(pl.col("_offset") >= pl.col("start"))
        ends = {partition: end for partition, end in ends.items() if end > stored[partition]}
        if ends:
            self._lake.commit(name, missing.drop("start"), ends)

    def _rows(self, name: str, batch: TopicBatch) -> pl.DataFrame:
        frame = batch.frames.get(name)
        if frame is None:
            return rows_of(name, batch.topic, no_records(name))
        if self.encryption is not None:
            frame = encrypt_rows(name, batch.topic, frame, batch.records, self.encryption)
        return rows_of(name, batch.topic, frame.with_columns(received_at=received_at(batch.records).gather(frame[INDEX])))

    def _require_unchanged(self, name: str, partition: Partition) -> None:
        """Raise LakeError if the lake has another position than the one after which this process has read."""
        position = self._lake.position(name, partition)
        if position != self._stored.get(partition):
            raise LakeError(f"{self._lake.uri(name)}: another process has written partition {partition[1]} up to {position}")

    async def _find_positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Drop what was read, and return the positions from which to read: those in the lake, or the beginning of a new partition.

        Raises SettingsError if a partition ends before its position: it belongs to another topic of the same name.
        """
        self._pending.take()
        positions: dict[Partition, int] = {}
        if partitions and self._reader is not None:
            await asyncio.to_thread(self._lake.reload)
            self._stored = await asyncio.to_thread(self._lake.positions, partitions)
            for partition, bounds in (await self._reader.ranges(partitions)).items():
                positions[partition] = await self._resume(partition, self._stored.get(partition), bounds)
        return positions

    async def _resume(self, partition: Partition, stored: int | None, bounds: Range) -> int:
        """Return the position from which to read a partition. Records that retention removed unread become a dead letter."""
        topic, number = partition
        if stored is None:
            return bounds.beginning
        if stored > bounds.end:
            raise SettingsError(
                f"{self._lake.root} has topic {self._connection.topic(topic)}, partition {number}, up to offset {stored}, but the "
                f"partition ends at {bounds.end}: the lake was filled from another topic, or brokers have lost records",
                hint="Name the cluster and prefix that this lake belongs to, or another lake.",
            )
        if stored < bounds.beginning:
            message = "topic %s, partition %d: retention removed offsets %d to %d before they were read"
            log.error(message, self._connection.topic(topic), number, stored, bounds.beginning - 1)
            letters = build_gap_letters(self._redactor, self._now(), partition, stored, bounds.beginning)
            await self._producer.send(DEAD_LETTERS, keyed(letters))
        return max(stored, bounds.beginning)

    async def _maintain(self, maintenance: LakeMaintenance) -> None:
        """Keep the tables in order until the sink is stopped."""
        due = time.monotonic() + MAINTENANCE_SECONDS
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._erasure_committed.wait()
            try:
                if self._erasure_committed.is_set() and not self._stopping.is_set():
                    self._erasure_committed.clear()
                    await asyncio.to_thread(maintenance.erase, self.encryption)
                elif time.monotonic() >= due:
                    due = time.monotonic() + MAINTENANCE_SECONDS
                    if (ERASURES, 0) in self._assigned:
                        await asyncio.to_thread(maintenance.run, self.encryption)
            except (LakeError, BrokerError) as error:
                log.warning("the lake could not be kept in order; trying again: %s", first_line(error))
                due = time.monotonic() + MAINTENANCE_RETRY_SECONDS

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _handle_task_end(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.failure = failure
            self.broken.set()


class _Pending:
    """What was read and not committed: chunks, and the next positions of their partitions."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._positions: dict[Partition, int] = {}
        self._records = 0
        self._size = 0
        self._since = 0.0

    def add(self, read: Read) -> None:
        """Add the result of a read."""
        if not self._positions:
            self._since = time.monotonic()
        self._chunks += read.chunks
        self._positions |= read.positions
        self._records += sum(len(chunk.records) for chunk in read.chunks)
        self._size += sum(len(value) for chunk in read.chunks for value in chunk.values)

    def is_due(self, limits: LakeLimits) -> bool:
        """Tell whether it is to be committed."""
        return bool(self._positions) and (
            self._records >= limits.records or self._size >= limits.size or time.monotonic() - self._since >= limits.seconds
        )

    def take(self) -> Read:
        """Remove everything, and return it."""
        read = Read(self._chunks, self._positions)
        self._chunks, self._positions, self._records, self._size = [], {}, 0, 0
        return read
