"""Judging the tasks of one partition: sessions concurrently, the tasks of each in order, each into its record.

1. Everything paid for is durable before it is used: a reservation before its call, the judgement after it, then the result of the task
   with or before its session's state.
2. A session's state is written with the result and holds the last task that it has seen, so a repeated task changes nothing.
3. A slow call holds back its session, and the position of the log, but no other session. The earliest ready task starts first, so the
   position advances even with a slow judge.
4. A judge answers a limited number of questions at once. Beyond that, tasks wait here before they start, and partitions get slots in
   rotation (`TaskSlots`). In the judge's own queue, each exchange's second question would wait behind the first questions of all others,
   and no exchange would finish for a long time.

A `TaskLog` provides states and recorded calls, and takes the results. The reader of the topic hands over the tasks in parts, and advances
the position over finished parts. `TaskJudge` turns one task into its score or evaluation, with every paid call recorded.
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
from audit.exchanges.questions import ANSWERED, COST_CAP, INTERRUPTED, Question, Reply, recorded_reply
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Reservation
from streams.engine.embedded import stage_failure
from streams.judges.protocol import Judge, Verdict
from streams.judging.call_budget import DurableBudget, ErasedError, Publish, StoppedError
from streams.judging.judged_stages import JudgedStage, JudgedState, JudgingTask, kept_after
from streams.log.admission import Admission, EncodedRecords, RecordOrigin
from streams.log.log import Commit

Begin = Callable[[], None]
"""Starts one piece of work, whose turn lasts until it is given back."""


class TaskSlots:
    """A limit on concurrent work, shared in rotation: at most `at_once` slots are taken at a time. Belongs to one event loop."""

    def __init__(self, at_once: int = sys.maxsize) -> None:
        self._free = at_once
        self._requests: dict[Begin, int] = {}  # in rotation: the first is next

    def request(self, begin: Begin) -> None:
        """Request one more slot: `begin` is called when it is granted, perhaps at once."""
        self._requests[begin] = self._requests.get(begin, 0) + 1
        self._deal()

    def withdraw(self, begin: Begin) -> None:
        """Withdraw all requests; slots already granted must still be released."""
        self._requests.pop(begin, None)

    def release(self) -> None:
        """Return a granted slot."""
        self._free += 1
        self._deal()

    def _deal(self) -> None:
        while self._free and self._requests:
            begin = next(iter(self._requests))
            if left := self._requests.pop(begin) - 1:
                self._requests[begin] = left
            self._free -= 1
            begin()


_NO_TROUBLE = frozenset([COST_CAP.reason, INTERRUPTED])
"""Outcomes that are unrelated to the judge's health."""
log = logging.getLogger(__name__)


class JudgeCalls:
    """Questions by outcome and their cost, since the start of the process."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._spent = 0
        self._trouble = ""

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
            self._tell_of(record)

    def _tell_of(self, judgement: Judgement) -> None:
        """Log a new problem with the judge, and its recovery."""
        if judgement.outcome in _NO_TROUBLE:
            return
        trouble = "" if judgement.outcome == ANSWERED else f"{judgement.outcome}: {judgement.error}"
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the judge does not answer as it should, %s", trouble) if trouble else log.info("the judge answers")


JUDGEMENTS = "judgements"
WINDOW_TASKS = 1_000
WINDOW_BYTES = 16_000_000
"""A partition with this many unfinished tasks, or bytes of them, takes no more. A single batch of tasks may exceed the limits."""


@dataclass(frozen=True, kw_only=True)
class JudgingContext:
    """The resources for judging the tasks of a stage. `judge` None: questions that need a judge stay unanswered."""

    stage: JudgedStage[Any]
    policy: Policy
    judge: Judge | None
    redactor: Redactor
    now: Callable[[], datetime]
    """Stamps records of calls, and dead letters."""
    calls: JudgeCalls
    slots: TaskSlots = field(default_factory=TaskSlots)
    """Limits the tasks judged at once in this process, each from its first question to its last."""


@dataclass(slots=True)
class _Part:
    """Tasks that were handed over together, and how many of them are left."""

    left: int
    done: Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """An unfinished task."""

    offset: int
    key: str
    """Key of its session."""
    task: Any
    """A record of the stage's type."""
    part: _Part


class TaskLog(Protocol):
    """The log of one partition's tasks. Raises StoppedError once nothing more may be written."""

    number: int
    """Number of the partition."""
    keeps_calls: bool
    """Whether a session's state keeps the calls of its newest turns, because calls of finished tasks cannot be looked up."""

    async def state_of(self, pending: Pending) -> JudgedState | None:
        """Return the newest state of the task's session; None if the task repeats a finished one."""
        ...

    async def recorded_of(self, pending: Pending) -> Sequence[Judgement]:
        """Return the recorded judgements of the task's subject: none of them is paid for again."""
        ...

    async def append(self, commit: Commit, about: Record) -> None:
        """Make a task's call, or its result with the session's state, durable, in the order of the commit.

        `about` is the call or the task. Raises ErasedError if its session was erased.
        """
        ...


