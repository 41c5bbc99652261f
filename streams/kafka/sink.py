"""The sink: every record of every topic into its table, exactly once, in the process that owns the DuckDB file; and rebuilding the tables.

1. The rows and the next positions of a batch are one transaction (`SinkWriter`), so a kill at any moment neither loses nor repeats a
   record. It runs in one thread at a time, beside the event loop.
2. A record is skipped if the table has its identity and revision: at least once on the topic, exactly once in the table.
3. A value that is not a record of its topic, or that conflicts with a record of the same identity, becomes a dead letter. The dead
   letter is on its topic before the positions advance: `UnreportedError` rolls the transaction back and gives the caller the dead letters
   to produce; the next try commits. A kill in between, or a rebuild, produces the same dead letters again, because their ids are derived
   from the origin of the value. Like all records, they reach the tables from their topic.
4. Temporary failures of the broker or the database are retried; an unrecoverable failure sets `broken`.
5. The sink writes one batch at a time while the client fetches the next, so memory is bounded and waiting records stay on Kafka.
6. A rebuild drops the rows that the topics still hold, and writes them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from analytics.identity.duplicate_matching import KnownIdentities
from analytics.store.store import AppendResult, Partition, Store, Transaction
from audit.redaction import Redactor
from schemas.codec.arrow import INDEX, Rejected
from schemas.codec.single_object import decode
from schemas.errors import BrokerError, DriftlineError, SettingsError, StoreError, first_line
from schemas.lazy import duckdb, pl
from schemas.records import DeadLetter
from schemas.registry import topics
from streams.judging.call_budget import StoppedError
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import CONFLICT, Reframe, build_dead_letter, decode_values, undecodable
from streams.kafka.producing import RecordProducer, keyed
from streams.kafka.reading import Chunk, OutOfRangeError, PartitionReader, Range, RawRecord, Read
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal
from streams.log.log import SINK, require_kafka
from streams.upkeep.deletion import erase

LOOK_SECONDS = 0.5
"""Seconds to wait for records; added partitions are noticed in between."""
TELLING_SECONDS = 10.0
"""Seconds that a broker has to acknowledge dead letters."""
PAUSES = wait_exponential(multiplier=0.5, max=8.0)
"""Seconds between tries: half a second, then twice as long, up to eight."""
Argument = TypeVar("Argument")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SinkLimits:
    """The sink's limits: records per transaction, and intervals."""

    at_once: int = 50_000
    """Records in one transaction."""
    many: int = 5_000
    """After a transaction with at least this many records, the next one starts at once."""
    gather: float = 0.3
    """Seconds from the end of one transaction to the beginning of the next, unless there are many records or a caller waits."""
    check_every: float = 2.0
    """Seconds between checks of the ends of the topics."""


