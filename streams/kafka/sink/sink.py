"""The sink: every record of every topic into its table, exactly once, in the process that owns the DuckDB file.

Rows and the positions to go on from are committed together (`streams.kafka.sink.sink_batches`), so a kill at any moment loses nothing and
doubles nothing. The dead letters of what does not land are on their topic before (`streams.kafka.sink.sink_dead_letters`), and land from there.
What the broker or the database cannot do at the moment is tried again; what another try cannot mend sets `broken`.
One batch lands at a time while the client fetches what comes next, so memory is bounded and Kafka keeps what waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from analytics.store.store import Store
from analytics.store.transaction import Partition
from audit.redaction.redactor import Redactor
from schemas.errors import BrokerError, DriftlineError, SettingsError, StoreError, first_line
from schemas.lazy.duckdb import duckdb
from schemas.registry import topics
from streams.judging.call_budget import StoppedError
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.partition_reader import OutOfRangeError, PartitionReader, Read
from streams.kafka.sink.positions import SinkPositions
from streams.kafka.sink.progress import Progress
from streams.kafka.sink.sink_batches import Fetched, SinkWriter
from streams.kafka.sink.sink_dead_letters import SinkLetters
from streams.kafka.values.decoding import Reframe, values_of

LOOK_SECONDS = 0.5
"""Seconds to wait for records, and so for partitions that were added."""
LONGEST_REST = 1.0
"""Seconds that records gather at most because a transaction took long."""
PAUSES = wait_exponential(multiplier=0.5, max=8.0)
"""Seconds between one try and the next: half a second, then twice as long, up to eight."""
Given = TypeVar("Given")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SinkLimits:
    """The sink's limits: records at once, and how often it does what."""

    at_once: int = 50_000
    """Records in one transaction."""
    many: int = 5_000
    """From so many records in a transaction on, the next one begins at once."""
    gather: float = 0.2
    """Seconds from the beginning of one transaction to that of the next, unless there are many records or a caller waits."""
    rest: float = 2.0
    """Times that a transaction took until the next one begins, with the same exceptions, and LONGEST_REST at most: a machine on which it
    takes long lands more records at once, because most of that time does not depend on how many they are."""
    check_every: float = 2.0
    """Seconds."""

    def pause(self, since: float, took: float) -> float:
        """Seconds to let records gather: since so many began what has just ended with a transaction that took so many."""
        return max(self.gather - since, min(self.rest * took, LONGEST_REST))


