"""The stages on the chunks of a partition: computing stages (intake, diagnosis), and judged stages, whose log is the broker.

A computing stage decodes a chunk, skips duplicates and the records that its states have seen, runs the step, produces the step's records
and the dead letters, and then writes the states. If the process is killed in between, the same records are delivered again and give the
same results with the same ids.

Judged stages:

1. Before every write the stage checks that this process still owns the partition. If that is uncertain, it writes nothing more.
2. The broker has a task's result before the session's state says that the task is finished.
3. A chunk is finished when all of its tasks are. Chunks are small, so that the committed offset advances.
4. With the first chunk of a partition, the stage reads the recorded calls back from `judgements`. A call is recorded only after its task
   is on the tasks' topic, unless the task itself carries it. So reading starts at the arrival time of the first uncommitted task, minus
   the possible clock skew between brokers. Calls of finished tasks are skipped, because they are part of the tasks' results.
5. A reservation without a judgement belongs to a call whose process was killed, and is charged in full. Calls of other stages on the same
   topic are ignored.
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
from streams.engine.embedded import StageOutcome, StageRunner, stage_failure, step_errors
from streams.judging.call_budget import StoppedError, interrupted_judgements
from streams.judging.judged_stages import STATE, JudgedStage, JudgedState, Subject
from streams.judging.judging_partition import JUDGEMENTS, JudgingContext, JudgingPartition, PendingTask
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import (
    CONFLICT,
    DeduplicationResult,
    Reframe,
    Window,
    batch_of,
    build_dead_letter,
    decode_chunk,
    deduplicate,
    hashes_of,
)
from streams.kafka.encryption import TextEncryption, decrypter_of
from streams.kafka.partitions import OwnershipGuard, end_process
from streams.kafka.producing import Message, Sender, keyed
from streams.kafka.reading import Chunk, PartitionReader, RawRecord
from streams.kafka.states import MAX_STATE_BYTES, StateTopic, StoredState, is_too_large
from streams.log.admission import DEAD_LETTERS, Refusal
from streams.log.log import Commit
from streams.stage_batches import KEY, StageBatch
from streams.topology import Stage

MAX_CONCURRENT_CHUNKS = 2
"""Chunks of a stage that this process computes concurrently."""
TOO_LARGE = "state_too_large"
PROCESS_ERRORS = (BrokerError, StoreError, MemoryError, OSError)
"""Errors of this process or of the broker, which no record has caused."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ComputingContext:
    """The resources that all partitions of a computing stage share."""

    stage: Stage
    runner: StageRunner
    redactor: Redactor
    producer: Sender
    states: StateTopic
    reframe: Reframe | None = None
    """Converts values before they are decoded; the partition waits for it."""
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

    def __init__(self, number: int, context: ComputingContext) -> None:
        self._number = number
        self._context = context
        self._stage = context.stage
        self._has_states = False

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Process a chunk; returns when all of its results are durable."""
        if not self._has_states:
            await self._context.states.load(self._number)
            self._has_states = True
        if self._context.reframe is not None:
            chunk.values = await self._context.reframe(chunk.values)
        await self._process(chunk)
        done()

    async def end(self, grace: float) -> None:
        """Return at once: all work is done when `take` returns."""

    async def _process(self, chunk: Chunk) -> None:
        """Make all results of a chunk durable. A failing chunk is halved until the failing record is isolated."""
        context = self._context
        try:
            async with context.slots:
                result = await asyncio.to_thread(self._compute, chunk)
        except PROCESS_ERRORS:
            raise
        except step_errors() as error:
            log.exception(
                "stage %s failed on the offsets %d to %d of %s, partition %d",
                self._stage.name,
                chunk.first_offset,
                chunk.next_offset - 1,
                chunk.topic,
                chunk.partition,
            )
            middle = len(chunk.records) // 2
            if middle:
                await self._process(chunk.part(0, middle))
                await self._process(chunk.part(middle, len(chunk.records)))
                return
            dead_letters = self._build_dead_letters(chunk, {chunk.first_offset}, stage_failure(self._stage.name, error))
            result = ChunkResult({DEAD_LETTERS: keyed(dead_letters)}, {})
        await asyncio.gather(*(context.producer.send(topic, messages) for topic, messages in result.messages.items()))
        await context.states.save(self._number, result.states)

    def _compute(self, chunk: Chunk) -> ChunkResult:
        """Compute the results of a chunk. It is CPU-bound and runs in a thread."""
        context = self._context
        batch, dead_letters = batch_of(chunk, context.states.partitions, context.redactor)
        earlier_states = context.states.get(self._number, batch.keys())
        deduplicated = deduplicate(
            batch.unseen({key: state.next_offset for key, state in earlier_states.items()}),
            {key: state.identities for key, state in earlier_states.items()},
        )
        dead_letters += self._build_dead_letters(chunk, deduplicated.conflicts, CONFLICT)
        outcome, states = self._run_step(deduplicated.batch, deduplicated, earlier_states)
        too_large = [key for key, state in states.items() if is_too_large(state)]
        if too_large:
            for key in too_large:
                dead_letters += self._reject_too_large(chunk, deduplicated.batch.of_session(key), key)
            remaining = deduplicated.batch.filtered(~pl.col(KEY).is_in(too_large))
            outcome, states = self._run_step(remaining, deduplicated, earlier_states)
        dead_letters += outcome.dead_letters.messages.get(DEAD_LETTERS, ())
        messages = {**outcome.output.messages, DEAD_LETTERS: dead_letters}
        return ChunkResult({topic: keyed(encoded) for topic, encoded in messages.items() if encoded}, states)

    def _run_step(
        self, batch: StageBatch, deduplicated: DeduplicationResult, earlier_states: Mapping[str, StoredState]
    ) -> tuple[StageOutcome, dict[str, StoredState]]:
        """Run the step over a batch. Also return the new state of each session whose state changed."""
        step_states = {key: earlier_states[key].state for key in batch.keys() if key in earlier_states}  # noqa: SIM118 - a batch is not a dict
        outcome = self._context.runner.run(self._stage, batch, step_states, self._number)
        ends = batch.ends()
        states = {
            key: StoredState(ends[key], deduplicated.windows[key].packed(), state)
            for key, state in outcome.states.items()
            if key in ends
        }
        return outcome, states

    def _reject_too_large(self, chunk: Chunk, batch: StageBatch, key: str) -> Sequence[bytes]:
        """Return the dead letters of a session's records that would make its state too large."""
        log.error("stage %s: the state of session %s would exceed %d bytes", self._stage.name, key, MAX_STATE_BYTES)
        detail = f"the state of session {key} would exceed {MAX_STATE_BYTES} bytes with this record"
        offsets = {offset for offset, _, _ in batch.records()}
        return self._build_dead_letters(chunk, offsets, Refusal(self._stage.name, TOO_LARGE, detail))

    def _build_dead_letters(self, chunk: Chunk, offsets: Collection[int], refusal: Refusal) -> list[bytes]:
        """Return the dead letters of the chunk's records at these offsets."""
        refused = [record for record in chunk.records if record.offset in offsets] if offsets else ()
        return [build_dead_letter(chunk.topic, self._number, record, refusal, self._context.redactor) for record in refused]


