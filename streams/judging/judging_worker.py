"""A judged stage with a judge: sessions side by side, each one's tasks in order.

1. What was paid is durable before it is used: a reservation before the call, the judgement after it, then what was made together with
   the session's state.
2. A session's state knows the last task it has seen, so tasks beyond the watermark that were done before a restart change nothing.
3. The watermark moves to the first task that is not committed yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from analytics.store.store import Store
from schemas.records import Judgement, Record
from streams.engine.session_queues import SessionQueues
from streams.judging.call_budget import ErasedError
from streams.judging.judged_stages import JudgedStage
from streams.judging.judged_state import STATE, JudgedState
from streams.judging.recorded_judgements import Recorded, Subject
from streams.judging.task_judge import TaskJudge, TaskResult
from streams.log.admission import Admission, Place
from streams.log.log_writer import Submission
from streams.stage_batches import StageBatch
from streams.stage_progress import stage_progress
from streams.upkeep.erased_now import ErasedNow

CHUNK = 50
"""Tasks that are read at once; each holds texts of up to a megabyte."""
WINDOW_TASKS = 2_000
WINDOW_BYTES = 64_000_000
"""Limits on the tasks under way, by number and by bytes, before no more are read. One read may exceed them."""
KNOWN_SESSIONS = 100_000
"""Sessions whose state is kept in memory; that of others is read again when they come back."""
log = logging.getLogger(__name__)
Commit = Callable[[Submission], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Pending:
    """A task that was read and is not done."""

    offset: int
    task: Any
    """A record of the stage's type."""
    recorded: Sequence[Judgement] | None
    """The judgements recorded of its subject; None if an earlier revision is still under way: they are looked up after it."""


