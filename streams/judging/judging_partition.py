"""Judging the tasks of one partition: sessions run concurrently, and the tasks of a session in order.

1. Everything paid for is durable before it is used: the reservation before its call, the judgement after it, and then the result of the
   task, with or before its session's state.
2. A session's state is written with each result and holds the position after the last finished task, so a duplicate task changes nothing.
3. A slow call delays its own session and the position of the log, but no other session. The earliest ready task starts first, so that
   the position advances even with a slow judge.
4. A judge answers a limited number of questions at a time. Beyond that number, tasks wait here before they start, and partitions get
   slots in rotation (`TaskSlots`). If they waited in the judge's own queue, the second question of each exchange would be behind the
   first questions of all others, and no exchange would finish for a long time.

A `TaskLog` provides states and recorded calls, and takes the results. The reader of the topic enqueues tasks in batches, and advances its
position over finished batches. `TaskJudge` turns a task into its score or evaluation, and records every paid call.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import msgspec

from audit.cost import Ledger, nano_of, usd_of
from audit.exchanges.outcomes import NO_JUDGE
from audit.exchanges.questions import ANSWERED, AWAITING_BATCH, COST_CAP, INTERRUPTED, Question, Reply, recorded_reply
from audit.policy import Policy
from audit.redaction import Redactor
from audit.spending import SHARED_CAPS
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Reservation, ScoringTask
from streams.engine.embedded import stage_failure
from streams.judges.protocol import Judge, Verdict
from streams.judging.call_budget import DurableBudget, ErasedError, Publish, StoppedError
from streams.judging.judged_stages import JudgedStage, JudgedState, JudgingTask, update_kept_calls
from streams.judging.shared_caps import SharedCaps
from streams.log.admission import Admission, EncodedRecords, RecordOrigin
from streams.log.log import Commit

StartTask = Callable[[], None]
"""Starts a partition's next task in a granted slot, which the partition must release."""


class TaskSlots:
    """A limit on concurrent tasks: `size` slots, granted to the partitions in rotation. Belongs to one event loop."""

    def __init__(self, size: int = sys.maxsize) -> None:
        self._free = size
        self._requests: dict[StartTask, int] = {}
        """The number of requested slots by partition; the first partition is served next."""

    def request(self, start_task: StartTask) -> None:
        """Request a slot. `start_task` is called when it is granted, possibly immediately."""
        self._requests[start_task] = self._requests.get(start_task, 0) + 1
        self._grant_slots()

    def withdraw(self, start_task: StartTask) -> None:
        """Withdraw all requests of a partition. Slots that were granted must still be released."""
        self._requests.pop(start_task, None)

    def release(self) -> None:
        """Return a granted slot."""
        self._free += 1
        self._grant_slots()

    def _grant_slots(self) -> None:
        while self._free and self._requests:
            start_task = next(iter(self._requests))
            remaining = self._requests.pop(start_task) - 1
            if remaining:
                self._requests[start_task] = remaining  # now last in the rotation
            self._free -= 1
            start_task()


_NEUTRAL_OUTCOMES = frozenset([COST_CAP.reason, *SHARED_CAPS, INTERRUPTED, AWAITING_BATCH.reason])
"""Outcomes that are unrelated to the judge's health."""
log = logging.getLogger(__name__)


class JudgeCalls:
    """The number of questions by outcome and their cost, since the start of the process."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._spent = 0
        self._problem = ""

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of questions by outcome."""
        return dict(self._outcomes)

    @property
    def spent_usd(self) -> float:
        """The cost of all questions, in USD."""
        return usd_of(self._spent)

    def note(self, record: Record) -> None:
        """Count a record of a judge call."""
        if isinstance(record, Judgement):
            self._outcomes[record.outcome] += 1
            self._spent += nano_of(record.cost_usd or 0.0)
            self._log_problem(record)

    def _log_problem(self, judgement: Judgement) -> None:
        """Log a new problem with the judge, and its recovery."""
        if judgement.outcome in _NEUTRAL_OUTCOMES:
            return
        problem = "" if judgement.outcome == ANSWERED else f"{judgement.outcome}: {judgement.error}"
        if problem == self._problem:
            return
        self._problem = problem
        if problem:
            log.warning("the judge does not answer properly, %s", problem)
        else:
            log.info("the judge answers")


