"""A judged stage on Kafka: the tasks of one partition of a topic, and the broker as the log of what becomes of them.

1. Before every write it is asked whether the partition is still ours; where it may not be, nothing more is written.
2. What was made is with the broker before the session's state says so.
3. A chunk is done when each of its tasks is. Chunks are small, so that the offset moves on.
4. A partition is taken up with its first chunk: what was recorded of calls is read back from `judgements`. Nothing that a task does not
   carry is recorded of it before it is on its topic, so reading begins when the first task that is not committed came, a margin earlier:
   the clocks of two brokers may differ. Tasks that their session's state knows are done are left out: what was recorded of them is in
   what came of them.
5. A reservation that no judgement settles belongs to a call whose process is gone, and is charged in full. Calls of other stages on the
   same topic are not ours.
6. Without a judge the stage's step computes what comes of whole chunks, from what was recorded; calls that were cut off when there was
   one are charged all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Reservation
from streams.engine.stage_runs import StageRuns, failures, stage_failed
from streams.judging.call_budget import StoppedError, all_interrupted
from streams.judging.judged_stages import JudgedStage
from streams.judging.judged_state import STATE, JudgedState, kept_after
from streams.judging.judging_partition import JudgingContext, JudgingPartition, Pending
from streams.judging.recorded_judgements import Subject
from streams.judging.task_judge import TaskResult
from streams.kafka.computed_stage import AT_ONCE, ComputedPartition, Computing
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import batch_of, decode_chunk, unworkable
from streams.kafka.deduplication import Window, hashes_of
from streams.kafka.ownership import OwnershipGuard, Pulse
from streams.kafka.partitions import PartitionWork, end_process
from streams.kafka.producing import Sender, key_of, keyed
from streams.kafka.reading import Chunk, PartitionReader, RawRecord
from streams.kafka.states import StateTopic, StoredState
from streams.log.admission import DEAD_LETTERS, Accepted
from streams.stage_batches import StageBatch
from streams.topology import keeping_calls

CHUNK_TASKS = 10
"""Tasks of a chunk where a judge is asked: the offset moves on chunk by chunk, and each task may take minutes."""
JUDGEMENTS = "judgements"
MARGIN_MS = 5 * 60 * 1000
"""The largest difference between the clocks of two brokers."""
(NO_CONTENT,) = hashes_of([b""])
"""The content of a task in the window of a session: its identity says everything."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KafkaJudging(JudgingContext):
    """The means with which every partition of a stage is judged on Kafka. Stages that ask the same judge share its `turns`."""

    connection: KafkaConnection
    producer: Sender
    states: StateTopic
    pulse: Pulse
    is_sure: Callable[[], bool]
    """Tells whether no other worker can have our partitions."""
    fail: Callable[[BaseException], None] = end_process
    """Called with unrecoverable errors."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    """Chunks that are computed at once where there is no judge."""

    def open_partition(self, number: int) -> PartitionWork:
        """Begin the work on a partition."""
        tasks = KafkaTasks(number, self)
        return tasks if self.judge is not None else UnjudgedPartition(tasks, self)


def task_identity(stage: JudgedStage[Any], connection: str, subject_id: str, revision: int) -> int:
    """The hash of the identity of a stage's task, as the window of its session keeps it."""
    identity = stage.identity(connection, subject_id, revision)
    (hashed,) = hashes_of(["\x1f".join([stage.task_type.__name__, *identity]).encode()])
    return hashed


