"""One partition of a judged stage's tasks at work: sessions side by side, each one's tasks in order, everything that is paid for recorded.

1. A reservation is with the broker before its call is made, a judgement before it is used, what was made before the session's state says so.
2. Before every write it is asked whether the partition is still ours; where it may not be, nothing more is written.
3. A chunk is done when each of its tasks is. One slow call holds back its session, and the offset; not the other sessions.
   Chunks are small, and the earliest task that can be begun is begun first, so the offset moves on while a judge is slow.
4. Without a judge a partition is taken up here and its tasks are judged elsewhere: calls that were cut off when there was one are charged all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import decode, encode
from schemas.records import Record
from streams.engine.session_queues import SessionQueues
from streams.engine.stage_runs import FAILURES, stage_failed
from streams.engine.turns import Turns
from streams.judges.protocol import Judge
from streams.judging.call_budget import StoppedError, interrupted
from streams.judging.judge_calls import JudgeCalls
from streams.judging.judged_stages import JudgedStage
from streams.judging.judged_state import STATE, JudgedState, kept_after
from streams.judging.task_judge import TaskJudge
from streams.kafka.connection import KafkaConnection
from streams.kafka.keys import key_of
from streams.kafka.producing import Sender
from streams.kafka.state.deduplication import Window
from streams.kafka.state.state_topic import StateTopic
from streams.kafka.state.stored_states import StoredState
from streams.kafka.values.decoding import decode_chunk, letter_of, unworkable
from streams.kafka.worker.ownership_guard import OwnershipGuard
from streams.kafka.worker.processing import Chunk
from streams.kafka.worker.recorded_calls import JUDGEMENTS, NO_CONTENT, RecordedCalls, read_calls, task_identity
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place
from streams.stage_batches import StageBatch

CHUNK_TASKS = 10
"""Tasks of a chunk where a judge is asked: the offset moves on chunk by chunk, and each task may take minutes."""
WINDOW_TASKS = 1_000
WINDOW_BYTES = 16_000_000
"""Limits on a partition's tasks under way, by number and by bytes, before the next chunk waits. One chunk may exceed them."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JudgingContext:
    """The means with which every partition judges.

    `lease` and `is_sure` are of `OwnershipGuard`; `now` stamps records of calls.
    """

    stage: JudgedStage[Any]
    connection: KafkaConnection
    policy: Policy
    judge: Judge | None
    redactor: Redactor
    now: Callable[[], datetime]
    producer: Sender
    states: StateTopic
    lease: Callable[[], None]
    is_sure: Callable[[], bool]
    fail: Callable[[BaseException], None]
    """Called with unrecoverable errors."""
    calls: JudgeCalls
    turns: Turns
    """Tasks that are judged at once in this process, each from its first question to its last."""


@dataclass(slots=True)
class _Open:
    """A chunk that is not done: how many parts of it are left."""

    left: int
    done: Callable[[], None]

    def finish_one(self) -> None:
        self.left -= 1
        if not self.left:
            self.done()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A task that is not done."""

    offset: int
    task: Any
    """A record of the stage's type."""
    size: int
    """Bytes, as far as they count."""
    chunk: _Open


