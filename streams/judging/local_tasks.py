"""The tasks of a judged stage in the database of one process: read as they come, their results committed with state and watermark.

The watermark moves to the first task that is not committed yet. What a session's tasks need is looked up when they are read, and kept
as long as the session has any under way: the tables may show newer states and calls only half a second later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from analytics.store.inserting import PARTITION
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Reservation
from streams.engine.stage_runs import next_batch
from streams.judging.call_budget import ErasedError
from streams.judging.judged_state import STATE, JudgedState
from streams.judging.judging_partition import JudgingContext, JudgingPartition, Pending
from streams.judging.recorded_judgements import Subject, recorded_in
from streams.judging.task_judge import TaskResult
from streams.log.admission import Accepted, Submission
from streams.stage_progress import stage_progress
from streams.upkeep.erased_now import ErasedNow

CHUNK = 50
"""Tasks that are read at once; each holds texts of up to a megabyte."""
log = logging.getLogger(__name__)
Commit = Callable[[Submission], Awaitable[object]]
States = Callable[[str, Sequence[str]], Mapping[str, bytes]]
"""The newest states of a stage, by session key; called in a thread."""


class LocalTasks:
    """See the module; a `streams.judging.judging_partition.TaskLog`. `flush` returns when the tables show every record of a call."""

    number = 0

    def __init__(
        self,
        context: JudgingContext,
        store: Store,
        *,
        states: States,
        commit: Commit,
        flush: Callable[[], Awaitable[None]],
        erased: ErasedNow,
    ) -> None:
        self.stage = context.stage
        self.failure: BaseException | None = None
        """Why judging ended before the next start."""
        self._store = store
        self._stored = states
        self._commit = commit
        self._flush = flush
        self._erased = erased
        self._recorded = recorded_in(store)
        self._partition = JudgingPartition(self, context, self._note_failure)
        # Of the sessions and subjects that have tasks under way.
        self._states: dict[str, JudgedState] = {}
        self._judgements: dict[Subject, dict[str, Judgement]] = defaultdict(dict)
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._next = self._marked = stage_progress(store, self.stage).position
        # What an earlier process may have begun.
        self._begun_before = store.end_of(self.stage.source)

    @property
    def pending(self) -> int:
        """The number of tasks that are not judged yet."""
        return self._store.end_of(self.stage.source) - self._next + len(self._partition.under_way)

    @property
    def sessions(self) -> int:
        """The number of sessions that have tasks under way."""
        return len(self._partition.sessions)

    async def drained(self) -> None:
        """Return when nothing is left to judge, or judging stopped."""
        while self.pending and not self._partition.is_closed:
            self._idle.clear()
            await self._idle.wait()

    def wake(self) -> None:
        """There may be new tasks."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`."""
        while not self._partition.is_closed:
            self._wake.clear()
            if not await self._read_more():
                await self._mark()
                self._idle.set()
                await self._wake.wait()
        self._idle.set()

    async def stop(self, grace: float) -> None:
        """Let what is being judged finish, for so many seconds at most; the rest is taken up by the next start."""
        self.wake()
        await self._partition.end(grace)

    def state_of(self, pending: Pending) -> JudgedState | None:
        """See `TaskLog`."""
        state = self._states[pending.key]
        return state if pending.offset >= state.next_offset else None

    def recorded_of(self, pending: Pending, _state: JudgedState) -> Sequence[Judgement]:
        """See `TaskLog`."""
        return list(self._judgements[self.stage.subject_of(pending.task)].values())

    async def record(self, record: Judgement | Reservation) -> None:
        """See `TaskLog`."""
        self._require_kept(record)
        made = Accepted()
        made.add("judgements", encode(record))
        await self._commit(Submission(made=made))

    async def commit(self, pending: Pending, before: JudgedState, result: TaskResult) -> None:  # noqa: ARG002 - the store keeps calls
        """See `TaskLog`."""
        self._require_kept(pending.task)
        after, mark = JudgedState(pending.offset + 1, result.spent), self._partition.watermark(self._next, but=pending)
        states = {pending.key: msgspec.msgpack.encode(after)}
        result.made.extend(result.dead)
        await self._commit(Submission(made=result.made, stage=self.stage.name, states=states, positions={PARTITION: mark}))
        self._states[pending.key] = after
        self._keep(result.judgements)
        self._marked = max(self._marked, mark)

    def _keep(self, judgements: Iterable[Judgement]) -> None:
        for one in judgements:
            self._judgements[one.connection, one.subject_id][one.judgement_id] = one

    def _require_kept(self, record: Any) -> None:
        if self._erased.has(record.connection, record.session_id):
            raise ErasedError

    async def _read_more(self) -> bool:
        """Read the next tasks; answers whether there were any."""
        if self._next >= self._store.end_of(self.stage.source):
            return False
        batch, end = await asyncio.to_thread(next_batch, self._store, self.stage.source, self._next, CHUNK)
        rows = await asyncio.to_thread(list, batch.records())
        await self._look_up(rows)
        self._next = end
        await self._partition.take(rows, self.wake)
        return True

    async def _look_up(self, rows: Sequence[tuple[int, str, Record]]) -> None:
        """Get ready what the tasks need: the states of their sessions, and the calls of those that may have been judged before."""
        stage, under_way = self.stage, self._partition.under_way
        subjects = {stage.subject_of(task) for task in (*(task for *_, task in rows), *(one.task for one in under_way))}
        for subject in self._judgements.keys() - subjects:
            del self._judgements[subject]
        self._states = {key: state for key, state in self._states.items() if key in self._partition.sessions}
        new = list({key for _, key, _ in rows} - self._states.keys())
        states = await asyncio.to_thread(self._stored, stage.name, new)
        self._states |= {key: STATE.decode(states[key]) if key in states else JudgedState() for key in new}
        known = [stage.subject_of(task) for offset, _, task in rows if offset < self._begun_before or stage.may_be_known(task)]
        if known:
            await self._flush()
            for found in (await asyncio.to_thread(self._recorded, known)).values():
                self._keep(found)

    async def _mark(self) -> None:
        """Commit the watermark where everything that was read is done."""
        if not self._partition.under_way and self._next > self._marked:
            await self._commit(Submission(stage=self.stage.name, positions={PARTITION: self._next}))
            self._marked = self._next

    def _note_failure(self, error: BaseException) -> None:
        """Take note that a session ended by a fault: that is the end of judging until the next start."""
        log.critical("%s ended by a fault of Driftline", self.stage.name, exc_info=error)
        self.failure = error
        self.wake()