class Sink:
    """See the module. Belongs to one event loop.

    `reframe` is applied to values before decoding, and raises DriftlineError while it cannot be applied.
    """

    def __init__(
        self,
        store: Store,
        connection: KafkaConnection,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        reframe: Reframe | None = None,
        limits: SinkLimits | None = None,
    ) -> None:
        self.broken = asyncio.Event()
        """Set when only a new process can continue; `failure` says why."""
        self.failure: BaseException | None = None
        self.landed: Callable[[], None] = lambda: None
        """Called in the event loop whenever positions have advanced."""
        self.progress = Progress()
        self.writer = SinkWriter(store, redactor, now, connection.topic)
        self._producer = RecordProducer(connection, time_limit=TELLING_SECONDS)
        self._store = store
        self._connection = connection
        self._reader = PartitionReader(connection)
        self._reframe = reframe
        self._limits = limits or SinkLimits()
        self._silence = ""
        self._stuck = ""
        self._added: dict[Partition, int] = {}
        self._stopping = asyncio.Event()
        self._awaited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect, read the identities that the tables have, and start reading the topics.

        Raises BrokerError if no broker answers or the topics are not those that the database was filled from. Raises SettingsError if a topic is
        missing.
        """
        partitions = await asyncio.to_thread(partitions_on, self._connection, topics())
        await self._reader.start()
        try:
            ranges = await self._reader.ranges(partitions)
            positions = await self._telling(lambda: self.writer.open(ranges))
            await asyncio.to_thread(self.writer.learn)
            self._reader.read_from(positions)
        except BaseException:
            await self._reader.stop()
            await self._producer.stop()
            raise
        self.progress.begin(positions, {partition: bounds.end for partition, bounds in ranges.items()})
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Finish the current batch, and disconnect."""
        self._stopping.set()
        self._awaited.set()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._reader.stop()
        await self._producer.stop()

    @property
    def trouble(self) -> str:
        """The present problem as text; empty without one."""
        return self._stuck or self._silence

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
        """Write the records that have arrived at once, for a waiting caller."""
        self._awaited.set()

    async def _run(self) -> None:
        """Read and write until the sink is stopped."""
        while not self._stopping.is_set():
            try:
                await self._take_on()
                read = await self._reader.read(self._limits.at_once, LOOK_SECONDS)
            except OutOfRangeError as error:
                await self._insist(self._resume, error.partitions)
            except BrokerError as error:
                self._note_trouble(error)
                with contextlib.suppress(StoppedError):
                    await self._wait(1.0)
            else:
                if not read.chunks or await self._insist(self._land, read):
                    await self._moved(read)
                await self._gather(sum(len(chunk.records) for chunk in read.chunks))

    async def _gather(self, landed: int) -> None:
        """Wait for more records after a transaction of `landed` records: a transaction takes as long for one record as for hundreds."""
        if not 0 < landed < self._limits.many or not self.progress.reached.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.gather):
                await self._awaited.wait()
        if not self._stopping.is_set():
            self._awaited.clear()

    async def _land(self, read: Read) -> None:
        for chunk in read.chunks if self._reframe is not None else ():
            chunk.values = await self._reframe(chunk.values)  # type: ignore[misc]
        await self._telling(lambda: self.writer.land(read.chunks, read.positions))

    async def _telling(self, work: Callable[[], Result]) -> Result:
        """Run a transaction in a thread, after producing the dead letters that it needs. Raises BrokerError if they cannot be produced.

        The sink counts as caught up only after these dead letters have reached the tables, too.
        """
        while True:
            try:
                return await asyncio.to_thread(work)
            except UnreportedError as error:
                produced = await self._producer.send(DEAD_LETTERS, keyed(error.letters.values()))
                self.writer.reported.update(error.letters)
                self.progress.expect({(DEAD_LETTERS, letter.partition): letter.offset + 1 for letter in sorted(produced)})

    async def _moved(self, read: Read) -> None:
        """Advance the progress over the records that were written.

        This includes records at a partition's end that no reader sees, such as transaction markers.
        """
        self.progress.move(read.positions)
        self.progress.move({partition: await self._reader.position(partition) for partition in self.progress.behind()})
        self.landed()

    async def _resume(self, partitions: Sequence[Partition]) -> None:
        """Continue in partitions whose next records were removed."""
        for partition, bounds in (await self._reader.ranges(partitions)).items():
            position = self.progress.positions[partition]
            at = await self._telling(functools.partial(self.writer.within, partition, position, bounds))
            self._reader.move(partition, at)
            self.progress.move({partition: at})
        self.landed()

    async def _take_on(self) -> None:
        """Start reading added partitions, from their beginning."""
        added, self._added = self._added, {}
        if added:
            log.warning("partitions were added: %s", ", ".join(f"{topic}/{number}" for topic, number in added))
            await asyncio.to_thread(self.writer.begin, added)
            self.progress.move(added)
            self._reader.read_from(self.progress.positions)

    async def _watch(self) -> None:
        """Poll the ends of the topics, and look for new partitions."""
        while True:
            await asyncio.sleep(self._limits.check_every)
            present = [partition for topic in topics() for partition in self._reader.partitions_of(topic)]
            self._added = {partition: 0 for partition in present if partition not in self.progress.positions}
            try:
                ranges = await self._reader.ranges(list(self.progress.positions))
            except BrokerError as error:
                self._silence = str(error)
            else:
                self._silence = ""
                self.progress.saw({partition: bounds.end for partition, bounds in ranges.items()})

    async def _insist(self, work: Callable[[Argument], Awaitable[None]], argument: Argument) -> bool:
        """Retry until it succeeds; False when the sink is stopped first."""
        again = AsyncRetrying(
            retry=retry_if_exception_type((DriftlineError, duckdb.OperationalError)),
            wait=PAUSES,
            sleep=self._wait,
            before_sleep=self._note_retry,
        )
        try:
            await again(work, argument)
        except StoppedError:
            return False
        except duckdb.FatalException as error:
            hint = "Free disk space beside the file, then restart: the records on the topics will be processed."
            raise StoreError(f"{self._store.path}: {first_line(error)}", hint=hint) from error
        self._stuck = ""
        return True

    def _note_retry(self, tried: RetryCallState) -> None:
        if tried.outcome is not None and (error := tried.outcome.exception()) is not None:
            self._note_trouble(error)

    def _note_trouble(self, error: BaseException) -> None:
        """Log a problem when it changes."""
        reason = first_line(error)
        if reason != self._stuck:
            log.warning("records on the topics cannot be written to the tables; trying again: %s", reason)
        self._stuck = reason

    async def _wait(self, seconds: float) -> None:
        """Wait. Raises StoppedError as soon as the sink is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise StoppedError

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a task. Tasks end only at a stop; if one fails, another process has to take over."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.critical("the sink ended", exc_info=failure)
            self.failure = failure
            self.broken.set()


class Progress:
    """Positions up to which the tables have everything, and the ends of the partitions. `clock` is monotonic, in seconds."""

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
        self._aim()
        self.move({})

    def expect(self, ends: Mapping[Partition, int]) -> None:
        """Count records that we produced up to these ends as pending; a caller that waits for the start's ends waits for them, too."""
        for partition, end in ends.items():
            self._ends[partition] = max(end, self._ends.get(partition, 0))
            if self._target:
                self._target[partition] = max(end, self._target.get(partition, 0))

    def saw(self, ends: Mapping[Partition, int]) -> None:
        """Record the current ends of the partitions."""
        self._ends.update(ends)
        if not self._target:
            self._aim()
            self.move({})

    def move(self, positions: Mapping[Partition, int]) -> None:
        """Note that the tables have everything before these positions."""
        self.positions.update(positions)
        if self._target_at and not self.behind(self._target):
            self._reached_at, self._target = self._target_at, {}
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
        """Pending records, as of the last poll."""
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in self._ends.items())

    @property
    def delay(self) -> float:
        """The age in seconds from which on all records are in the tables. Infinite until the start's ends are reached."""
        return float("inf") if self._reached_at is None else self._clock() - self._reached_at

    def _aim(self) -> None:
        self._target, self._target_at = dict(self._ends), self._clock()