class JudgingWorker:
    """Takes up a stage's tasks from the log as they come and commits what comes of each."""

    def __init__(
        self,
        stage: JudgedStage[Any],
        store: Store,
        task_judge: TaskJudge,
        *,
        recorded: Recorded,
        commit: Commit,
        landed: Callable[[], Awaitable[None]],
        erased: ErasedNow,
        admission: Callable[[], Admission],
    ) -> None:
        self.stage = stage
        self._store = store
        self._task_judge = task_judge
        self._recorded = recorded
        self._commit = commit
        self._landed = landed
        self._erased = erased
        self._admission = admission
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._stopping = False
        self._sessions = SessionQueues(self._judge, self._note_failure)
        self._states: dict[str, JudgedState] = {}
        self._forgot = False  # whether a state that is not here may be newer than the tables show
        self._under_way: dict[int, int] = {}  # size of each task by offset, ascending
        self._subjects: Counter[Subject] = Counter()  # how many of the tasks under way are about each
        self.failure: BaseException | None = None
        self._next = stage_progress(store, stage).position
        self._marked = self._next
        # What an earlier process may have begun.
        self._begun_before = store.end_of(stage.source)

    @property
    def pending(self) -> int:
        """The number of tasks that are not judged yet."""
        return self._store.end_of(self.stage.source) - self._next + len(self._under_way)

    @property
    def sessions(self) -> int:
        """The number of sessions that have tasks under way."""
        return len(self._sessions)

    async def drained(self) -> None:
        """Return when nothing is left to judge, or judging stopped."""
        while self.pending and not self._stopping:
            self._idle.clear()
            await self._idle.wait()

    def wake(self) -> None:
        """There may be new tasks."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`."""
        while not self._stopping:
            self._wake.clear()
            if not await self._read_more():
                await self._mark()
                self._idle.set()
                await self._wake.wait()
        self._idle.set()

    async def stop(self, grace: float) -> None:
        """Let what is being judged finish, for so many seconds at most; the rest is taken up by the next start."""
        self._stopping = True
        self._task_judge.close()
        self._wake.set()
        await self._sessions.end(grace)

    async def _read_more(self) -> bool:
        """Read the next tasks, when there is room; answers whether there were any."""
        full = len(self._under_way) >= WINDOW_TASKS or sum(self._under_way.values()) >= WINDOW_BYTES
        if full or self._next >= self._store.end_of(self.stage.source):
            return False
        tasks = await asyncio.to_thread(self._read, self._next)
        if not tasks:  # they were deleted before they were judged
            self._next = await asyncio.to_thread(self._store.next_position, self.stage.source, self._next)
            return True
        unknown = list({key for _, key, _ in tasks} - self._states.keys())
        stage, began = self.stage, self._begun_before
        known = [stage.subject_of(task) for offset, _, task in tasks if offset < began or stage.may_be_known(task)]
        if known or self._forgot:
            await self._landed()
        self._states |= await asyncio.to_thread(self._read_states, unknown)
        recorded = await asyncio.to_thread(self._recorded, known) if known else {}
        for offset, key, task in tasks:
            subject = stage.subject_of(task)
            self._sessions.put(key, Pending(offset, task, None if self._subjects[subject] else recorded.get(subject, ())))
            self._under_way[offset] = stage.size_of(task)
            self._subjects[subject] += 1
        self._next = tasks[-1][0] + 1
        self._forget_some()
        return True

    def _read(self, start: int) -> list[tuple[int, str, Record]]:
        frames = self._store.read(self.stage.source, start, CHUNK)
        return list(StageBatch.of(self.stage.source, frames).records())

    def _read_states(self, keys: Sequence[str]) -> dict[str, JudgedState]:
        with self._store.transaction() as transaction:
            stored = transaction.states(self.stage.name, keys)
        return {key: STATE.decode(stored[key]) if key in stored else JudgedState() for key in keys}

    async def _judge(self, key: str, pending: Pending) -> None:
        """Judge one task and commit what came of it; nothing where the session was erased meanwhile."""
        state = self._states[key]
        if pending.offset >= state.next_offset:
            place = Place(self.stage.source, pending.offset, 0)
            with contextlib.suppress(ErasedError):
                recorded = await self._recorded_of(pending)
                result = await self._task_judge.rule(pending.task, recorded, state.spent, place, self._admission)
                await self._keep(key, pending, result)
        self._note_done(pending)

    async def _recorded_of(self, pending: Pending) -> Sequence[Judgement]:
        """Return the earlier judgements of a task's subject: an answer to an earlier revision is not paid for again."""
        if pending.recorded is not None:
            return pending.recorded
        subject = self.stage.subject_of(pending.task)
        await self._landed()
        return (await asyncio.to_thread(self._recorded, [subject])).get(subject, ())

    def _note_done(self, pending: Pending) -> None:
        subject = self.stage.subject_of(pending.task)
        self._under_way.pop(pending.offset)
        self._subjects[subject] -= 1
        if not self._subjects[subject]:
            del self._subjects[subject]
        self._wake.set()

    async def _keep(self, key: str, pending: Pending, result: TaskResult) -> None:
        """Commit what came of a task, with its session's state and the watermark."""
        if self._erased.has(pending.task.connection, pending.task.session_id):
            return
        after = JudgedState(pending.offset + 1, result.spent)
        states, mark = {key: msgspec.msgpack.encode(after)}, self._watermark(pending.offset)
        await self._commit(Submission(result.dead, result.made, self.stage, states, mark))
        self._states[key] = after
        self._marked = max(self._marked, mark)

    def _note_failure(self, error: BaseException) -> None:
        """A session stops only when the log fails: that is the end of judging until the next start."""
        log.critical("%s ended by a fault of Driftline", self.stage.name, exc_info=error)
        self.failure = error
        self._stopping = True
        self._wake.set()

    def _watermark(self, done: int | None = None) -> int:
        """The first task that is not committed, that at `done` left out: it is committed together with the watermark."""
        return next((offset for offset in self._under_way if offset != done), self._next)

    async def _mark(self) -> None:
        """Commit the watermark where everything that was read is done."""
        mark = self._watermark()
        if not self._under_way and mark > self._marked:
            await self._commit(Submission(stage=self.stage, watermark=mark))
            self._marked = mark

    def _forget_some(self) -> None:
        """Forget the states of sessions that have nothing under way, the longest known first, when there are too many."""
        if len(self._states) > KNOWN_SESSIONS:
            idle = [key for key in self._states if key not in self._sessions]
            for key in idle[: len(idle) // 2]:
                del self._states[key]
            self._forgot = True
