"""The stages on the chunks of a partition: the computing ones (intake, diagnosis), and the judged ones, whose log is the broker.

Computing stages: for each chunk, decode; skip records that the states have seen, and duplicates; run the step; produce its records and the
dead letters; write the states; done. After a kill in between, the same records come again and give the same outputs with the same ids.

Judged stages:

1. Before every write the stage checks that the partition is still ours; if that is uncertain, it writes nothing more.
2. The broker has a task's record before the session's state says that the task is done.
3. A chunk is done when all of its tasks are. Chunks are small, so that the offset advances.
4. The first chunk of a partition makes the stage read the recorded calls back from `judgements`. Calls of a task are recorded only after
   the task is on its topic, except for the calls that the task itself carries. So reading begins at the arrival time of the first
   uncommitted task, minus a margin because the clocks of two brokers may differ. Tasks that are done by their session's state are
   skipped: their calls are part of their results.
5. A reservation that no judgement settles belongs to a call whose process is gone, and is charged in full. Calls of other stages on the
   same topic are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.errors import BrokerError, StoreError
from schemas.lazy import pl
from schemas.records import Judgement, Record, Reservation
from streams.engine.embedded import StageOutcome, StageRuns, failures, stage_failed
from streams.judging.call_budget import StoppedError, all_interrupted
from streams.judging.judged_stages import STATE, JudgedStage, JudgedState, Subject
from streams.judging.judging_partition import JUDGEMENTS, JudgingContext, JudgingPartition, Pending
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import (
    CONFLICT,
    DeduplicationResult,
    Reframe,
    Window,
    batch_of,
    decode_chunk,
    deduplicate,
    hashes_of,
    letter_of,
)
from streams.kafka.partitions import OwnershipGuard, end_process
from streams.kafka.producing import Message, Sender, keyed
from streams.kafka.reading import Chunk, PartitionReader, RawRecord
from streams.kafka.states import MAX_STATE_BYTES, StateTopic, StoredState, is_too_large
from streams.log.admission import DEAD_LETTERS, Refusal
from streams.log.log import Commit
from streams.stage_batches import KEY, StageBatch
from streams.topology import Stage

MAX_CONCURRENT_CHUNKS = 2
"""Most chunks of a stage that are computed concurrently in this process."""
TOO_LARGE = "state_too_large"
OURS = (BrokerError, StoreError, MemoryError, OSError)
"""Errors of this process or the broker, not of a record."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Computing:
    """The resources that all partitions of a stage share."""

    stage: Stage
    runs: StageRuns
    redactor: Redactor
    producer: Sender
    states: StateTopic
    reframe: Reframe | None = None
    """Applied to values before decoding; the partition waits for it."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_CHUNKS))

    def open_partition(self, number: int) -> ComputedPartition:
        """Start the work on a partition."""
        return ComputedPartition(number, self)


class ChunkResult(NamedTuple):
    """The results of a chunk: messages by topic, and the states that changed."""

    messages: Mapping[str, Sequence[Message]]
    states: Mapping[str, StoredState]


class ComputedPartition:
    """See the module; a `streams.kafka.partitions.PartitionWork`."""

    def __init__(self, number: int, resources: Computing) -> None:
        self._number = number
        self._resources = resources
        self._stage = resources.stage
        self._has_states = False

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Process a chunk; returns when all of its results are durable."""
        if not self._has_states:
            await self._resources.states.load(self._number)
            self._has_states = True
        if self._resources.reframe is not None:
            chunk.values = await self._resources.reframe(chunk.values)
        await self._finish(chunk)
        done()

    async def end(self, grace: float) -> None:
        """Return at once: all work is done when `take` returns."""

    async def _finish(self, chunk: Chunk) -> None:
        """Make all results of a chunk durable. A failing chunk is halved until the failing record is isolated."""
        resources = self._resources
        try:
            async with resources.slots:
                result = await asyncio.to_thread(self._compute, chunk)
        except OURS:
            raise
        except failures() as error:
            message = "stage %s failed on the positions %d to %d of %s, partition %d"
            ends = chunk.first_offset, chunk.next_offset - 1
            log.exception(message, self._stage.name, *ends, chunk.topic, chunk.partition)
            if middle := len(chunk.records) // 2:
                await self._finish(chunk.part(0, middle))
                await self._finish(chunk.part(middle, len(chunk.records)))
                return
            letters = self._letters(chunk, {chunk.first_offset}, stage_failed(self._stage.name, error))
            result = ChunkResult({DEAD_LETTERS: keyed(letters)}, {})
        await asyncio.gather(*(resources.producer.send(topic, messages) for topic, messages in result.messages.items()))
        await resources.states.save(self._number, result.states)

    def _compute(self, chunk: Chunk) -> ChunkResult:
        """Compute the results of a chunk. It is CPU-bound and runs in a thread."""
        resources = self._resources
        batch, letters = batch_of(chunk, resources.states.partitions, resources.redactor)
        carried = resources.states.get(self._number, batch.keys())
        deduplicated = deduplicate(
            batch.unseen({key: state.next_offset for key, state in carried.items()}),
            {key: state.identities for key, state in carried.items()},
        )
        letters += self._letters(chunk, deduplicated.conflicts, CONFLICT)
        outcome, states = self._run(deduplicated.batch, deduplicated, carried)
        if too_large := [key for key, state in states.items() if is_too_large(state)]:
            for key in too_large:
                letters += self._too_large(chunk, deduplicated.batch.of_session(key), key)
            outcome, states = self._run(deduplicated.batch.filtered(~pl.col(KEY).is_in(too_large)), deduplicated, carried)
        letters += outcome.dead.messages.get(DEAD_LETTERS, ())
        messages = {**outcome.made.messages, DEAD_LETTERS: letters}
        return ChunkResult({topic: keyed(encoded) for topic, encoded in messages.items() if encoded}, states)

    def _run(
        self, batch: StageBatch, deduplicated: DeduplicationResult, carried: Mapping[str, StoredState]
    ) -> tuple[StageOutcome, dict[str, StoredState]]:
        """Run the step over a batch; also returns the new state of each session whose state changed."""
        before, ends = {key: carried[key].state for key in batch.keys() if key in carried}, batch.ends()  # noqa: SIM118 - a batch is not a dict
        outcome = self._resources.runs.run(self._stage, batch, before, self._number)
        states = {
            key: StoredState(ends[key], deduplicated.windows[key].packed(), state)
            for key, state in outcome.states.items()
            if key in ends
        }
        return outcome, states

    def _too_large(self, chunk: Chunk, batch: StageBatch, key: str) -> Sequence[bytes]:
        """Return the dead letters of a session's records that would make its state too large."""
        log.error("stage %s: the state of session %s would pass %d bytes", self._stage.name, key, MAX_STATE_BYTES)
        detail = f"the state of session {key} would pass {MAX_STATE_BYTES} bytes with this record"
        return self._letters(chunk, {offset for offset, *_ in batch.records()}, Refusal(self._stage.name, TOO_LARGE, detail))

    def _letters(self, chunk: Chunk, offsets: Collection[int], refusal: Refusal) -> list[bytes]:
        """Return the dead letters of the chunk's records at some offsets."""
        refused = [record for record in chunk.records if record.offset in offsets] if offsets else ()
        return [letter_of(chunk.topic, self._number, record, refusal, self._resources.redactor) for record in refused]