REMOVED = "removed_by_retention"


class UnreportedError(Exception):
    """Dead letters that must be produced first; the transaction was rolled back."""

    def __init__(self, letters: Mapping[str, bytes]) -> None:
        super().__init__(f"{len(letters)} dead letters are not on their topic")
        self.letters = letters
        """The dead letters, encoded, by id."""


@dataclass
class _TopicBatch:
    """The records of one topic in a batch: those of all its chunks, decoded together."""

    topic: str
    records: list[RawRecord]
    partitions: list[int]
    frames: dict[str, pl.DataFrame]
    rejected: list[Rejected]


class SinkWriter:
    """See the module. The only writer of the topics' tables in its store; `topic_name` gives the name of a topic on the cluster."""

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
        self.seen = KnownIdentities()
        """Every identity that the tables have, up to the last commit."""
        self.reported: set[str] = set()
        """Ids of dead letters that were produced for the next transaction."""
        self._in_doubt = True

    def learn(self) -> None:
        """Read the identities that the tables have, unless that was done since the start and the last failure."""
        if not self._in_doubt:
            return
        seen = KnownIdentities()
        with self._store.transaction() as transaction:
            for topic in topics():
                transaction.read_identities(topic, seen)
        # Until here, concurrent callers use the previous object.
        self.seen = seen
        self._in_doubt = False

    def positions(self) -> dict[Partition, int]:
        """Return the next position in each partition that was ever read."""
        with self._store.transaction() as transaction:
            return transaction.watermarks(SINK)

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Store the first positions of new partitions."""
        with self._store.transaction() as transaction:
            transaction.set_watermarks(SINK, positions)

    def open(self, ranges: Mapping[Partition, Range]) -> dict[Partition, int]:
        """Return the next position in each partition, as `within` does; a new partition begins with its first record."""
        stored = self.positions()
        new = {partition: there.beginning for partition, there in ranges.items() if partition not in stored}
        self.begin(new)
        return new | {
            partition: self.within(partition, stored[partition], there)
            for partition, there in ranges.items()
            if partition in stored
        }

    def within(self, partition: Partition, position: int, there: Range) -> int:
        """Return the position, or the beginning of the partition if retention removed the next records.

        Raises BrokerError if it lies beyond the end. Raises UnreportedError as in `land`.
        """
        self._require_end(partition, position, there)
        if position < there.beginning:
            message = "topic %s, partition %d: retention removed offsets %d to %d before they were read"
            log.error(message, self._topic_name(partition[0]), partition[1], position, there.beginning - 1)
            self.pass_over(partition, position, there.beginning)
        return max(position, there.beginning)

    def check(self, ranges: Mapping[Partition, Range]) -> None:
        """Raise BrokerError if a topic ends before its position."""
        for partition, position in self.positions().items():
            if partition in ranges:
                self._require_end(partition, position, ranges[partition])

    def land(self, chunks: Sequence[Chunk], positions: Mapping[Partition, int]) -> None:
        """Write fetched records and advance the positions. Raises UnreportedError as above.

        It may be called again after a failure: a commit can fail and still be durable.
        """
        batches = [self._decoded(topic, of_topic) for topic, of_topic in _by_topic(chunks).items()]
        with self._committing() as transaction:
            landed = [(batch, transaction.flush(batch.topic, batch.frames, self.seen)) for batch in batches]
            self._require_reported([letter for batch, appended in landed for letter in self._letters(batch, appended)])
            transaction.set_watermarks(SINK, positions)
        for batch, appended in landed:
            self.seen.add_rows(batch.topic, appended.frames)
        self._in_doubt = False

    def pass_over(self, partition: Partition, start: int, beginning: int) -> None:
        """Record that a partition's positions from `start` up to `beginning` were removed unread, and continue after them.

        Raises Raises UnreportedError as `land` does, and may also be called again after a failure.
        """
        topic, number = partition
        detail = f"the positions {start} to {beginning - 1} were removed from the topic before they were read: keep its records longer"
        letters = EncodedRecords()
        Admission(self._redactor, self._now()).add_dead_letter(
            letters, RecordOrigin(topic, start, number), Refusal(SINK, REMOVED, detail), b""
        )
        with self._committing() as transaction:
            self._require_reported(letters.messages[DEAD_LETTERS])
            transaction.set_watermarks(SINK, {partition: beginning})
        self._in_doubt = False

    def _require_end(self, partition: Partition, position: int, there: Range) -> None:
        if position > there.end:
            raise BrokerError(
                f"{self._store.path} has read topic {self._topic_name(partition[0])}, partition {partition[1]}, up to offset "
                f"{position}, and it ends at {there.end}: "
                "it is not the topic that the database was filled from, or brokers have lost records",
                hint="Name the cluster and prefix that this database belongs to, or another database with --db.",
            )

    @contextlib.contextmanager
    def _committing(self) -> Iterator[Transaction]:
        """Open a transaction. It may or may not be durable until the caller says so, except after UnreportedError, which rolls it back."""
        self.learn()
        self._in_doubt = True
        try:
            with self._store.transaction() as transaction:
                yield transaction
        except UnreportedError:
            self._in_doubt = False
            raise
        self.reported.clear()

    def _require_reported(self, letters: Sequence[bytes]) -> None:
        """Raise UnreportedError for dead letters that were not produced."""
        by_id = {cast("DeadLetter", decode(letter)).dead_letter_id: letter for letter in letters}
        if unreported := {letter_id: letter for letter_id, letter in by_id.items() if letter_id not in self.reported}:
            raise UnreportedError(unreported)

    def _decoded(self, topic: str, chunks: Sequence[Chunk]) -> _TopicBatch:
        records = [record for chunk in chunks for record in chunk.records]
        partitions = [number for chunk in chunks for number in itertools.repeat(chunk.partition, len(chunk.records))]
        batch = decode_values(topic, records, [value for chunk in chunks for value in chunk.values])
        places = pl.DataFrame(
            {"_partition": partitions, "_offset": [record.offset for record in records]},
            schema={"_partition": pl.Int32, "_offset": pl.Int64},
        )
        frames = {name: pl.concat([frame, places[frame[INDEX]]], how="horizontal") for name, frame in batch.frames.items()}
        return _TopicBatch(topic, records, partitions, frames, batch.rejected)

    def _letters(self, batch: _TopicBatch, appended: AppendResult) -> Iterator[bytes]:
        """Yield the dead letters of a topic's rejected and conflicting records."""
        refusals = [(rejected.index, undecodable(rejected.error)) for rejected in batch.rejected]
        for index, refusal in (*refusals, *((index, CONFLICT) for index in appended.conflicts)):
            yield build_dead_letter(batch.topic, batch.partitions[index], batch.records[index], refusal, self._redactor)