CHUNK_TASKS = 10
"""Tasks in a chunk. The committed offset advances by chunks, and each task may take minutes."""
_MAX_CLOCK_SKEW_MS = 5 * 60 * 1000
"""The largest expected difference between the clocks of two brokers, in milliseconds."""
(NO_CONTENT,) = hashes_of([b""])
"""The content hash of every task in the window of a session, because a task's identity determines its content."""


@dataclass(frozen=True, kw_only=True)
class KafkaJudgingContext(JudgingContext):
    """The resources for judging all partitions of a stage on Kafka. Stages with the same judge share its `slots`."""

    connection: KafkaConnection
    producer: Sender
    states: StateTopic
    encryption: TextEncryption | None = None
    is_sure: Callable[[], bool]
    """Returns whether this process certainly still owns its partitions."""
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

    def __init__(self, number: int, context: KafkaJudgingContext) -> None:
        self.number = number
        self.tasks = JudgingPartition(self, context, context.fail)
        self._calls = RecordedCalls(context.stage)
        """Calls that earlier processes recorded for unfinished tasks."""
        self._context = context
        self._stage = context.stage
        self._has_restored_calls = False
        self._guard = OwnershipGuard(context.producer, context.is_sure)

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Queue a chunk's tasks; returns when there is room for more, or when the partition is revoked."""
        with contextlib.suppress(StoppedError):
            if not self._has_restored_calls:
                await self._restore_calls(chunk.records[0].timestamp)
            rows, dead_letters = await asyncio.to_thread(self._read_tasks, chunk)
            await self._send(DEAD_LETTERS, dead_letters)
            await self.tasks.enqueue(rows, chunk.next_offset, done)

    async def end(self, grace: float) -> None:
        """Make no more calls, wait up to `grace` seconds for the calls in progress, and cancel the rest."""
        await self.tasks.stop(grace)
        await self._guard.end()

    async def read_state(self, pending: PendingTask) -> JudgedState | None:
        """See `TaskLog`."""
        stored = self._load_state(pending.key)
        return (
            None if self._hash_identity(pending.task) in Window.of(stored.identities).contents else STATE.decode(stored.state)
        )

    async def read_judgements(self, pending: PendingTask) -> Sequence[Judgement]:
        """See `TaskLog`."""
        return self._calls.of(self._stage.subject_of(pending.task))

    async def append(self, commit: Commit, record: Record) -> None:
        """See `TaskLog`. The position is committed with the chunk."""
        for topic, messages in commit.records.items():
            await self._send(topic, messages)
        for key, state in commit.states.get(self._stage.name, {}).items():
            window = Window.of(self._load_state(key).identities)
            if self._stage.sink in commit.records:  # otherwise the task became a dead letter, which may be sent again
                window.contents[self._hash_identity(record)] = NO_CONTENT
            await self._save(key, StoredState(STATE.decode(state).next_offset, window.packed(), state))

    async def _restore_calls(self, since: int) -> None:
        """Read the calls recorded since a time in milliseconds since 1970, and charge calls with an unknown outcome in full."""
        await self._guard.repeat(lambda: self._read_calls(since))
        interrupted = interrupted_judgements(self._calls.unsettled(), self._context.now())
        await self._send(JUDGEMENTS, [encode(judgement) for judgement in interrupted])
        for judgement in interrupted:
            self._calls.add(judgement)
        self._has_restored_calls = True

    async def _read_calls(self, since: int) -> None:
        context = self._context
        await context.states.load(self.number)
        async with PartitionReader(context.connection, decrypter_of(context.encryption)) as reader:
            await self._calls.read(reader, context.states, self.number, since)

    def _read_tasks(self, chunk: Chunk) -> tuple[list[tuple[int, str, Record]], list[bytes]]:
        """Return the chunk's tasks with offset and session, and the dead letters of records that are not tasks or cannot be read."""
        redactor = self._context.redactor
        try:
            batch, dead_letters = batch_of(chunk, self._context.states.partitions, redactor)
            return list(batch.records()), dead_letters
        except step_errors() as error:
            log.exception("stage %s cannot read offset %d of partition %d", self._stage.name, chunk.first_offset, self.number)
            if len(chunk.records) == 1:
                refusal = stage_failure(self._stage.name, error)
                return [], [build_dead_letter(chunk.topic, self.number, chunk.records[0], refusal, redactor)]
        # Read record by record, so that only the unreadable ones become dead letters.
        tasks: list[tuple[int, str, Record]] = []
        dead_letters = []
        for index in range(len(chunk.records)):
            record_tasks, record_letters = self._read_tasks(chunk.part(index, index + 1))
            tasks += record_tasks
            dead_letters += record_letters
        return tasks, dead_letters

    def _load_state(self, key: str) -> StoredState:
        empty = StoredState(0, b"", msgspec.msgpack.encode(JudgedState()))
        return self._context.states.get(self.number, [key]).get(key, empty)

    def _hash_identity(self, task: Record) -> int:
        return task_identity(self._stage, *self._stage.subject_of(task), self._stage.revision_of(task))

    async def _send(self, topic: str, messages: Sequence[bytes]) -> None:
        await self._guard.send(topic, keyed(messages), partition=self.number if topic == JUDGEMENTS else None)

    async def _save(self, key: str, state: StoredState) -> None:
        await self._guard.repeat(lambda: self._context.states.save(self.number, {key: state}))