CHUNK_TASKS = 10
"""Tasks of a chunk: the offset advances by chunks, and each task may take minutes."""
MARGIN_MS = 5 * 60 * 1000
"""The largest difference between the clocks of two brokers."""
(NO_CONTENT,) = hashes_of([b""])
"""The content of every task in the window of a session: its identity is enough."""


@dataclass(frozen=True, kw_only=True)
class KafkaJudging(JudgingContext):
    """The resources for judging all partitions of a stage on Kafka. Stages with the same judge share its `slots`."""

    connection: KafkaConnection
    producer: Sender
    states: StateTopic
    is_sure: Callable[[], bool]
    """Returns whether no other worker can have our partitions."""
    fail: Callable[[BaseException], None] = end_process
    """Called with unrecoverable errors."""

    def open_partition(self, number: int) -> JudgedPartition:
        """Start the work on a partition."""
        return JudgedPartition(number, self)


def task_identity(stage: JudgedStage[Any], connection: str, subject_id: str, revision: int) -> int:
    """Return the hash of a task's identity, as in the window of its session."""
    identity = stage.identity(connection, subject_id, revision)
    (hashed,) = hashes_of(["\x1f".join([stage.task_type.__name__, *identity]).encode()])
    return hashed


class JudgedPartition:
    """See the module; a `streams.kafka.partitions.PartitionWork`, and the `streams.judging.judging_partition.TaskLog` of its tasks."""

    keeps_calls = True

    def __init__(self, number: int, context: KafkaJudging) -> None:
        self.number = number
        self.tasks = JudgingPartition(self, context, context.fail)
        self._calls = RecordedCalls(context.stage)
        """Calls that earlier processes recorded for unfinished tasks."""
        self._context = context
        self._stage = context.stage
        self._is_taken_up = False
        self._guard = OwnershipGuard(context.producer, context.is_sure)

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Queue a chunk's tasks; returns when there is room for more, or when the partition is revoked."""
        with contextlib.suppress(StoppedError):
            if not self._is_taken_up:
                await self._take_up(chunk.records[0].timestamp)
            rows, letters = await asyncio.to_thread(self._tasks_in, chunk)
            await self._send(DEAD_LETTERS, letters)
            await self.tasks.take(rows, chunk.next_offset, done)

    async def end(self, grace: float) -> None:
        """Make no more calls, wait up to `grace` seconds until the calls in progress are recorded, and give up the rest."""
        await self.tasks.end(grace)
        await self._guard.end()

    async def state_of(self, pending: Pending) -> JudgedState | None:
        """See `TaskLog`."""
        stored = self._stored(pending.key)
        return None if self._identity(pending.task) in Window.of(stored.identities).contents else STATE.decode(stored.state)

    async def recorded_of(self, pending: Pending) -> Sequence[Judgement]:
        """See `TaskLog`."""
        return self._calls.of(self._stage.subject_of(pending.task))

    async def append(self, commit: Commit, about: Record) -> None:
        """See `TaskLog`. The position advances with the chunk."""
        for topic, messages in commit.records.items():
            await self._send(topic, messages)
        for key, state in commit.states.get(self._stage.name, {}).items():
            window = Window.of(self._stored(key).identities)
            if self._stage.sink in commit.records:  # a task that became a dead letter may be sent again
                window.contents[self._identity(about)] = NO_CONTENT
            await self._save(key, StoredState(STATE.decode(state).next_offset, window.packed(), state))

    async def _take_up(self, since: int) -> None:
        """Read the calls recorded since then, and charge calls with an unknown outcome in full, before judging anything."""
        await self._guard.insist(lambda: self._read_back(since))
        interrupted = all_interrupted(self._calls.unsettled(), self._context.now())
        await self._send(JUDGEMENTS, [encode(judgement) for judgement in interrupted])
        for judgement in interrupted:
            self._calls.add(judgement)
        self._is_taken_up = True

    async def _read_back(self, since: int) -> None:
        context = self._context
        await context.states.load(self.number)
        await self._calls.read(context.connection, context.states, self.number, since)

    def _tasks_in(self, chunk: Chunk) -> tuple[list[tuple[int, str, Record]], list[bytes]]:
        """Return the chunk's tasks with offset and session, and the dead letters of records that are not tasks or cannot be read."""
        redactor = self._context.redactor
        try:
            batch, letters = batch_of(chunk, self._context.states.partitions, redactor)
            return list(batch.records()), letters
        except failures() as error:
            log.exception("stage %s cannot read offset %d of partition %d", self._stage.name, chunk.first_offset, self.number)
            if len(chunk.records) == 1:
                refusal = stage_failed(self._stage.name, error)
                return [], [letter_of(chunk.topic, self.number, chunk.records[0], refusal, redactor)]
        parts = [self._tasks_in(chunk.part(index, index + 1)) for index in range(len(chunk.records))]
        return [task for tasks, _ in parts for task in tasks], [letter for _, letters in parts for letter in letters]

    def _stored(self, key: str) -> StoredState:
        empty = StoredState(0, b"", msgspec.msgpack.encode(JudgedState()))
        return self._context.states.get(self.number, [key]).get(key, empty)

    def _identity(self, task: Record) -> int:
        return task_identity(self._stage, *self._stage.subject_of(task), self._stage.revision_of(task))

    async def _send(self, topic: str, messages: Sequence[bytes]) -> None:
        await self._guard.send(topic, keyed(messages), partition=self.number if topic == JUDGEMENTS else None)

    async def _save(self, key: str, state: StoredState) -> None:
        await self._guard.insist(lambda: self._context.states.save(self.number, {key: state}))