def _by_topic(chunks: Sequence[Chunk]) -> dict[str, list[Chunk]]:
    of_topics: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        of_topics[chunk.topic].append(chunk)
    return of_topics


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
    report: Callable[[int], None] = lambda _: None,
) -> None:
    """Drop the rows of all records that the partitions still have, and write them again; rows of older records are kept.

    Erased records that are still on a topic are erased again. `report` is called with the number of records left. After an
    interruption at any moment, another call or a server writes the rest. Raises BrokerError as in `Sink.start`, before anything is dropped.
    """
    await asyncio.to_thread(require_kafka, store)
    ranges = await _ranges(connection)
    sink = Sink(store, connection, redactor, now, reframe=reframe)
    await asyncio.to_thread(sink.writer.check, ranges)
    if not await asyncio.to_thread(is_unfinished, store):
        await asyncio.to_thread(_drop, store, ranges)
    try:
        await sink.start()
        reporting = asyncio.create_task(_report(sink, report))
        try:
            await sink.caught_up()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
    finally:
        await sink.stop()
    # Records can reach the tables before the request to erase them.
    await asyncio.to_thread(lambda: erase(store, now(), all_again=True))
    await asyncio.to_thread(finish, store)


async def require_records(connection: KafkaConnection) -> None:
    """Raise SettingsError if there is nothing to rebuild from: topics are missing or empty. Raises BrokerError if no broker answers."""
    ranges = await _ranges(connection)
    if all(bounds.beginning == bounds.end for bounds in ranges.values()):
        named = f"no topic that begins with {connection.prefix}" if connection.prefix else "no topic"
        raise SettingsError(
            f"{named} at {connection.bootstrap} holds a record, so there is nothing to rebuild from",
            hint="Check --kafka and DRIFTLINE_KAFKA_PREFIX; `driftline topics check` lists the topics.",
        )