class KafkaTasks:
    """See the module; a `streams.judging.judging_partition.TaskLog` and, with a judge, a `streams.kafka.partitions.PartitionWork`."""

    def __init__(self, number: int, context: KafkaJudging) -> None:
        self.number = number
        self.calls = RecordedCalls(context.stage)
        """What earlier processes recorded of tasks that are not done."""
        self.partition = JudgingPartition(self, context, context.fail)
        self._context = context
        self._stage = context.stage
        self._is_taken_up = False
        self._guard = OwnershipGuard(context.producer, context.pulse.check, context.is_sure, self.partition.close)

    async def take_up(self, since: int) -> bool:
        """Read what was recorded since then, and charge in full the calls with an unknown outcome.

        Once, before anything is judged. False when the partition goes away meanwhile; what the guard lost it by where that was not told.
        """
        with self._unless_stopped():
            if not self._is_taken_up:
                await self._guard.insist(lambda: self._read_back(since))
                await self._settle()
                self._is_taken_up = True
        return self._is_taken_up

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Queue a chunk's tasks; returns when there is room for more, or the partition goes away."""
        with self._unless_stopped():
            if self.partition.is_closed or not await self.take_up(chunk.records[0].timestamp):
                return
            rows, letters = await asyncio.to_thread(self._tasks_in, chunk)
            await self._set_aside(letters)
            await self.partition.take(rows, done)

    async def end(self, grace: float) -> None:
        """Make no more calls, let those under way be recorded for so many seconds at most, and give up the rest."""
        await self.partition.end(grace)
        await self._guard.end()

    def state_of(self, pending: Pending) -> JudgedState | None:
        """See `TaskLog`."""
        stored = self._stored(pending.key)
        is_done = pending.offset < stored.next_offset or self._identity(pending) in Window.of(stored.identities).contents
        return None if is_done else STATE.decode(stored.state)

    def recorded_of(self, pending: Pending, state: JudgedState) -> Sequence[Judgement]:
        """See `TaskLog`."""
        return (*self.calls.of(pending.task), *state.recorded_of(self._stage.id_of(pending.task)))

    async def record(self, record: Judgement | Reservation) -> None:
        """See `TaskLog`."""
        await self._send_calls([record])

    async def commit(self, pending: Pending, before: JudgedState, result: TaskResult) -> None:
        """See `TaskLog`."""
        key, window, states = pending.key, Window.of(self._stored(pending.key).identities), self._context.states
        await self._set_aside(result.dead)
        for topic, messages in result.made.messages.items():
            await self._guard.send(topic, [(key.encode(), message) for message in messages])
            window.contents[self._identity(pending)] = NO_CONTENT  # one that was set aside may be sent again
        kept = kept_after(before.kept, pending.task, result.judgements, self._context.policy)
        state = msgspec.msgpack.encode(JudgedState(pending.offset + 1, result.spent, kept))
        after = StoredState(pending.offset + 1, window.packed(), state)
        await self._guard.insist(lambda: states.save(self.number, {key: after}))

    @contextlib.contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        """Leave quietly where the partition goes away, and with the reason where it was lost without a word."""
        with contextlib.suppress(StoppedError):
            yield
        if self._guard.lost is not None:
            raise self._guard.lost

    async def _read_back(self, since: int) -> None:
        context = self._context
        await context.states.load(self.number)
        await self.calls.read(context.connection, context.states, self.number, since)

    async def _settle(self) -> None:
        interrupted = all_interrupted(self.calls.unsettled(), self._context.now())
        await self._send_calls(interrupted)
        for judgement in interrupted:
            self.calls.add(judgement)

    def _tasks_in(self, chunk: Chunk) -> tuple[list[tuple[int, str, Record]], Accepted]:
        """The chunk's tasks with offset and session, and the dead letters of what is none, and of what cannot be read for any reason."""
        try:
            batch, letters = batch_of(chunk, self._context.states.partitions, self._context.redactor)
            return list(batch.records()), letters
        except failures() as error:
            log.exception("stage %s cannot read offset %d of partition %d", self._stage.name, chunk.first_offset, self.number)
            if len(chunk.records) == 1:
                return [], unworkable(chunk, stage_failed(self._stage.name, error), self._context.redactor)
        tasks, letters = list[tuple[int, str, Record]](), Accepted()
        for place in range(len(chunk.records)):
            of_record, refused = self._tasks_in(chunk.part(place, place + 1))
            tasks += of_record
            letters.extend(refused)
        return tasks, letters

    def _stored(self, key: str) -> StoredState:
        empty = StoredState(0, b"", msgspec.msgpack.encode(JudgedState()))
        return self._context.states.get(self.number, [key]).get(key, empty)

    def _identity(self, pending: Pending) -> int:
        stage, task = self._stage, pending.task
        return task_identity(stage, *stage.subject_of(task), stage.revision_of(task))

    async def _send_calls(self, records: Sequence[Judgement | Reservation]) -> None:
        await self._guard.send(JUDGEMENTS, [(key_of(record), encode(record)) for record in records], partition=self.number)

    async def _set_aside(self, letters: Accepted) -> None:
        await self._guard.send(DEAD_LETTERS, keyed(letters.messages.get(DEAD_LETTERS, ())))


