"""The log of an engine, as the tasks of a judged stage have it; a `streams.judging.judging_partition.TaskLog`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from analytics.store.inserting import PARTITION
from analytics.store.store import Store
from schemas.records import Judgement, Record
from streams.judging.call_budget import ErasedError
from streams.judging.judged_stages import STATE, JudgedStage, JudgedState, Subject
from streams.judging.judging_partition import Pending
from streams.log.admission import Submission
from streams.log.log import Commit
from streams.upkeep.erasing import ErasedNow


class EngineTaskLog:
    """States and calls are read from the log and the tables when a task is begun; what comes of it is submitted to the engine.

    `states` finds the newest states of a stage by session key; `flush` returns when the tables show every record of a call.
    """

    number = PARTITION
    keeps_calls = False

    def __init__(
        self,
        stage: JudgedStage[Any],
        store: Store,
        *,
        states: Callable[[str, Sequence[str]], Awaitable[Mapping[str, bytes]]],
        recorded: Callable[[Sequence[Subject]], Awaitable[Mapping[Subject, Sequence[Judgement]]]],
        submit: Callable[[Submission], Awaitable[object]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._stage = stage
        self._states = states
        self._submit = submit
        self._flush = flush
        self._recorded = recorded
        self._erased = ErasedNow(store)
        # What an earlier process may have begun.
        self._begun_before = store.end_of(stage.source)

    async def state_of(self, pending: Pending) -> JudgedState | None:
        """See `TaskLog`."""
        states = await self._states(self._stage.name, [pending.key])
        return STATE.decode(states[pending.key]) if pending.key in states else JudgedState()

    async def recorded_of(self, pending: Pending) -> Sequence[Judgement]:
        """See `TaskLog`."""
        if pending.offset >= self._begun_before and not self._stage.may_be_known(pending.task):
            return ()
        await self._flush()
        subject = self._stage.subject_of(pending.task)
        return (await self._recorded([subject])).get(subject, ())

    async def append(self, commit: Commit, about: Record) -> None:
        """See `TaskLog`."""
        if self._erased.has(about.connection, about.session_id):  # type: ignore[attr-defined]
            raise ErasedError
        await self._submit(Submission(commit=commit))