class JudgingPartition:
    """See the module. Chunks come one after another; the first takes the partition up."""

    def __init__(self, number: int, context: JudgingContext) -> None:
        self.number = number
        self.calls = RecordedCalls(context.stage)
        """What earlier processes recorded of tasks that are not done."""
        self._context = context
        self._stage = context.stage
        self._task_judge = TaskJudge(context.stage, context.policy, context.judge, self._record, context.now)
        self._queues = SessionQueues(self._judge, self._failed, context.turns)
        self._taken_up = False
        self._lease = OwnershipGuard(context.producer, context.lease, context.is_sure, self._stop)
        self._tasks = self._bytes = 0
        self._changed = asyncio.Event()

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
            if self._queues.closed or not await self.take_up(chunk.records[0].timestamp):
                return
            tasks, letters = await asyncio.to_thread(self._tasks_in, chunk)
            parts = _Open(len(tasks) + 1, done)
            for offset, key, task in tasks:
                self._add(key, _Pending(offset, task, self._stage.size_of(task), parts))
            await self._set_aside(letters)
            parts.finish_one()
            while (self._tasks >= WINDOW_TASKS or self._bytes >= WINDOW_BYTES) and not self._queues.closed:
                self._changed.clear()
                await self._changed.wait()

    async def end(self, grace: float) -> None:
        """Make no more calls, let those under way be recorded for so many seconds at most, and give up the rest."""
        self._stop()
        await self._queues.end(grace)
        await self._lease.end()

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
        found = [interrupted(one, self._context.now()) for one in self.calls.unsettled()]
        if found:
            log.warning(
                "%s, partition %d: %d judge calls were cut off with their process: charged in full",
                self._stage.name,
                self.number,
                len(found),
            )
        await self._lease.send(JUDGEMENTS, [(key_of(one), encode(one)) for one in found], partition=self.number)
        for one in found:
            self.calls.add(one)

    def _tasks_in(self, chunk: Chunk) -> tuple[list[tuple[int, str, Record]], Accepted]:
        """The chunk's tasks with offset and session, and the dead letters of what is none, and of what cannot be read for any reason."""
        try:
            return self._read(chunk)
        except FAILURES as error:
            log.exception("stage %s cannot read offset %d of partition %d", self._stage.name, chunk.first_offset, self.number)
            if len(chunk.records) == 1:
                return [], unworkable(chunk, stage_failed(self._stage.name, error), self._context.redactor)
        tasks, letters = list[tuple[int, str, Record]](), Accepted()
        for place in range(len(chunk.records)):
            found, refused = self._tasks_in(chunk.part(place, place + 1))
            tasks += found
            letters.extend(refused)
        return tasks, letters

    def _read(self, chunk: Chunk) -> tuple[list[tuple[int, str, Record]], Accepted]:
        on = self.number, self._context.states.partitions
        decoded, letters = decode_chunk(chunk.topic, chunk.records, on=on), Accepted()
        for rejected in decoded.rejected:
            letters.extend(letter_of(chunk.topic, chunk.partition, rejected, self._context.redactor))
        return list(StageBatch.of(chunk.topic, decoded.frames).records()), letters

    def _add(self, key: str, pending: _Pending) -> None:
        self._tasks += 1
        self._bytes += pending.size
        self._queues.put(key, pending)

    async def _judge(self, key: str, pending: _Pending) -> None:
        """Judge a task, unless that was done before."""
        stage, task, states = self._stage, pending.task, self._context.states
        stored = states.get(self.number, [key]).get(key) or StoredState(0, b"", msgspec.msgpack.encode(JudgedState()))
        window, identity = Window.of(stored.identities), task_identity(stage, *stage.subject_of(task), stage.revision_of(task))
        if pending.offset >= stored.next_offset and window.content_of(identity) is None:
            place, before = Place(stage.source, pending.offset, self.number), STATE.decode(stored.state)
            recorded = (*self.calls.of(task), *before.recorded_of(stage.id_of(task)))
            result = await self._task_judge.rule(task, recorded, before.spent, place, self._admission)
            self._queues.end_turn(key)  # the judge is not waited for any more
            await self._set_aside(result.dead)
            for topic, messages in result.made.messages.items():
                await self._lease.send(topic, [(key.encode(), message) for message in messages])
                window.add(identity, NO_CONTENT)  # one that was set aside may be sent again
            kept = kept_after(before.kept, task, result.judgements, self._context.policy)
            state = msgspec.msgpack.encode(JudgedState(pending.offset + 1, result.spent, kept))
            after = StoredState(pending.offset + 1, window.packed(), state)
            await self._lease.insist(lambda: states.save(self.number, {key: after}))
        self._tasks -= 1
        self._bytes -= pending.size
        self._changed.set()
        pending.chunk.finish_one()

    async def _record(self, record: Record) -> None:
        """Make a record of a judge call durable."""
        await self._lease.send(JUDGEMENTS, [(key_of(record), encode(record))], partition=self.number)
        self._context.calls.note(record)

    async def _set_aside(self, letters: Accepted) -> None:
        messages = letters.messages.get(DEAD_LETTERS, ())
        await self._lease.send(DEAD_LETTERS, [(key_of(decode(message)), message) for message in messages])

    def _admission(self) -> Admission:
        return Admission(self._context.redactor, self._context.now())

    def _stop(self) -> None:
        """Begin nothing more; calls under way go on."""
        self._task_judge.close()
        self._queues.close()
        self._changed.set()

    def _failed(self, error: BaseException) -> None:
        """A session stops only by a fault of ours, for which the process must make room for another."""
        self._stop()
        self._context.fail(error)