class JudgingPartition:
    """See the module. Tasks come in order, from `start` on; `fail` is called with fatal errors, after which no task starts."""

    def __init__(self, tasks: TaskLog, context: JudgingContext, fail: Callable[[BaseException], None], start: int = 0) -> None:
        self.stage = context.stage
        self.failure: BaseException | None = None
        """The fatal error after which no task starts, if any."""
        self._log = tasks
        self._context = context
        self._fail = fail
        self._task_judge = TaskJudge(context.stage, context.policy, context.judge, self._record, context.now)
        self.is_closed = False
        """Whether no further task starts."""
        self.sessions: dict[str, deque[Pending]] = {}
        """The unfinished tasks by session, in order: the first may be in progress."""
        self._ready: list[tuple[int, str]] = []
        """Sessions whose first task can start, by its offset."""
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._having_turns: set[str] = set()
        self.under_way: dict[Pending, int] = {}
        """Bytes of each unfinished task, in the order of the log."""
        self.taken = start
        """The offset after the last task that was handed over."""
        self._changed = asyncio.Event()

    @property
    def position(self) -> int:
        """The offset of the first unfinished task."""
        return next((pending.offset for pending in self.under_way), self.taken)

    async def take(self, rows: Sequence[tuple[int, str, Record]], end: int, done: Callable[[], None]) -> None:
        """Queue the tasks before the offset `end`, each with offset and session; `done` is called when all of them are.

        Returns when there is room for more, or when the partition is closed.
        """
        part = _Part(len(rows), done)
        for offset, key, task in rows:
            pending = Pending(offset, key, task, part)
            self.under_way[pending] = self.stage.size_of(task)
            self.sessions.setdefault(key, deque()).append(pending)
            if len(self.sessions[key]) == 1:
                self._make_ready(key)
        self.taken = end
        if not rows:
            done()
        while self._is_full() and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Start no further task; running calls continue."""
        self.is_closed = True
        self._task_judge.close()
        self._context.slots.withdraw(self._begin)
        self._ready.clear()
        self._changed.set()

    async def end(self, grace: float) -> None:
        """Make no more calls, wait up to `grace` seconds until running calls are recorded, and give up the rest."""
        self.close()
        if running := list(self._runners.values()):
            _, late = await asyncio.wait(running, timeout=grace)
            for runner in late:
                runner.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _is_full(self) -> bool:
        return len(self.under_way) >= WINDOW_TASKS or sum(self.under_way.values()) >= WINDOW_BYTES

    def _make_ready(self, key: str) -> None:
        if not self.is_closed:
            heapq.heappush(self._ready, (self.sessions[key][0].offset, key))
            self._context.slots.request(self._begin)

    def _begin(self) -> None:
        """Start the earliest ready task."""
        _, key = heapq.heappop(self._ready)
        self._having_turns.add(key)
        runner = self._runners[key] = asyncio.create_task(self._judge(self.sessions[key][0]), name=f"session {key}")
        # Not in the coroutine itself: a task that is cancelled before its first step never runs it.
        runner.add_done_callback(partial(self._note_end, key))

    async def _judge(self, pending: Pending) -> None:
        """Judge a task and append its result, unless its session was erased meanwhile."""
        if self.is_closed:
            raise StoppedError
        state = await self._log.state_of(pending)
        if state is not None and pending.offset >= state.next_offset:
            with contextlib.suppress(ErasedError):
                await self._append_result(pending, state)

    def _note_end(self, key: str, runner: asyncio.Task[None]) -> None:
        """Continue with the session's next task. After a stop or a bug, the unfinished task is kept and no other starts."""
        del self._runners[key]
        has_turn = key in self._having_turns
        self._having_turns.discard(key)  # before the session's next task gets a turn
        error = None if runner.cancelled() else runner.exception()
        if error is not None:
            self.close()
            if not isinstance(error, StoppedError):
                self.failure = error
                self._fail(error)
        elif not runner.cancelled():
            self._finish(key)
        if has_turn:  # only now, so that the session's next task may be the earliest
            self._context.slots.release()

    def _finish(self, key: str) -> None:
        tasks = self.sessions[key]
        pending = tasks.popleft()
        if tasks:
            self._make_ready(key)
        else:
            del self.sessions[key]
        del self.under_way[pending]
        self._changed.set()
        pending.part.left -= 1
        if not pending.part.left:
            pending.part.done()

    def _end_turn(self, key: str) -> None:
        if key in self._having_turns:
            self._having_turns.remove(key)
            self._context.slots.release()

    async def _append_result(self, pending: Pending, state: JudgedState) -> None:
        place = RecordOrigin(self.stage.source, pending.offset, self._log.number)
        recorded = (*await self._log.recorded_of(pending), *state.recorded_of(self.stage.id_of(pending.task)))
        result = await self._task_judge.rule(pending.task, recorded, state.spent, place, self._admission)
        self._end_turn(pending.key)  # the judge's work is done
        kept = kept_after(state.kept, pending.task, result.judgements, self._context.policy) if self._log.keeps_calls else ()
        after = msgspec.msgpack.encode(JudgedState(pending.offset + 1, result.spent, kept))
        commit = Commit(
            result.dead.messages | result.made.messages,
            states={self.stage.name: {pending.key: after}},
            positions={self.stage.name: {self._log.number: self.position}},
        )
        await self._log.append(commit, pending.task)

    async def _record(self, record: Judgement | Reservation) -> None:
        await self._log.append(Commit({JUDGEMENTS: [encode(record)]}), record)
        self._context.calls.note(record)

    def _admission(self) -> Admission:
        return Admission(self._context.redactor, self._context.now())