class WaitingTasks(Protocol):
    """The tasks that wait for a batch."""

    def may_wait(self, task: ScoringTask) -> bool:
        """Return whether a routine task may wait at the moment."""
        ...

    def add(self, task: ScoringTask) -> None:
        """Add a task that waits, or its newest revision."""
        ...


JUDGEMENTS = "judgements"
WINDOW_TASKS = 1_000
WINDOW_BYTES = 16_000_000
"""A partition with this many unfinished tasks, or bytes of them, accepts no more. A single batch may exceed the limits."""


@dataclass(frozen=True, kw_only=True)
class JudgingContext:
    """The settings and resources for judging the tasks of a stage."""

    stage: JudgedStage[Any]
    policy: Policy
    judge: Judge | None
    """None leaves questions without a recorded answer unanswered."""
    redactor: Redactor
    now: Callable[[], datetime]
    """The clock for records of calls and for dead letters."""
    calls: JudgeCalls
    shared_caps: SharedCaps | None = None
    """The caps that the sessions share; None if there are none."""
    batches: WaitingTasks | None = None
    """The tasks that wait for a batch; None if none may."""
    slots: TaskSlots = field(default_factory=TaskSlots)
    """Limits the tasks of this process that are being judged; a task holds a slot from its first question to its last."""


@dataclass(slots=True)
class _TaskBatch:
    """Tasks that were enqueued together."""

    unfinished: int
    """The number of unfinished tasks."""
    done: Callable[[], None]
    """Called when all tasks are finished."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingTask:
    """An unfinished task."""

    offset: int
    key: str
    """The key of its session."""
    task: Any
    """A record of the stage's type."""
    batch: _TaskBatch


class TaskLog(Protocol):
    """The log of one partition's tasks. Its methods raise StoppedError if nothing more may be written."""

    number: int
    """The number of the partition."""
    keeps_calls: bool
    """True if the states of sessions keep the calls of their newest turns, because calls of finished tasks cannot be looked up."""

    async def read_state(self, pending: PendingTask) -> JudgedState | None:
        """Return the newest state of the task's session; None if the task is a duplicate of a finished one."""
        ...

    async def read_judgements(self, pending: PendingTask) -> Sequence[Judgement]:
        """Return the recorded judgements of the task's subject, whose answers are not paid for again."""
        ...

    async def append(self, commit: Commit, record: Record) -> None:
        """Make a call, or the result of a task with its session's state, durable, in the order of the commit.

        `record` is the call or the task. Raises ErasedError if its session was erased.
        """
        ...


