"""The sink: it writes every record of every topic to its table exactly once, in the process that owns the DuckDB file.

1. The rows and the next positions of a batch are written in one transaction (`SinkWriter`), so a kill at any moment neither loses nor
   repeats a record. The transactions run in a thread, one at a time.
2. A record is skipped if the table has its identity and revision.
3. A value that is not a record of its topic, or that conflicts with a record of the same identity, becomes a dead letter. It is produced
   before the positions advance: `UnreportedError` rolls the transaction back and gives the caller the dead letters to produce, and the
   next try commits. After a kill in between, or in a rebuild, the same dead letters are produced again with the same ids, which are
   derived from the origin of the value. Like all records, dead letters reach the tables from their topic.
4. Temporary failures of the broker or the database are retried; an unrecoverable failure sets `broken`.
5. The sink writes one batch while the client fetches the next, so memory is bounded and waiting records stay on Kafka.
6. A rebuild drops the rows of the records that are still on the topics, and writes them again.
7. With a history, such as a lake, the sink begins with what the history has and the tables lack, and then reads the topics from there. It
   takes the same way into the tables, so a kill at any moment loses nothing, and removed records are missing only if both lack them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from analytics.identity.duplicate_matching import KnownIdentities
from analytics.store.positions import COLD
from analytics.store.store import AppendResult, Partition, Store, Transaction
from audit.redaction import Redactor
from schemas.codec.single_object import decode
from schemas.errors import BrokerError, DriftlineError, SettingsError, StoreError, first_line
from schemas.lazy import duckdb, pl
from schemas.records import DeadLetter
from schemas.registry import topics
from streams.judging.call_budget import StoppedError
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import CONFLICT, Reframe, decode_topics
from streams.kafka.encryption import TextEncryption, decrypter_of, open_encryption
from streams.kafka.producing import RecordProducer, keyed
from streams.kafka.reading import Chunk, OutOfRangeError, PartitionReader, Range, Read
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal
from streams.log.log import SINK, require_kafka
from streams.upkeep.deletion import erase

FETCH_SECONDS = 0.5
"""Seconds that a fetch waits for records; the sink looks for added partitions in between."""
DEAD_LETTER_SECONDS = 10.0
"""Seconds that a broker has to acknowledge dead letters."""
RETRY_BACKOFF = wait_exponential(multiplier=0.5, max=8.0)
"""The pause between tries: half a second, doubled each time up to eight seconds."""
Argument = TypeVar("Argument")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Batch(Protocol):
    """Decoded records of a topic, by record type, with their index in the batch, partition and offset."""

    @property
    def topic(self) -> str:
        """The topic, without prefix."""
        ...

    @property
    def frames(self) -> Mapping[str, pl.DataFrame]:
        """The records."""
        ...

    def build_dead_letters(self, redactor: Redactor, conflicts: Iterable[tuple[int, Refusal]] = ()) -> list[bytes]:
        """Return the dead letters of the rejected records, and of these conflicting ones, which are named by their indexes."""
        ...


class HistoryBatch(Batch, Protocol):
    """A batch with the positions after it."""

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next position in each partition of the topic."""
        ...


