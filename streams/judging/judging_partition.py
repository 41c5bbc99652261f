"""One partition of a judged stage's tasks at work: sessions side by side, the tasks of each in order.

1. What is paid for is durable before it is used: a reservation before its call, the judgement after it, then the result of the task
   with or before its session's state.
2. A session's state goes with the result and remembers the last task it has seen, so a task that comes again changes nothing.
3. A slow call holds back its session, and the position of the log, but no other session. The earliest task that can begin begins
   first, so the position moves on while a judge is slow.
4. A judge answers a limited number of questions at once. Beyond that, work waits here before it begins, and turns are dealt out in
   rotation (`Turns`): in the judge's own queue, each exchange's second question would stand behind the first questions of all others, and
   no exchange would be finished for a long time.

A `TaskLog` is where states and calls are read and results go. Whoever reads the topic hands the tasks over in parts, and moves the position
over parts that are done.
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
from audit.policy.policy import Policy
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
"""Begins one piece of work; its turn lasts until it is given back."""


class Turns:
    """Deals out at most `at_once` turns at a time. Belongs to one event loop."""

    def __init__(self, at_once: int = sys.maxsize) -> None:
        self._free = at_once
        self._asked: dict[Begin, int] = {}  # whose turn is next stands first

    def ask(self, begin: Begin) -> None:
        """Ask for one more turn: `begin` is called when it comes, perhaps at once."""
        self._asked[begin] = self._asked.get(begin, 0) + 1
        self._deal()

    def withdraw(self, begin: Begin) -> None:
        """Ask for none any more; turns that were dealt out are still to be given back."""
        self._asked.pop(begin, None)

    def give_back(self) -> None:
        """A turn has ended."""
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
"""Outcomes that say nothing of the judge."""
log = logging.getLogger(__name__)


class JudgeCalls:
    """Questions by outcome and what they have cost, since the process began."""

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
        """Take note of a record of a judge call."""
        if isinstance(record, Judgement):
            self._outcomes[record.outcome] += 1
            self._spent += nano_of(record.cost_usd or 0.0)
            self._tell_of(record)

    def _tell_of(self, judgement: Judgement) -> None:
        """Log what is wrong with the judge when that changes, and that it is right again: the operator has to know."""
        if judgement.outcome in _NO_TROUBLE:
            return
        trouble = "" if judgement.outcome == ANSWERED else f"{judgement.outcome}: {judgement.error}"
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the judge does not answer as it should, %s", trouble) if trouble else log.info("the judge answers")


JUDGEMENTS = "judgements"
WINDOW_TASKS = 1_000
WINDOW_BYTES = 16_000_000
"""Limits on a partition's tasks under way, by number and by bytes, before more may come. What comes at once may exceed them."""


@dataclass(frozen=True, kw_only=True)
class JudgingContext:
    """The means with which the tasks of a stage are judged. `judge` None: what wants one stays unjudged."""

    stage: JudgedStage[Any]
    policy: Policy
    judge: Judge | None
    redactor: Redactor
    now: Callable[[], datetime]
    """Stamps records of calls, and dead letters."""
    calls: JudgeCalls
    turns: Turns = field(default_factory=Turns)
    """Tasks that are judged at once in this process, each from its first question to its last."""


@dataclass(slots=True)
class _Part:
    """Tasks that came together: how many of them are left."""

    left: int
    done: Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A task that is not done."""

    offset: int
    key: str
    """Of its session."""
    task: Any
    """A record of the stage's type."""
    part: _Part


class TaskLog(Protocol):
    """The log of one partition's tasks. StoppedError where nothing more is to be written."""

    number: int
    """Of the partition."""
    keeps_calls: bool
    """Whether a session's state keeps the calls of its newest turns, because nothing can be looked up of tasks that are done."""

    async def state_of(self, pending: Pending) -> JudgedState | None:
        """Return the newest state of the task's session; None where the task is a repetition of one that was done."""
        ...

    async def recorded_of(self, pending: Pending) -> Sequence[Judgement]:
        """Return what was recorded of the task's subject: nothing of that is paid for again."""
        ...

    async def append(self, commit: Commit, about: Record) -> None:
        """Make a call of a task, or its result with the session's state, durable, in the order of the commit.

        `about` is the call or the task. ErasedError where its session was erased.
        """
        ...


class JudgingPartition:
    """See the module. Tasks come in their order, from `start` on; `fail` is called with errors after which nothing more is begun."""

    def __init__(self, tasks: TaskLog, context: JudgingContext, fail: Callable[[BaseException], None], start: int = 0) -> None:
        self.stage = context.stage
        self.failure: BaseException | None = None
        """Why nothing more is begun, where that is a fault."""
        self._log = tasks
        self._context = context
        self._fail = fail
        self._task_judge = TaskJudge(context.stage, context.policy, context.judge, self._record, context.now)
        self.is_closed = False
        """Whether nothing more is begun."""
        self.sessions: dict[str, deque[Pending]] = {}
        """The tasks of each session that has any, in their order: the first may be under way."""
        self._ready: list[tuple[int, str]] = []
        """Sessions whose first task can be begun, by its offset."""
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._having_turns: set[str] = set()
        self.under_way: dict[Pending, int] = {}
        """Bytes of each task that is not done, in the order of the log."""
        self.taken = start
        """The offset after the last task that was taken."""
        self._changed = asyncio.Event()

    @property
    def position(self) -> int:
        """The offset of the first task that is not done."""
        return next((pending.offset for pending in self.under_way), self.taken)

    async def take(self, rows: Sequence[tuple[int, str, Record]], end: int, done: Callable[[], None]) -> None:
        """Queue the tasks before the offset `end`, each with offset and session; `done` is called when all of them are.

        Returns when there is room for more, or nothing more is begun.
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
        """Begin nothing more; calls under way go on."""
        self.is_closed = True
        self._task_judge.close()
        self._context.turns.withdraw(self._begin)
        self._ready.clear()
        self._changed.set()

    async def end(self, grace: float) -> None:
        """Make no more calls, let those under way be recorded for so many seconds at most, and give up the rest."""
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
        """Begin the earliest task that can be."""
        _, key = heapq.heappop(self._ready)
        self._having_turns.add(key)
        runner = self._runners[key] = asyncio.create_task(self._judge(self.sessions[key][0]), name=f"session {key}")
        # Not in the task itself: one that is cancelled before its first step does nothing.
        runner.add_done_callback(partial(self._note_end, key))

    async def _judge(self, pending: Pending) -> None:
        """Judge a task and append what came of it; nothing where its session was erased meanwhile."""
        if self.is_closed:
            raise StoppedError
        state = await self._log.state_of(pending)
        if state is not None and pending.offset >= state.next_offset:
            with contextlib.suppress(ErasedError):
                await self._append_result(pending, state)

    def _note_end(self, key: str, runner: asyncio.Task[None]) -> None:
        """Go on with the session's next task. One that is not done stays, and nothing more is begun after a stop or a fault of ours."""
        del self._runners[key]
        has_turn = key in self._having_turns
        self._having_turns.discard(key)  # before the session's next task gets one
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
        self._end_turn(pending.key)  # the judge is not waited for any more
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