class Sink:
    """See the module. Belongs to one event loop.

    `reframe` is applied to values before they are decoded, and raises DriftlineError when that cannot be at the moment.
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
        """Set when it cannot go on without another process; `failure` says why."""
        self.failure: BaseException | None = None
        self.landed: Callable[[], None] = lambda: None
        """Called in the event loop whenever positions have moved."""
        self.progress = Progress()
        self.writer = SinkWriter(store, redactor, now)
        self.where = SinkPositions(store, connection, self.writer)
        self._letters = SinkLetters(connection, self.writer, self.progress)
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
        """Connect, learn what the tables have and begin to read.

        BrokerError when no broker answers or the topics are not those that the database was filled from; SettingsError when one is
        missing.
        """
        partitions = await asyncio.to_thread(partitions_on, self._connection)
        await self._reader.start()
        try:
            ranges = await self._reader.ranges(partitions)
            positions = await self._letters.telling(lambda: self.where.open(ranges))
            await asyncio.to_thread(self.writer.learn)
            self._reader.read_from(positions)
        except BaseException:
            await self._reader.stop()
            await self._letters.stop()
            raise
        self.progress.begin(positions, {one: found.end for one, found in ranges.items()})
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Finish the batch that is landing, and let go of the brokers."""
        self._stopping.set()
        self._awaited.set()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._reader.stop()
        await self._letters.stop()

    @property
    def trouble(self) -> str:
        """The present trouble, in words; an empty text if there is none."""
        return self._stuck or self._silence

    async def end_of(self, partition: Partition) -> int:
        """The position after a partition's last record, at this moment."""
        return (await self._reader.ranges([partition]))[partition].end

    async def ends_of(self, topic: str) -> dict[Partition, int]:
        """The positions after the last records of a topic's partitions, at this moment."""
        ranges = await self._reader.ranges([one for one in self.progress.positions if one[0] == topic])
        return {one: found.end for one, found in ranges.items()}

    async def caught_up(self) -> None:
        """Return as soon as everything has landed that was there at the start. Raises what it broke with."""
        waits = [asyncio.create_task(self.progress.reached.wait()), asyncio.create_task(self.broken.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if self.failure is not None:
            raise self.failure

    def hurry(self) -> None:
        """Land what has come at once, for a caller that waits for it."""
        self._awaited.set()

    async def _run(self) -> None:
        """Read and land until it is to stop."""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._take_on()
                read = await self._look()
            except OutOfRangeError as error:
                await self._insist(self._resume, error.partitions)
            except BrokerError as error:
                self._note_trouble(error)
                with contextlib.suppress(StoppedError):
                    await self._wait(1.0)
            else:
                found = time.monotonic()
                if not read.chunks or await self._insist(self._land, read):
                    await self._moved(read)
                ended = time.monotonic()
                pause = self._limits.pause(ended - began, ended - found)
                await self._gather(sum(len(chunk.records) for chunk in read.chunks), pause)

    async def _gather(self, landed: int, pause: float) -> None:
        """Let records gather after a transaction of so many: it takes as long for one as for hundreds."""
        if not 0 < landed < self._limits.many or not self.progress.reached.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._awaited.wait()
        if not self._stopping.is_set():
            self._awaited.clear()

    async def _look(self) -> Read:
        """Return the records that have come or come soon; none as soon as it is to stop."""
        looking = asyncio.create_task(self._reader.read(self._limits.at_once, LOOK_SECONDS))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([looking, stopping], return_when=asyncio.FIRST_COMPLETED)
            return looking.result() if looking.done() else Read((), {})
        finally:
            looking.cancel()
            stopping.cancel()
            await asyncio.gather(looking, stopping, return_exceptions=True)

    async def _land(self, read: Read) -> None:
        fetched = []
        for chunk in read.chunks:
            values = values_of(chunk.records)
            fetched.append(Fetched(chunk, values if self._reframe is None else await self._reframe(values)))
        await self._letters.telling(lambda: self.writer.land(fetched, read.positions))

    async def _moved(self, read: Read) -> None:
        """Note that the records that were read have landed.

        If a partition's last records are not for us, such as marks of transactions, those have landed, too.
        """
        self.progress.move(read.positions)
        self.progress.move({one: await self._reader.position(one) for one in self.progress.behind()})
        self.landed()

    async def _resume(self, partitions: Sequence[Partition]) -> None:
        """Go on where partitions have nothing at their positions any more."""
        for partition, found in (await self._reader.ranges(partitions)).items():
            position = self.progress.positions[partition]
            at = await self._letters.telling(functools.partial(self.where.within, partition, position, found))
            self._reader.move(partition, at)
            self.progress.move({partition: at})
        self.landed()

    async def _take_on(self) -> None:
        """Read partitions that were added to a topic, too, from their beginning."""
        added, self._added = self._added, {}
        if added:
            log.warning("partitions were added: %s", ", ".join(f"{topic}/{number}" for topic, number in added))
            await asyncio.to_thread(self.writer.begin, added)
            self.progress.move(added)
            self._reader.read_from(self.progress.positions)

    async def _watch(self) -> None:
        """Ask again and again how far the topics have come, and whether they have new partitions."""
        while True:
            await asyncio.sleep(self._limits.check_every)
            there = [one for topic in topics() for one in self._reader.partitions_of(topic)]
            self._added = {one: 0 for one in there if one not in self.progress.positions}
            try:
                ranges = await self._reader.ranges(list(self.progress.positions))
            except BrokerError as error:
                self._silence = str(error)
            else:
                self._silence = ""
                self.progress.saw({one: found.end for one, found in ranges.items()})

    async def _insist(self, work: Callable[[Given], Awaitable[None]], given: Given) -> bool:
        """Do it, again and again until it is done; False when it is to stop first."""
        again = AsyncRetrying(
            retry=retry_if_exception_type((DriftlineError, duckdb.OperationalError)),
            wait=PAUSES,
            sleep=self._wait,
            before_sleep=self._note_retry,
        )
        try:
            await again(work, given)
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
        """Say what is wrong when that is news."""
        words = first_line(error)
        if words != self._stuck:
            log.warning("what is on the topics does not land, trying again: %s", words)
        self._stuck = words

    async def _wait(self, seconds: float) -> None:
        """Wait; StoppedError as soon as it is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
        raise StoppedError

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing ends a task but a stop; where something does, another process has to take it up."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.critical("the sink ended", exc_info=failure)
            self.failure = failure
            self.broken.set()


def partitions_on(connection: KafkaConnection) -> list[Partition]:
    """Every partition of every topic of records. SettingsError naming those that are missing."""
    with TopicAdministration(connection) as administration:
        there = administration.describe()
    if missing := [connection.topic(name) for name in topics() if name not in there]:
        raise SettingsError(f"topics are missing: {', '.join(missing)}", hint="Create them with `driftline topics create`.")
    return [(name, number) for name in topics() for number in range(there[name].partitions)]