class History(Protocol):
    """Records that the topics had, by their positions there; they may have been removed from the topics since."""

    name: str
    encryption: TextEncryption | None
    """Decrypts what is encrypted in the history; set by the sink."""

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the position after the last record of each partition that is in the history. Raises DriftlineError."""
        ...

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return a position at or before the first record of each partition that is in the history. Raises DriftlineError."""
        ...

    def batches(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[HistoryBatch]:
        """Yield the records from these positions up to these ends. Raises DriftlineError."""
        ...


@dataclass(frozen=True)
class SinkLimits:
    """The sink's batch sizes and intervals."""

    batch_size: int = 50_000
    """Maximum number of records in a transaction."""
    full_batch_size: int = 5_000
    """After a transaction with at least this many records, the next one starts without a pause."""
    gather_seconds: float = 0.3
    """The pause after a smaller transaction, in which more records gather; a waiting caller ends it."""
    check_seconds: float = 2.0
    """Seconds between checks of the ends of the topics."""


class Sink:
    """See the module. Belongs to one event loop.

    `reframe` converts values before they are decoded. It raises DriftlineError while it cannot, and the sink tries again.
    `history` has what the sink reads before the topics.
    """

    def __init__(
        self,
        store: Store,
        connection: KafkaConnection,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        reframe: Reframe | None = None,
        history: History | None = None,
        limits: SinkLimits | None = None,
        encryption: TextEncryption | None = None,
    ) -> None:
        self.broken = asyncio.Event()
        """Set when only a new process can continue; `failure` says why."""
        self.failure: BaseException | None = None
        self.on_progress: Callable[[], None] = lambda: None
        """Called in the event loop whenever positions have advanced."""
        self.progress = Progress()
        self.writer = SinkWriter(store, redactor, now, connection.topic)
        self._producer = RecordProducer(connection, time_limit=DEAD_LETTER_SECONDS, encryption=encryption)
        self._store = store
        self._connection = connection
        self._reader = PartitionReader(connection, decrypter_of(encryption))
        self._reframe = reframe
        self._history = history
        if history is not None:
            history.encryption = encryption
        self._limits = limits or SinkLimits()
        self._broker_problem = ""
        self._write_problem = ""
        self._added_partitions: dict[Partition, int] = {}
        self._stopping = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect, read the identities that the tables have, and start reading the topics.

        Raises BrokerError if no broker answers, or if the database was filled from other topics. Raises SettingsError if a topic is
        missing, or if the history belongs to other topics, and the errors of the history.
        """
        partitions = await asyncio.to_thread(partitions_on, self._connection, topics())
        await self._reader.start()
        try:
            ranges = await self._reader.ranges(partitions)
            if self._history is not None and await asyncio.to_thread(self._begin_history, self._history, ranges):
                positions = await asyncio.to_thread(self.writer.positions)
            else:
                self._history = None
                positions = await self._run_transaction(lambda: self.writer.open(ranges))
                self._reader.read_from(positions)
            await asyncio.to_thread(self.writer.read_identities)
        except BaseException:
            await self._reader.stop()
            await self._producer.stop()
            raise
        self.progress.begin(positions, {partition: bounds.end for partition, bounds in ranges.items()})
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._handle_task_end)

    async def stop(self) -> None:
        """Finish the current batch, and disconnect."""
        self._stopping.set()
        self._flush_requested.set()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._reader.stop()
        await self._producer.stop()

    @property
    def problem(self) -> str:
        """A description of the present problem; empty if there is none."""
        return self._write_problem or self._broker_problem

    async def end_of(self, partition: Partition) -> int:
        """Return the position after a partition's last record, at this moment."""
        return (await self._reader.ranges([partition]))[partition].end

    async def ends_of(self, topic: str) -> dict[Partition, int]:
        """Return the positions after the last records of a topic's partitions, at this moment."""
        ranges = await self._reader.ranges([partition for partition in self.progress.positions if partition[0] == topic])
        return {partition: bounds.end for partition, bounds in ranges.items()}

    async def caught_up(self) -> None:
        """Return when the tables have everything that was on the topics at the start. Raises the failure if the sink broke."""
        waits = [asyncio.create_task(self.progress.reached.wait()), asyncio.create_task(self.broken.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        if self.failure is not None:
            raise self.failure

    def hurry(self) -> None:
        """Write the fetched records without a pause, because a caller waits for them."""
        self._flush_requested.set()

    def _begin_history(self, history: History, ranges: Mapping[Partition, Range]) -> bool:
        """Tell whether the history has records that the tables lack.

        If so, its partitions begin at position 0 if they were never read, so that a start without the history records what is missing.
        """
        self.writer.check(ranges)
        stored = self.writer.positions()
        ends = history.ends(list(ranges))
        for partition, end in ends.items():
            if end > ranges[partition].end:
                raise SettingsError(
                    f"{history.name} has topic {self._connection.topic(partition[0])}, partition {partition[1]}, up to offset {end}, "
                    f"but the partition ends at {ranges[partition].end}: it was filled from another topic, or brokers have lost records",
                    hint="Name the lake that was filled from these topics, or leave out --lake and DRIFTLINE_LAKE.",
                )
        if all(stored.get(partition, 0) >= end for partition, end in ends.items()):
            return False
        self.writer.begin(
            {
                partition: 0 if partition in ends else bounds.beginning
                for partition, bounds in ranges.items()
                if partition not in stored
            }
        )
        return True

    async def _read_history(self, history: History) -> None:
        """Write what the history has and the tables lack, then continue with the topics."""
        partitions = list(await asyncio.to_thread(partitions_on, self._connection, topics()))
        ends = await asyncio.to_thread(history.ends, partitions)
        batches = history.batches(await asyncio.to_thread(self.writer.positions), ends)
        # Each checkpoint writes the ends of all tables again. With the usual number of them a fill takes twice as long.
        self._store.checkpoint_rarely()
        try:
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await self._run_transaction(functools.partial(self.writer.write_batches, [batch], batch.positions))
                self.progress.move(batch.positions)
                self.on_progress()
                if self._stopping.is_set():
                    raise StoppedError
        finally:
            self._store.checkpoint_as_usual()
        ranges = await self._reader.ranges(partitions)
        positions = await self._run_transaction(lambda: self.writer.open(ranges))
        self._reader.read_from(positions)
        self.progress.move(positions)

    async def _run(self) -> None:
        """Read and write until the sink is stopped."""
        if self._history is not None:
            await self._retry(self._read_history, self._history)
        while not self._stopping.is_set():
            try:
                await self._start_added_partitions()
                read = await self._reader.read(self._limits.batch_size, FETCH_SECONDS)
            except OutOfRangeError as error:
                await self._retry(self._resume, error.partitions)
            except BrokerError as error:
                self._note_problem(error)
                with contextlib.suppress(StoppedError):
                    await self._wait(1.0)
            else:
                if not read.chunks or await self._retry(self._write, read):
                    await self._advance(read)
                await self._wait_for_more(sum(len(chunk.records) for chunk in read.chunks))

    async def _wait_for_more(self, written: int) -> None:
        """Wait for more records after a small transaction: one record takes as long as hundreds. `written` are those that it wrote."""
        if not 0 < written < self._limits.full_batch_size or not self.progress.reached.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.gather_seconds):
                await self._flush_requested.wait()
        if not self._stopping.is_set():
            self._flush_requested.clear()

    async def _write(self, read: Read) -> None:
        if self._reframe is not None:
            for chunk in read.chunks:
                chunk.values = await self._reframe(chunk.values)
        await self._run_transaction(lambda: self.writer.write(read.chunks, read.positions))

    async def _run_transaction(self, transaction: Callable[[], Result]) -> Result:
        """Run a transaction in a thread, after producing the dead letters that it needs. Raises BrokerError if they cannot be produced.

        The sink counts as caught up only after the tables have these dead letters, too.
        """
        while True:
            try:
                return await asyncio.to_thread(transaction)
            except UnreportedError as error:
                produced = await self._producer.send(DEAD_LETTERS, keyed(error.dead_letters.values()))
                self.writer.produced_letters.update(error.dead_letters)
                self.progress.expect({(DEAD_LETTERS, letter.partition): letter.offset + 1 for letter in sorted(produced)})

    async def _advance(self, read: Read) -> None:
        """Advance the progress over the records that were written.

        This includes records at a partition's end that no reader sees, such as transaction markers.
        """
        self.progress.move(read.positions)
        self.progress.move({partition: await self._reader.position(partition) for partition in self.progress.behind()})
        self.on_progress()

    async def _resume(self, partitions: Sequence[Partition]) -> None:
        """Continue at the first remaining record in partitions whose next records were removed."""
        for partition, bounds in (await self._reader.ranges(partitions)).items():
            position = self.progress.positions[partition]
            position = await self._run_transaction(functools.partial(self.writer.resume, partition, position, bounds))
            self._reader.move(partition, position)
            self.progress.move({partition: position})
        self.on_progress()

    async def _start_added_partitions(self) -> None:
        """Start reading added partitions, from their beginning."""
        added = self._added_partitions
        self._added_partitions = {}
        if added:
            log.warning("partitions were added: %s", ", ".join(f"{topic}/{number}" for topic, number in added))
            await asyncio.to_thread(self.writer.begin, added)
            self.progress.move(added)
            self._reader.read_from(self.progress.positions)

    async def _watch(self) -> None:
        """Poll the ends of the topics, and look for new partitions."""
        while True:
            await asyncio.sleep(self._limits.check_seconds)
            present = [partition for topic in topics() for partition in self._reader.partitions_of(topic)]
            self._added_partitions = {partition: 0 for partition in present if partition not in self.progress.positions}
            try:
                ranges = await self._reader.ranges(list(self.progress.positions))
            except BrokerError as error:
                self._broker_problem = str(error)
            else:
                self._broker_problem = ""
                self.progress.update_ends({partition: bounds.end for partition, bounds in ranges.items()})

    async def _retry(self, operation: Callable[[Argument], Awaitable[None]], argument: Argument) -> bool:
        """Retry an operation until it succeeds; returns False if the sink is stopped first."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((DriftlineError, duckdb.OperationalError)),
            wait=RETRY_BACKOFF,
            sleep=self._wait,
            before_sleep=self._note_retry,
        )
        try:
            await retrying(operation, argument)
        except StoppedError:
            return False
        except duckdb.FatalException as error:
            hint = "Free disk space beside the file, then restart: the records on the topics will be processed."
            raise StoreError(f"{self._store.path}: {first_line(error)}", hint=hint) from error
        self._write_problem = ""
        return True

    def _note_retry(self, retry: RetryCallState) -> None:
        error = None if retry.outcome is None else retry.outcome.exception()
        if error is not None:
            self._note_problem(error)

    def _note_problem(self, error: BaseException) -> None:
        """Log a problem when it changes."""
        reason = first_line(error)
        if reason != self._write_problem:
            log.warning("records on the topics cannot be written to the tables; trying again: %s", reason)
        self._write_problem = reason

    async def _wait(self, seconds: float) -> None:
        """Wait. Raises StoppedError as soon as the sink is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise StoppedError

    def _handle_task_end(self, task: asyncio.Task[None]) -> None:
        """Set `broken` if a task failed: another process has to take over."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            log.critical("the sink failed", exc_info=failure)
            self.failure = failure
            self.broken.set()


class Progress:
    """The positions up to which the tables have each partition, and the partitions' ends. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.reached = asyncio.Event()
        """Set when the tables have everything that was on the topics at the start."""
        self.positions: dict[Partition, int] = {}
        self._clock = clock
        self._ends: dict[Partition, int] = {}
        self._target: dict[Partition, int] = {}
        self._target_at = 0.0
        self._reached_at: float | None = None

    def begin(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """Set the start of reading: positions, and the ends of the partitions at that moment."""
        self.positions = dict(positions)
        self._ends = {partition: max(end, self._ends.get(partition, 0)) for partition, end in ends.items()}
        self._set_target()
        self.move({})

    def expect(self, ends: Mapping[Partition, int]) -> None:
        """Count records that this process produced, up to these ends, as pending. `reached` waits for them, too."""
        for partition, end in ends.items():
            self._ends[partition] = max(end, self._ends.get(partition, 0))
            if self._target:
                self._target[partition] = max(end, self._target.get(partition, 0))

    def update_ends(self, ends: Mapping[Partition, int]) -> None:
        """Record the current ends of the partitions."""
        self._ends.update(ends)
        if not self._target:
            self._set_target()
            self.move({})

    def move(self, positions: Mapping[Partition, int]) -> None:
        """Record that the tables have everything before these positions."""
        self.positions.update(positions)
        if self._target_at and not self.behind(self._target):
            self._reached_at = self._target_at
            self._target = {}
            self.reached.set()

    def behind(self, ends: Mapping[Partition, int] | None = None) -> list[Partition]:
        """Return the partitions that are not read to their end."""
        return [
            partition
            for partition, end in (self._ends if ends is None else ends).items()
            if self.positions.get(partition, 0) < end
        ]

    @property
    def lag(self) -> int:
        """The number of records that are not in the tables yet, as of the last poll."""
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in self._ends.items())

    @property
    def delay(self) -> float:
        """The age in seconds above which every record is in the tables. Infinite until the ends at the start are reached."""
        return float("inf") if self._reached_at is None else self._clock() - self._reached_at

    def _set_target(self) -> None:
        """Remember the present ends; once they are reached, every record from before now is in the tables."""
        self._target = dict(self._ends)
        self._target_at = self._clock()


REMOVED_BY_RETENTION = "removed_by_retention"


def build_gap_letters(redactor: Redactor, now: datetime, partition: Partition, start: int, beginning: int) -> list[bytes]:
    """Return the dead letter of the offsets from `start` up to `beginning`, which retention removed before they were read."""
    topic, number = partition
    detail = (
        f"retention removed the offsets {start} to {beginning - 1} from the topic before they were read: raise its retention.ms"
    )
    dead_letters = EncodedRecords()
    refusal = Refusal(SINK, REMOVED_BY_RETENTION, detail)
    Admission(redactor, now).add_dead_letter(dead_letters, RecordOrigin(topic, start, number), refusal, b"")
    return dead_letters.messages[DEAD_LETTERS]


class UnreportedError(Exception):
    """Raised for dead letters that must be produced before a transaction can commit; the transaction was rolled back."""

    def __init__(self, dead_letters: Mapping[str, bytes]) -> None:
        super().__init__(f"{len(dead_letters)} dead letters are not on their topic")
        self.dead_letters = dead_letters
        """The encoded dead letters, by id."""


class SinkWriter:
    """Writes the topics' tables of a store, and is their only writer; see the module. `topic_name` returns a topic's name on the cluster."""

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        now: Callable[[], datetime],
        topic_name: Callable[[str], str] = lambda name: name,
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._now = now
        self._topic_name = topic_name
        self.identities = KnownIdentities()
        """The identities that the tables have, up to the last commit."""
        self.produced_letters: set[str] = set()
        """Ids of the dead letters that were produced for the next transaction."""
        self._is_uncertain = True
        """Whether the tables may have identities that `identities` lacks, at the start and after a failed transaction."""

    def read_identities(self) -> None:
        """Read the identities that the tables have, unless they are known."""
        if not self._is_uncertain:
            return
        identities = KnownIdentities()
        with self._store.transaction() as transaction:
            for topic in topics():
                transaction.read_identities(topic, identities)
        # Until here, concurrent callers use the previous object.
        self.identities = identities
        self._is_uncertain = False

    def positions(self) -> dict[Partition, int]:
        """Return the next position in each partition that was ever read."""
        with self._store.transaction() as transaction:
            return transaction.watermarks(SINK)

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Store the first positions of new partitions."""
        with self._store.transaction() as transaction:
            transaction.set_watermarks(SINK, positions)

    def open(self, ranges: Mapping[Partition, Range]) -> dict[Partition, int]:
        """Return the next position in each partition, as `resume` does; a new partition begins with its first record."""
        stored = self.positions()
        new = {partition: bounds.beginning for partition, bounds in ranges.items() if partition not in stored}
        self.begin(new)
        resumed = {
            partition: self.resume(partition, stored[partition], bounds)
            for partition, bounds in ranges.items()
            if partition in stored
        }
        return new | resumed

    def resume(self, partition: Partition, position: int, bounds: Range) -> int:
        """Return the position, or the beginning of the partition if retention removed the next records.

        Raises BrokerError if the position is beyond the partition's end, and UnreportedError as `write` does.
        """
        self._require_end(partition, position, bounds)
        if position < bounds.beginning:
            message = "topic %s, partition %d: retention removed offsets %d to %d before they were read"
            log.error(message, self._topic_name(partition[0]), partition[1], position, bounds.beginning - 1)
            self.skip_removed(partition, position, bounds.beginning)
        return max(position, bounds.beginning)

    def check(self, ranges: Mapping[Partition, Range]) -> None:
        """Raise BrokerError if a topic ends before its position."""
        for partition, position in self.positions().items():
            if partition in ranges:
                self._require_end(partition, position, ranges[partition])

    def write(self, chunks: Sequence[Chunk], positions: Mapping[Partition, int]) -> None:
        """Write fetched records and advance the positions. Raises UnreportedError if dead letters must be produced first.

        It may be called again after a failure: a commit can fail and still be durable.
        """
        self.write_batches(decode_topics(chunks), positions)

    def write_batches(self, batches: Sequence[Batch], positions: Mapping[Partition, int]) -> None:
        """Write decoded records as `write` does."""
        written: list[tuple[Batch, AppendResult]] = []
        dead_letters: list[bytes] = []
        with self._open_transaction() as transaction:
            for batch in batches:
                appended = transaction.flush(batch.topic, batch.frames, self.identities)
                written.append((batch, appended))
                dead_letters += self._build_dead_letters(batch, appended)
            self._require_produced(dead_letters)
            transaction.set_watermarks(SINK, positions)
        for batch, appended in written:
            self.identities.add_rows(batch.topic, appended.frames)
        self._is_uncertain = False

    def restore(self, batches: Sequence[Batch]) -> int:
        """Write decoded records again that were deleted from the tables, at their positions; return their number.

        Records that are there, and records that contradict one that is, are left out. It may be called beside the sink.
        """
        restored_rows = 0
        for batch in batches:
            # Not the identities of the sink: every record must be looked up in the tables, and these may be uncertain at the moment.
            candidates = KnownIdentities()
            candidates.add_rows(batch.topic, batch.frames)
            with self._store.transaction() as transaction:
                restored = transaction.flush(batch.topic, batch.frames, candidates)
            self.identities.add_rows(batch.topic, restored.frames)
            restored_rows += sum(restored.written.values())
        return restored_rows

    def skip_removed(self, partition: Partition, start: int, beginning: int) -> None:
        """Skip the offsets from `start` up to `beginning`, which were removed before they were read, and record the gap as a dead letter.

        Raises UnreportedError as `write` does, and may also be called again after a failure.
        """
        dead_letters = build_gap_letters(self._redactor, self._now(), partition, start, beginning)
        with self._open_transaction() as transaction:
            self._require_produced(dead_letters)
            transaction.set_watermarks(SINK, {partition: beginning})
        self._is_uncertain = False

    def _require_end(self, partition: Partition, position: int, bounds: Range) -> None:
        if position > bounds.end:
            raise BrokerError(
                f"{self._store.path} has read topic {self._topic_name(partition[0])}, partition {partition[1]}, up to offset "
                f"{position}, but the partition ends at {bounds.end}: "
                "the database was filled from another topic, or brokers have lost records",
                hint="Name the cluster and prefix that this database belongs to, or another database with --db.",
            )

    @contextlib.contextmanager
    def _open_transaction(self) -> Iterator[Transaction]:
        """Open a transaction. The identities stay uncertain until the caller clears `_is_uncertain`, because a failed commit may be durable.

        UnreportedError rolls the transaction back, so nothing is uncertain after it.
        """
        self.read_identities()
        self._is_uncertain = True
        try:
            with self._store.transaction() as transaction:
                yield transaction
        except UnreportedError:
            self._is_uncertain = False
            raise
        self.produced_letters.clear()

    def _require_produced(self, dead_letters: Sequence[bytes]) -> None:
        """Raise UnreportedError for dead letters that were not produced."""
        by_id = {cast("DeadLetter", decode(letter)).dead_letter_id: letter for letter in dead_letters}
        unreported = {letter_id: letter for letter_id, letter in by_id.items() if letter_id not in self.produced_letters}
        if unreported:
            raise UnreportedError(unreported)

    def _build_dead_letters(self, batch: Batch, appended: AppendResult) -> list[bytes]:
        """Return the dead letters of a topic's rejected and conflicting records."""
        conflicts = [(index, CONFLICT) for index in appended.conflicts]
        return batch.build_dead_letters(self._redactor, conflicts)


REBUILD = "rebuild"
"""Consumer whose watermark is 1 while a rebuild is in progress, else 0."""
REPORT_SECONDS = 0.2


async def rebuild(
    store: Store,
    connection: KafkaConnection,
    redactor: Redactor,
    now: Callable[[], datetime],
    *,
    reframe: Reframe | None = None,
    history: History | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> int:
    """Drop the rows of all records that are still on the topics or in the history, and write them again. Rows of older records are kept.

    Erased records that are still on a topic are erased again. `report` is called with the number of records left. After an
    interruption, another call or a server writes the rest. Raises BrokerError as in `Sink.start`, before anything is dropped.

    Return the number of records on encrypted topics that were skipped, because their session was erased.
    """
    await asyncio.to_thread(require_kafka, store)
    ranges = await _read_ranges(connection)
    async with open_encryption(connection, keeps_keys=True) as encryption:
        sink = Sink(store, connection, redactor, now, reframe=reframe, history=history, encryption=encryption)
        await asyncio.to_thread(sink.writer.check, ranges)
        if not await asyncio.to_thread(is_interrupted, store):
            beginnings = {partition: bounds.beginning for partition, bounds in ranges.items()}
            if history is not None:
                await asyncio.to_thread(history.ends, list(ranges))
                for partition, start in (await asyncio.to_thread(history.starts, list(ranges))).items():
                    beginnings[partition] = min(start, beginnings[partition])
            await asyncio.to_thread(_drop_rows, store, beginnings, with_cold_days=history is not None)
        try:
            await sink.start()
            reporting = asyncio.create_task(_report_lag(sink, report))
            try:
                await sink.caught_up()
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
        finally:
            await sink.stop()
        forget_texts = None if encryption is None else encryption.forget_in_loop
        # Records can reach the tables before the request to erase them.
        await asyncio.to_thread(lambda: erase(store, now(), all_again=True, forget_texts=forget_texts))
    await asyncio.to_thread(end_rebuild, store)
    return 0 if encryption is None else encryption.erased.total()


async def require_records(connection: KafkaConnection) -> None:
    """Raise SettingsError if there is nothing to rebuild from: topics are missing or empty. Raises BrokerError if no broker answers."""
    ranges = await _read_ranges(connection)
    if all(bounds.beginning == bounds.end for bounds in ranges.values()):
        topic = f"no topic that begins with {connection.prefix}" if connection.prefix else "no topic"
        raise SettingsError(
            f"{topic} at {connection.bootstrap} has a record, so there is nothing to rebuild from",
            hint="Check --kafka and DRIFTLINE_KAFKA_PREFIX; `driftline topics check` lists the topics.",
        )


def is_interrupted(store: Store) -> bool:
    """Return whether a rebuild was interrupted."""
    with store.transaction() as transaction:
        return bool(transaction.watermark(REBUILD, ""))


def end_rebuild(store: Store) -> None:
    """Record that no rebuild is in progress. A sink writes the rest of an interrupted one."""
    with store.transaction() as transaction:
        if transaction.watermark(REBUILD, ""):
            transaction.set_watermark(REBUILD, "", 0)


async def _read_ranges(connection: KafkaConnection) -> dict[Partition, Range]:
    partitions = await asyncio.to_thread(partitions_on, connection, topics())
    async with PartitionReader(connection) as reader:
        return await reader.ranges(partitions)


def _drop_rows(store: Store, beginnings: Mapping[Partition, int], *, with_cold_days: bool = False) -> None:
    """Drop rows from these positions on, and their sums. Sums of cold days stay, unless the rows `with_cold_days` are written again."""
    with store.transaction() as transaction:
        if with_cold_days:
            transaction.set_watermarks(COLD, dict.fromkeys(transaction.watermarks(COLD), 0))
        for topic in topics():
            transaction.delete_from(topic, {number: first for (name, number), first in beginnings.items() if name == topic})
        positions = transaction.watermarks(SINK)
        # Keep the positions of records that retention removed unread, so that the gap is recorded.
        starts = {partition: min(positions.get(partition, first), first) for partition, first in beginnings.items()}
        transaction.set_watermarks(SINK, starts)
        transaction.set_watermark(REBUILD, "", 1)


async def _report_lag(sink: Sink, report: Callable[[int], None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            report(sink.progress.lag)
            await asyncio.sleep(REPORT_SECONDS)