def is_unfinished(store: Store) -> bool:
    """Return whether a rebuild was cut short."""
    with store.transaction() as transaction:
        return bool(transaction.watermark(REBUILD, ""))


def finish(store: Store) -> None:
    """Note that no rebuild is in progress: a sink writes the rest of an interrupted one."""
    with store.transaction() as transaction:
        if transaction.watermark(REBUILD, ""):
            transaction.set_watermark(REBUILD, "", 0)


async def _ranges(connection: KafkaConnection) -> dict[Partition, Range]:
    partitions = await asyncio.to_thread(partitions_on, connection, topics())
    async with PartitionReader(connection) as reader:
        return await reader.ranges(partitions)


def _drop(store: Store, ranges: Mapping[Partition, Range]) -> None:
    with store.transaction() as transaction:
        for topic in topics():
            transaction.delete_from(
                topic, {number: bounds.beginning for (name, number), bounds in ranges.items() if name == topic}
            )
        positions = transaction.watermarks(SINK)
        # Keep the positions of records that retention removed unread, so that the gap is recorded.
        starts = {
            partition: min(positions.get(partition, bounds.beginning), bounds.beginning) for partition, bounds in ranges.items()
        }
        transaction.set_watermarks(SINK, starts)
        transaction.set_watermark(REBUILD, "", 1)


async def _report(sink: Sink, report: Callable[[int], None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            report(sink.progress.lag)
            await asyncio.sleep(REPORT_SECONDS)