class UnjudgedPartition:
    """The partition of a judged stage that has no judge; a `streams.kafka.partitions.PartitionWork`."""

    def __init__(self, tasks: KafkaTasks, context: KafkaJudging) -> None:
        self._tasks = tasks
        stage = keeping_calls(context.stage)
        runs = StageRuns(context.policy, tasks.calls.of_all, context.redactor, context.now, [stage])
        self._computed = ComputedPartition(
            tasks.number,
            Computing(
                stage=stage,
                runs=runs,
                redactor=context.redactor,
                now=context.now,
                producer=context.producer,
                states=context.states,
                pulse=context.pulse,
                slots=context.slots,
            ),
        )

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Work on a chunk until all that came of it is durable."""
        if await self._tasks.take_up(chunk.records[0].timestamp):
            await self._computed.take(chunk, done)

    async def end(self, grace: float) -> None:
        """Begin nothing more."""
        await self._tasks.end(grace)


@dataclass
class RecordedCalls:
    """Judgements of a stage by subject, and reservations; a record that came before counts once."""

    stage: JudgedStage[Any]
    _judgements: dict[Subject, dict[str, Judgement]] = field(default_factory=dict)
    _reservations: dict[str, Reservation] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    async def read(self, connection: KafkaConnection, states: StateTopic, partition: int, since: int) -> None:
        """Add the calls recorded of tasks that are not done, in the partition of that number.

        `since` is when the first of them came, in milliseconds since 1970; the partition's states are loaded. BrokerError when the topic
        cannot be read.
        """
        place = (JUDGEMENTS, partition)
        async with PartitionReader(connection) as reader:
            end = (await reader.ranges([place]))[place].end
            start = (await reader.offsets_at(max(0, since - MARGIN_MS), [place]))[place]
            if start is not None:
                async for records, _ in reader.read_until(place, start, end):
                    await asyncio.to_thread(self._take_in, records, states, partition)

    def _take_in(self, records: Sequence[RawRecord], states: StateTopic, partition: int) -> None:
        """Add what is about tasks that are not done. What cannot be decoded is none of ours, and a dead letter elsewhere."""
        batch = StageBatch.of(JUDGEMENTS, decode_chunk(JUDGEMENTS, records).frames)
        windows = {key: Window.of(state.identities) for key, state in states.get(partition, batch.keys()).items()}
        for _, key, record in batch.records():
            if isinstance(record, Judgement | Reservation) and record.purpose in self.stage.purposes:
                identity = task_identity(self.stage, record.connection, record.subject_id, record.subject_revision)
                if key not in windows or identity not in windows[key].contents:
                    self.add(record)

    def add(self, record: Record) -> None:
        """Take in a record of the topic."""
        if isinstance(record, Reservation):
            self._reservations.setdefault(record.reservation_id, record)
        elif isinstance(record, Judgement):
            about = self._judgements.setdefault((record.connection, record.subject_id), {})
            about.setdefault(record.judgement_id, record)
            self._settled.update(record.reservation_ids)

    def of(self, task: Record) -> Sequence[Judgement]:
        """The judgements of a task's subject, in the order they were recorded."""
        return list(self._judgements.get(self.stage.subject_of(task), {}).values())

    def of_all(self, subjects: Iterable[Subject]) -> dict[Subject, Sequence[Judgement]]:
        """The judgements of those of the subjects that have any."""
        return {subject: list(self._judgements[subject].values()) for subject in subjects if subject in self._judgements}

    def unsettled(self) -> list[Reservation]:
        """The reservations that no judgement settles, oldest first."""
        left = (record for name, record in self._reservations.items() if name not in self._settled)
        return sorted(left, key=lambda record: (record.reserved_at, record.reservation_id))