@dataclass
class RecordedCalls:
    """Judgements of a stage by subject, and reservations; repeated records count once."""

    stage: JudgedStage[Any]
    _judgements: dict[Subject, dict[str, Judgement]] = field(default_factory=dict)
    _reservations: dict[str, Reservation] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    async def read(self, reader: PartitionReader, states: StateTopic, partition: int, since: int) -> None:
        """Add the recorded calls of the unfinished tasks in a partition, whose states must be loaded.

        `since` is when the first of these tasks arrived, in milliseconds since 1970. Raises BrokerError if the topic cannot be read.
        """
        source = (JUDGEMENTS, partition)
        end = (await reader.ranges([source]))[source].end
        start = (await reader.offsets_at(max(0, since - _MAX_CLOCK_SKEW_MS), [source]))[source]
        if start is not None:
            async for records, _ in reader.read_until(source, start, end):
                await asyncio.to_thread(self._add_unfinished, records, states, partition)

    def _add_unfinished(self, records: Sequence[RawRecord], states: StateTopic, partition: int) -> None:
        """Add the records about unfinished tasks. Undecodable values are ignored here; the sink makes dead letters of them."""
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
            judgements = self._judgements.setdefault((record.connection, record.subject_id), {})
            judgements.setdefault(record.judgement_id, record)
            self._settled.update(record.reservation_ids)

    def of(self, subject: Subject) -> Sequence[Judgement]:
        """Return the judgements of a subject, in the order of recording."""
        return list(self._judgements.get(subject, {}).values())

    def unsettled(self) -> list[Reservation]:
        """Return the reservations without a judgement, oldest first."""
        unsettled = (record for name, record in self._reservations.items() if name not in self._settled)
        return sorted(unsettled, key=lambda record: (record.reserved_at, record.reservation_id))
