"""The sink: every record of every topic into its table, exactly once, in the process that owns the DuckDB file.

Rows and the next positions are committed together (`streams.kafka.sink_writer`), so a kill at any moment neither loses nor repeats a
record. Rejected records become dead letters, which are on their topic before the commit and reach the tables from there.
Temporary failures of the broker or the database are retried; an unrecoverable failure sets `broken`.
The sink writes one batch at a time while the client fetches the next, so memory is bounded and waiting records stay on Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from analytics.store.store import Store
from analytics.store.transaction import Partition
from audit.redaction import Redactor
from schemas.errors import BrokerError, DriftlineError, StoreError, first_line
from schemas.lazy import duckdb
from schemas.registry import topics
from streams.judging.call_budget import StoppedError
from streams.kafka.administration import partitions_on
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe
from streams.kafka.producing import RecordProducer, keyed
from streams.kafka.reading import OutOfRangeError, PartitionReader, Read
from streams.kafka.sink_writer import SinkWriter, UntoldError
from streams.log.admission import DEAD_LETTERS

LOOK_SECONDS = 0.5
"""Seconds to wait for records, and so to notice added partitions."""
TELLING_SECONDS = 10.0
"""Seconds that a broker has to acknowledge dead letters."""
PAUSES = wait_exponential(multiplier=0.5, max=8.0)
"""Seconds between one try and the next: half a second, then twice as long, up to eight."""
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
    """Seconds."""


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

        BrokerError when no broker answers or the topics are not those that the database was filled from; SettingsError when a topic is
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
        """The present trouble as text; empty if there is none."""
        return self._stuck or self._silence

    async def end_of(self, partition: Partition) -> int:
        """The position after a partition's last record, at this moment."""
        return (await self._reader.ranges([partition]))[partition].end

    async def ends_of(self, topic: str) -> dict[Partition, int]:
        """The positions after the last records of a topic's partitions, at this moment."""
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
        """The loop: read and write until the sink is stopped."""
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
        """Run a transaction in a thread, after producing the dead letters that it needs; BrokerError when they cannot be produced.

        The sink counts as caught up only after these dead letters have reached the tables, too.
        """
        while True:
            try:
                return await asyncio.to_thread(work)
            except UntoldError as error:
                produced = await self._producer.send(DEAD_LETTERS, keyed(error.letters.values()))
                self.writer.told.update(error.letters)
                self.progress.expect({(DEAD_LETTERS, letter.partition): letter.offset + 1 for letter in sorted(produced)})

    async def _moved(self, read: Read) -> None:
        """Advance the progress over the records that were written.

        This includes records at a partition's end that no reader sees, such as transaction markers.
        """
        self.progress.move(read.positions)
        self.progress.move({partition: await self._reader.position(partition) for partition in self.progress.behind()})
        self.landed()

    async def _resume(self, partitions: Sequence[Partition]) -> None:
        """Continue in partitions that have nothing at their positions any more."""
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
            hint = "Make room where the file is, then start again: what is on the topics is taken up."
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
            log.warning("what is on the topics does not land, trying again: %s", reason)
        self._stuck = reason

    async def _wait(self, seconds: float) -> None:
        """Wait; StoppedError as soon as the sink is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise StoppedError

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Tasks end only at a stop. If one fails, another process has to take over."""
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
        """Record the present ends of the partitions."""
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
        """The partitions that are not read to their end."""
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