class JudgingPartition:
    """Judges the tasks of a partition, as the module describes, from the offset `start` on.

    `fail` is called with a fatal error, after which no task starts.
    """

    def __init__(self, tasks: TaskLog, context: JudgingContext, fail: Callable[[BaseException], None], start: int = 0) -> None:
        self.stage = context.stage
        self.failure: BaseException | None = None
        """The fatal error after which no task starts, if any."""
        self._log = tasks
        self._context = context
        self._fail = fail
        self._task_judge = TaskJudge(
            context.stage,
            context.policy,
            context.judge,
            self.record_call,
            context.now,
            shared_caps=context.shared_caps,
            batches=context.batches,
        )
        self.is_closed = False
        """True if no further task starts."""
        self.sessions: dict[str, deque[PendingTask]] = {}
        """The unfinished tasks by session, in order; the first may be running."""
        self._ready: list[tuple[int, str]] = []
        """A heap of the sessions whose first task is waiting for a slot, by the task's offset."""
        self._runners: dict[str, asyncio.Task[None]] = {}
        """The running tasks by session."""
        self._slot_holders: set[str] = set()
        """The sessions whose running task holds a slot."""
        self.unfinished: dict[PendingTask, int] = {}
        """The size in bytes of each unfinished task, in the order of the log."""
        self.next_offset = start
        """The offset after the last enqueued task."""
        self._changed = asyncio.Event()

    @property
    def position(self) -> int:
        """The offset of the first unfinished task."""
        return next((pending.offset for pending in self.unfinished), self.next_offset)

    async def enqueue(self, rows: Sequence[tuple[int, str, Record]], end: int, done: Callable[[], None]) -> None:
        """Enqueue the tasks up to the offset `end`, each with its offset and session. `done` is called when all of them are finished.

        Returns when there is room for more, or when the partition is closed.
        """
        batch = _TaskBatch(len(rows), done)
        for offset, key, task in rows:
            pending = PendingTask(offset, key, task, batch)
            self.unfinished[pending] = self.stage.size_of(task)
            self.sessions.setdefault(key, deque()).append(pending)
            if len(self.sessions[key]) == 1:
                self._request_slot(key)
        self.next_offset = end
        if not rows:
            done()
        while self._is_full() and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Start no further task; running calls continue."""
        self.is_closed = True
        self._task_judge.close()
        self._context.slots.withdraw(self._start_task)
        self._ready.clear()
        self._changed.set()

    async def stop(self, grace: float) -> None:
        """Make no more calls, wait up to `grace` seconds until running calls are recorded, and cancel the others."""
        self.close()
        runners = list(self._runners.values())
        if not runners:
            return
        _, unfinished = await asyncio.wait(runners, timeout=grace)
        for runner in unfinished:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    def _is_full(self) -> bool:
        return len(self.unfinished) >= WINDOW_TASKS or sum(self.unfinished.values()) >= WINDOW_BYTES

    def _request_slot(self, key: str) -> None:
        """Request a slot for a session's first task."""
        if not self.is_closed:
            heapq.heappush(self._ready, (self.sessions[key][0].offset, key))
            self._context.slots.request(self._start_task)

    def _start_task(self) -> None:
        """Start the earliest ready task in a granted slot."""
        _, key = heapq.heappop(self._ready)
        self._slot_holders.add(key)
        runner = asyncio.create_task(self._judge(self.sessions[key][0]), name=f"session {key}")
        self._runners[key] = runner
        # A callback, because a coroutine that is cancelled before its first step never runs its own cleanup.
        runner.add_done_callback(partial(self._note_end, key))

    async def _judge(self, pending: PendingTask) -> None:
        """Judge a task and append its result, unless its session has been erased."""
        if self.is_closed:
            raise StoppedError
        state = await self._log.read_state(pending)
        if state is not None and pending.offset >= state.next_offset:
            with contextlib.suppress(ErasedError):
                await self._append_result(pending, state)

    def _note_end(self, key: str, runner: asyncio.Task[None]) -> None:
        """Continue with the session's next task. After a stop or a bug, the task stays unfinished, and no other task starts."""
        del self._runners[key]
        holds_slot = key in self._slot_holders
        self._slot_holders.discard(key)  # before the session's next task may get a slot
        error = None if runner.cancelled() else runner.exception()
        if error is not None:
            self.close()
            if not isinstance(error, StoppedError):
                self.failure = error
                self._fail(error)
        elif not runner.cancelled():
            self._finish(key)
        if holds_slot:  # only now, so that the session's next task competes for the slot
            self._context.slots.release()

    def _finish(self, key: str) -> None:
        tasks = self.sessions[key]
        pending = tasks.popleft()
        if tasks:
            self._request_slot(key)
        else:
            del self.sessions[key]
        del self.unfinished[pending]
        self._changed.set()
        pending.batch.unfinished -= 1
        if not pending.batch.unfinished:
            pending.batch.done()

    def _release_slot(self, key: str) -> None:
        if key in self._slot_holders:
            self._slot_holders.remove(key)
            self._context.slots.release()

    async def _append_result(self, pending: PendingTask, state: JudgedState) -> None:
        origin = RecordOrigin(self.stage.source, pending.offset, self._log.number)
        recorded = await self._log.read_judgements(pending)
        kept = state.judgements_of(self.stage.id_of(pending.task))
        result = await self._task_judge.judge_or_reject(pending.task, (*recorded, *kept), state, origin, self._admission)
        self._release_slot(pending.key)  # no more questions follow
        next_state = self.stage.state_after(state, pending.offset, pending.task, result.judging_task)
        if self._log.keeps_calls:
            kept_calls = update_kept_calls(state.kept, pending.task, result.judgements, self._context.policy)
            next_state = msgspec.structs.replace(next_state, kept=kept_calls)
        commit = Commit(
            result.dead_letters.messages | result.records.messages,
            states={self.stage.name: {pending.key: msgspec.msgpack.encode(next_state)}},
            positions={self.stage.name: {self._log.number: self.position}},
        )
        await self._log.append(commit, pending.task)
        if self._context.batches is not None and result.judging_task is not None and result.judging_task.waits:
            self._context.batches.add(pending.task)

    async def record_call(self, record: Judgement | Reservation) -> None:
        """Make the record of a call durable. Raises ErasedError if its session was erased."""
        await self._log.append(Commit({JUDGEMENTS: [encode(record)]}), record)
        self._context.calls.note(record)

    def _admission(self) -> Admission:
        return Admission(self._context.redactor, self._context.now())