@dataclass(slots=True)
class TaskResult:
    """The result of a task: its record or its dead letter, its judgements, and its session's spending."""

    made: EncodedRecords = field(default_factory=EncodedRecords)
    dead: EncodedRecords = field(default_factory=EncodedRecords)
    judgements: Sequence[Judgement] = ()
    spent: int = 0


class TaskJudge:
    """Judges the tasks of a stage, with a judge where needed; without a judge, as the stage's step does.

    `publish` makes a record of the topic judgements durable before it returns.
    """

    def __init__(
        self,
        stage: JudgedStage[Any],
        policy: Policy,
        judge: Judge | None,
        publish: Publish,
        now: Callable[[], datetime],
    ) -> None:
        self._stage = stage
        self._policy = policy
        self._judge = judge
        self._publish = publish
        self._now = now
        self._open = True
        self._asking: dict[asyncio.Task[Verdict], DurableBudget] = {}

    def close(self) -> None:
        """Make no more calls: questions that need one raise StoppedError. Running calls finish.

        A question that waits for its turn, or for the end of an API's rate limit, is given up at once: nothing was reserved for it.
        """
        self._open = False
        for asking, budget in self._asking.items():
            if not budget.is_at_stake:
                asking.cancel()

    async def rule(
        self, task: Record, recorded: Sequence[Judgement], spent: int, place: RecordOrigin, admission: Callable[[], Admission]
    ) -> TaskResult:
        """Judge a task, given its session's spending; a task that cannot be judged becomes a dead letter and affects no other.

        Raises StoppedError if the task needs a call after `close`.
        """
        stage, result = self._stage, TaskResult()
        judging_task: JudgingTask | None = None
        try:
            judging_task = stage.open(task, self._policy, recorded, spent=spent)
            result.made.add(stage.sink, encode(await self._drive(judging_task)))
        except StoppedError:
            raise
        except Exception as error:
            log.exception("%s: %s could not be judged and becomes a dead letter", stage.name, stage.id_of(task))
            admission().add_dead_letter(result.dead, place, stage_failure(stage.name, error), encode(task))
        result.judgements = (*judging_task.recorded, *judging_task.asked) if judging_task is not None else ()
        result.spent = stage.spent_after(spent, judging_task)
        return result

    async def judge(self, task: Record, recorded: Sequence[Judgement], ledger: Ledger) -> Record:
        """Judge a task and return its record; its cost is in the ledger. Raises StoppedError if it needs a call after `close`."""
        return await self._drive(self._stage.open(task, self._policy, recorded, ledger=ledger))

    async def _drive(self, judging_task: JudgingTask) -> Record:
        if self._judge is None:
            unasked: Record = judging_task.without_judge()
            return unasked
        questions = judging_task.judging()
        try:
            question = next(questions)
            while True:
                question = questions.send(await self._reply(self._judge, question, judging_task))
        except StopIteration as finished:
            made: Record = finished.value
            return made

    async def _reply(self, judge: Judge, question: Question, judging_task: JudgingTask) -> Reply:
        earlier = judging_task.earlier(question)
        settled = judging_task.settle(question, earlier)
        if settled is not None:
            return settled
        budget = DurableBudget(question, judging_task, self._publish, self._now, lambda: self._open)
        verdict = await self._ask(judge, question, budget)
        judging_task.asked.append(await budget.judgement(verdict))
        judgements = (*earlier, judging_task.asked[-1])
        # Answer from the recorded judgements, as a replay does.
        return recorded_reply(judgements, judging_task.revision) or Reply(state=NO_JUDGE, judgements=judgements)

    async def _ask(self, judge: Judge, question: Question, budget: DurableBudget) -> Verdict:
        """Ask the judge. A bug of ours becomes an outcome, and the call is charged in full."""
        asking = asyncio.ensure_future(judge.ask(question, budget))
        self._asking[asking] = budget
        try:
            return await asking
        except StoppedError:
            raise
        except asyncio.CancelledError:
            if self._open or budget.is_at_stake or _is_cancelled():
                raise
            raise StoppedError from None
        except Exception as error:
            log.exception("the judge failed in a way it should not")
            budget.write_off()
            return Verdict(outcome="provider_error", error=f"a fault of Driftline: {type(error).__name__}", attempts=1)
        finally:
            del self._asking[asking]


def _is_cancelled() -> bool:
    """Return whether the running task itself was cancelled, and not only an operation that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
