"""The tasks of a judged stage in one partition of a topic, and the broker as the log of what becomes of them.

1. Before every write it is asked whether the partition is still ours; where it may not be, nothing more is written.
2. What was made is with the broker before the session's state says so.
3. A chunk is done when each of its tasks is. Chunks are small, so that the offset moves on.
4. Without a judge a partition is taken up here and its tasks are judged elsewhere: calls that were cut off when there was one are charged all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Reservation
from streams.engine.stage_runs import failures, stage_failed
from streams.judging.call_budget import StoppedError, all_interrupted
from streams.judging.judged_state import STATE, JudgedState, kept_after
from streams.judging.judging_partition import JudgingContext, JudgingPartition, Pending
from streams.judging.task_judge import TaskResult
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import batch_of, unworkable
from streams.kafka.deduplication import Window
from streams.kafka.producing import Sender, key_of, keyed
from streams.kafka.reading import Chunk
from streams.kafka.states import StateTopic, StoredState
from streams.kafka.worker.ownership_guard import OwnershipGuard
from streams.kafka.worker.partition_queues import end_process
from streams.kafka.worker.recorded_calls import JUDGEMENTS, NO_CONTENT, RecordedCalls, read_calls, task_identity
from streams.kafka.worker.watchdog import Pulse
from streams.log.admission import DEAD_LETTERS, Accepted

CHUNK_TASKS = 10
"""Tasks of a chunk where a judge is asked: the offset moves on chunk by chunk, and each task may take minutes."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KafkaJudging(JudgingContext):
    """The means with which every partition of a stage is judged on Kafka."""

    connection: KafkaConnection
    producer: Sender
    states: StateTopic
    pulse: Pulse
    is_sure: Callable[[], bool]
    """Tells whether no other worker can have our partitions."""
    fail: Callable[[BaseException], None] = end_process
    """Called with unrecoverable errors."""


class KafkaTasks:
    """See the module; a `streams.judging.judging_partition.TaskLog`. Chunks come one after another; the first takes the partition up."""

    def __init__(self, number: int, context: KafkaJudging) -> None:
        self.number = number
        self.calls = RecordedCalls(context.stage)
        """What earlier processes recorded of tasks that are not done."""
        self.partition = JudgingPartition(self, context, context.fail)
        self._context = context
        self._stage = context.stage
        self._taken_up = False
        self._lease = OwnershipGuard(context.producer, context.pulse.check, context.is_sure, self.partition.close)

    async def take_up(self, since: int) -> bool:
        """Read what was recorded since then, and charge in full the calls with an unknown outcome.

        Once, before anything is judged. False when the partition goes away meanwhile; what `lease` raises where that was not told.
        """
        with self._unless_stopped():
            if not self._taken_up:
                await self._lease.insist(lambda: self._read_back(since))
                await self._settle()
                self._taken_up = True
        return self._taken_up

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
        await self._lease.end()

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
            await self._lease.send(topic, [(key.encode(), message) for message in messages])
            window.contents[self._identity(pending)] = NO_CONTENT  # one that was set aside may be sent again
        kept = kept_after(before.kept, pending.task, result.judgements, self._context.policy)
        state = msgspec.msgpack.encode(JudgedState(pending.offset + 1, result.spent, kept))
        after = StoredState(pending.offset + 1, window.packed(), state)
        await self._lease.insist(lambda: states.save(self.number, {key: after}))

    @contextlib.contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        """Leave quietly where the partition goes away, and with the reason where it was lost without a word."""
        with contextlib.suppress(StoppedError):
            yield
        if self._lease.lost is not None:
            raise self._lease.lost

    async def _read_back(self, since: int) -> None:
        context = self._context
        await context.states.load(self.number)
        self.calls = await read_calls(self._stage, context.connection, context.states, self.number, since)

    async def _settle(self) -> None:
        found = all_interrupted(self.calls.unsettled(), self._context.now())
        await self._send_calls(found)
        for one in found:
            self.calls.add(one)

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
            found, refused = self._tasks_in(chunk.part(place, place + 1))
            tasks += found
            letters.extend(refused)
        return tasks, letters

    def _stored(self, key: str) -> StoredState:
        empty = StoredState(0, b"", msgspec.msgpack.encode(JudgedState()))
        return self._context.states.get(self.number, [key]).get(key, empty)

    def _identity(self, pending: Pending) -> int:
        stage, task = self._stage, pending.task
        return task_identity(stage, *stage.subject_of(task), stage.revision_of(task))

    async def _send_calls(self, records: Sequence[Judgement | Reservation]) -> None:
        await self._lease.send(JUDGEMENTS, [(key_of(one), encode(one)) for one in records], partition=self.number)

    async def _set_aside(self, letters: Accepted) -> None:
        await self._lease.send(DEAD_LETTERS, keyed(letters.messages.get(DEAD_LETTERS, ())))