@dataclass(slots=True)
class TaskResult:
    """The result of a task: its record or its dead letter, and its judgements."""

    records: EncodedRecords = field(default_factory=EncodedRecords)
    dead_letters: EncodedRecords = field(default_factory=EncodedRecords)
    judgements: Sequence[Judgement] = ()
    judging_task: JudgingTask | None = None
    """None if the task cannot be judged."""


class TaskJudge:
    """Judges the tasks of a stage. Without a judge, it answers from recorded judgements alone, like the stage's step.

    `publish` makes a record of a call durable.
    """

    def __init__(
        self,
        stage: JudgedStage[Any],
        policy: Policy,
        judge: Judge | None,
        publish: Publish,
        now: Callable[[], datetime],
        *,
        shared_caps: SharedCaps | None = None,
        batches: WaitingTasks | None = None,
    ) -> None:
        self._stage = stage
        self._policy = policy
        self._judge = judge
        self._publish = publish
        self._now = now
        self._shared_caps = shared_caps
        self._batches = batches
        self._open = True
        self._asking: dict[asyncio.Task[Verdict], DurableBudget] = {}

    def close(self) -> None:
        """Make no more calls: questions that need one raise StoppedError. Running calls finish.

        A question that is queued, or waits for the end of a rate limit, is cancelled: nothing was reserved for it.
        """
        self._open = False
        for asking, budget in self._asking.items():
            if not budget.has_cost:
                asking.cancel()

    async def judge_or_reject(
        self,
        task: Any,
        recorded: Sequence[Judgement],
        state: JudgedState,
        origin: RecordOrigin,
        admission: Callable[[], Admission],
    ) -> TaskResult:
        """Judge a task, given its session's state. A task that cannot be judged becomes a dead letter.

        Raises StoppedError if the task needs a call after `close`.
        """
        stage = self._stage
        result = TaskResult()
        judging_task: JudgingTask | None = None
        try:
            judging_task = await self._begin_waiting(task, stage.open(task, self._policy, recorded, state=state))
            record = judging_task.without_judge() if judging_task.waits else await self._drive(judging_task)
            result.records.add(stage.sink, encode(record))
        except StoppedError:
            raise
        except Exception as error:
            log.exception("%s: %s cannot be judged and becomes a dead letter", stage.name, stage.id_of(task))
            admission().add_dead_letter(result.dead_letters, origin, stage_failure(stage.name, error), encode(task))
        result.judgements = (*judging_task.recorded, *judging_task.asked) if judging_task is not None else ()
        result.judging_task = judging_task
        return result

    async def _begin_waiting(self, task: Any, judging_task: JudgingTask) -> JudgingTask:
        """Let a routine task wait for a batch, if its session's cap has room for that. Otherwise return it as it is.

        The record makes a replay do the same.
        """
        if self._batches is None or not judging_task.may_wait or not self._batches.may_wait(task):
            return judging_task
        questions = judging_task.open_questions()
        amount = judging_task.batch_bound()
        if not questions or amount is None or not judging_task.ledger.can_reserve(amount):
            return judging_task
        budget = DurableBudget(questions[0], judging_task, self._publish, self._now, lambda: self._open)
        return judging_task.waiting(await budget.record_judgement(Verdict(outcome=AWAITING_BATCH.reason)))

    async def judge(self, task: Record, recorded: Sequence[Judgement], ledger: Ledger) -> Record:
        """Judge a task and return its record; its cost is charged to the ledger. Raises StoppedError if it needs a call after `close`."""
        return await self._drive(self._stage.open(task, self._policy, recorded, ledger=ledger))

    async def _drive(self, judging_task: JudgingTask) -> Record:
        """Answer the task's questions until it returns its record."""
        record: Record
        if self._judge is None:
            record = judging_task.without_judge()
            return record
        questions = judging_task.judging()
        try:
            question = next(questions)
            while True:
                question = questions.send(await self._reply(self._judge, question, judging_task))
        except StopIteration as finished:
            record = finished.value
            return record

    async def _reply(self, judge: Judge, question: Question, judging_task: JudgingTask) -> Reply:
        earlier = judging_task.earlier(question)
        reply = judging_task.settle(question, earlier)
        if reply is not None:
            return reply
        budget = DurableBudget(
            question, judging_task, self._publish, self._now, lambda: self._open, shared_caps=self._shared_caps
        )
        try:
            verdict = await self._ask(judge, question, budget)
            judgement = await budget.record_judgement(verdict)
        finally:
            budget.close()
        judging_task.asked.append(judgement)
        # Answer from the recorded judgements, as a replay does.
        judgements = (*earlier, judgement)
        return recorded_reply(judgements, judging_task.revision) or Reply(state=NO_JUDGE, judgements=judgements)

    async def _ask(self, judge: Judge, question: Question, budget: DurableBudget) -> Verdict:
        """Ask the judge. A bug in Driftline becomes an outcome, and the call is charged in full."""
        asking = asyncio.ensure_future(_ask_when_funded(judge, question, budget))
        self._asking[asking] = budget
        try:
            return await asking
        except StoppedError:
            raise
        except asyncio.CancelledError:
            if self._open or budget.has_cost or _is_cancelled():
                raise
            raise StoppedError from None
        except Exception as error:
            log.exception("unexpected error of the judge")
            budget.write_off()
            return Verdict(outcome="provider_error", error=f"a bug in Driftline: {type(error).__name__}", attempts=1)
        finally:
            del self._asking[asking]


async def _ask_when_funded(judge: Judge, question: Question, budget: DurableBudget) -> Verdict:
    """Ask the judge. If a shared cap refuses the first call, wait for running calls that may cost less than they reserved."""
    while not budget.is_exhausted():
        verdict = await judge.ask(question, budget)
        if not await budget.wait_for_room():
            return verdict
    return Verdict(outcome=COST_CAP.reason)


def _is_cancelled() -> bool:
    """Return whether the current asyncio task was cancelled, and not only an operation that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
