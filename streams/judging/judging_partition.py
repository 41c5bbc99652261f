"""Judging the tasks of one partition: sessions concurrently, the tasks of each in order.

1. Everything paid for is durable before it is used: a reservation before its call, the judgement after it, then the result of the task
   with or before its session's state.
2. A session's state is written with the result and holds the last task that it has seen, so a repeated task changes nothing.
3. A slow call holds back its session, and the position of the log, but no other session. The earliest ready task starts first, so the
   position advances even with a slow judge.
4. A judge answers a limited number of questions at once. Beyond that, tasks wait here before they start, and partitions get turns in
   rotation (`Turns`). In the judge's own queue, each exchange's second question would wait behind the first questions of all others, and
   no exchange would finish for a long time.

A `TaskLog` provides states and recorded calls, and takes the results. The reader of the topic hands over the tasks in parts, and advances
the position over finished parts.
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

from audit.cost import nano_of, usd_of
from audit.exchanges.questions import ANSWERED, COST_CAP, INTERRUPTED
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Reservation
from streams.judges.protocol import Judge
from streams.judging.call_budget import ErasedError, StoppedError
from streams.judging.judged_stages import JudgedStage, JudgedState, kept_after
from streams.judging.task_judge import TaskJudge
from streams.log.admission import Admission, Place
from streams.log.log import Commit

Begin = Callable[[], None]
"""Starts one piece of work, whose turn lasts until it is given back."""


class Turns:
    """A limit on concurrent work, shared in rotation: at most `at_once` turns at a time. Belongs to one event loop."""

    def __init__(self, at_once: int = sys.maxsize) -> None:
        self._free = at_once
        self._asked: dict[Begin, int] = {}  # in the order of their next turns

    def ask(self, begin: Begin) -> None:
        """Request one more turn: `begin` is called when it is granted, perhaps at once."""
        self._asked[begin] = self._asked.get(begin, 0) + 1
        self._deal()

    def withdraw(self, begin: Begin) -> None:
        """Withdraw all requests; turns already granted must still be given back."""
        self._asked.pop(begin, None)

    def give_back(self) -> None:
        """Return a granted turn."""
        self._free += 1
        self._deal()

    def _deal(self) -> None:
        while self._free and self._asked:
            begin = next(iter(self._asked))
            if left := self._asked.pop(begin) - 1:
                self._asked[begin] = left
            self._free -= 1
            begin()


_NO_TROUBLE = frozenset([COST_CAP.reason, INTERRUPTED])
"""Outcomes that say nothing about the judge's health."""
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
        """Log a new problem with the judge, and its recovery: the operator has to know."""
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
    turns: Turns = field(default_factory=Turns)
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
    """The log of one partition's tasks. StoppedError once nothing more may be written."""

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

        `about` is the call or the task. ErasedError if its session was erased.
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
        self._context.turns.withdraw(self._begin)
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
            self._context.turns.ask(self._begin)

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
        """Continue with the session's next task. After a stop or a bug, the unfinished task stays and no other starts."""
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
            self._context.turns.give_back()

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
            self._context.turns.give_back()

    async def _append_result(self, pending: Pending, state: JudgedState) -> None:
        place = Place(self.stage.source, pending.offset, self._log.number)
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