@dataclass
class RecordedCalls:
    """Judgements of a stage by subject, and reservations; repeated records count once."""

    stage: JudgedStage[Any]
    _judgements: dict[Subject, dict[str, Judgement]] = field(default_factory=dict)
    _reservations: dict[str, Reservation] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    async def read(self, connection: KafkaConnection, states: StateTopic, partition: int, since: int) -> None:
        """Add the recorded calls of the unfinished tasks in a partition.

        `since` is when the first of these tasks arrived, in milliseconds since 1970; the partition's states must be loaded. BrokerError
        when the topic cannot be read.
        """
        source = (JUDGEMENTS, partition)
        async with PartitionReader(connection) as reader:
            end = (await reader.ranges([source]))[source].end
            start = (await reader.offsets_at(max(0, since - MARGIN_MS), [source]))[source]
            if start is not None:
                async for records, _ in reader.read_until(source, start, end):
                    await asyncio.to_thread(self._take_in, records, states, partition)

    def _take_in(self, records: Sequence[RawRecord], states: StateTopic, partition: int) -> None:
        """Add the records about unfinished tasks. Undecodable values are ignored here and become dead letters elsewhere."""
        batch = StageBatch.of(JUDGEMENTS, decode_chunk(JUDGEMENTS, records).frames)
        windows = {key: Window.of(state.identities) for key, state in states.get(partition, batch.keys()).items()}
        for _, key, record in batch.records():
            if isinstance(record, Judgement | Reservation) and record.purpose in self.stage.purposes:
                identity = task_identity(self.stage, record.connection, record.subject_id, record.subject_revision)
                if key not in windows or identity not in windows[key].contents:
                    self.add(record)

    def add(self, record: Record) -> None:
        """Add a record of the topic."""
        if isinstance(record, Reservation):
            self._reservations.setdefault(record.reservation_id, record)
        elif isinstance(record, Judgement):
            about = self._judgements.setdefault((record.connection, record.subject_id), {})
            about.setdefault(record.judgement_id, record)
            self._settled.update(record.reservation_ids)

    def of(self, subject: Subject) -> Sequence[Judgement]:
        """Return the judgements of a subject, in the order of recording."""
        return list(self._judgements.get(subject, {}).values())

    def unsettled(self) -> list[Reservation]:
        """Return the reservations that no judgement settles, oldest first."""
        left = (record for name, record in self._reservations.items() if name not in self._settled)
        return sorted(left, key=lambda record: (record.reserved_at, record.reservation_id))
