"""The embedded engine of a server: takes records in, durable on return, and lets the stages work behind it.

One thread writes (group commit): it appends what callers bring, lets intake decide in the same transaction, and runs diagnosis when
nothing waits. The judged stages run in the event loop, because they wait for a judge most of the time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.errors import StoreError
from schemas.records import Record
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine_state import EngineLimits
from streams.engine.record_intake import RecordIntake
from streams.judges.protocol import Judge
from streams.judging.call_budget import settle_interrupted
from streams.judging.judged_stages import JUDGED, JudgedStage
from streams.judging.judging_partition import JudgingContext
from streams.judging.local_tasks import LocalTasks
from streams.log.admission import WRITTEN, Accepted, Committed, Submission
from streams.log.group_commit import Commits, GroupCommit
from streams.log.log_writer import LogWriter
from streams.upkeep.erased_now import ErasedNow

log = logging.getLogger(__name__)


class Engine(RecordIntake):
    """See the module. `judge` None: the tiers that want one stay unscored; `judge_name` says in words who judges.

    Tasks of a judged stage that is not among `stages` wait for another engine: this one was not asked to pay for them.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        judge: Judge | None = None,
        judge_name: str = "none",
        limits: EngineLimits | None = None,
        stages: Sequence[JudgedStage[Any]] = JUDGED,
    ) -> None:
        super().__init__(store, policy, redactor, now, judge_name=judge_name, limits=limits)
        self.judge = judge
        self._stages = stages
        self._unjudged = () if judge is not None else tuple(stages)
        self._writer = LogWriter(store, EmbeddedRunner(store, policy, redactor, now), policy, unjudged=self._unjudged)
        self._log = GroupCommit(
            self._writer.commit,
            self._writer.rest,
            finish=self._writer.close,
            is_ordered=lambda submission: submission.is_filled,
            capacity=self._limits.waiting,
            at_once=self._limits.at_once,
        )
        self._commits = Commits(self._log, self._writer.commit_at_hand, self.broken)
        self._workers: tuple[LocalTasks, ...] = ()
        self._is_started = self._stopping = False
        self._moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._erased = ErasedNow(store)

    async def start(self) -> None:
        """Take up what the last process left, then work in the background."""
        await asyncio.to_thread(self._catch_up)
        if self.judge is not None:
            self._workers = tuple(self._worker(stage, self.judge) for stage in self._stages)
        loop = asyncio.get_running_loop()
        self._writer.on_moved = functools.partial(loop.call_soon_threadsafe, self._wake)
        self._writer.on_fatal = lambda error: loop.call_soon_threadsafe(self._commits.give_up_database, error)
        self._writer.on_unlanded = self._log.call
        self._log.start()
        self._tasks = [asyncio.create_task(worker.run()) for worker in self._workers]
        for task in self._tasks:
            task.add_done_callback(self._judging_ended)
        self._tasks.append(asyncio.create_task(self._close_idle_sessions()))
        self._is_started = True

    async def stop(self, grace: float = 20.0) -> None:
        """Finish what is being judged, for `grace` seconds at most, commit what waits, and end.

        Called again while it stops, with less grace, it hurries.
        """
        if not self._is_started:
            return
        self._stopping = True
        await asyncio.gather(*(worker.stop(grace) for worker in self._workers))
        self._commits.give_up()
        self._tasks[-1].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._log.close)
        if self.judge is not None:
            await self.judge.aclose()
        self._workers, self._is_started = (), False

    @property
    def has_judge(self) -> bool:
        """Whether anybody can be asked to judge."""
        return self.judge is not None

    async def landed(self, _topic: str) -> None:
        """Return when the store shows everything that was taken in."""
        await self.land_taken()

    async def land_taken(self) -> None:
        """Land what is in the write-ahead log alone."""
        if not self._writer.is_landed:
            await self._commits.submit(Submission(), must=True)

    async def _take(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        accepted = Accepted()
        for message in messages:
            accepted.add(topic, message)
        committed = await self._commits.submit(Submission(outside=accepted, records={topic: records}))
        if WRITTEN in committed.fates[topic]:
            self._wake()
        return committed

    async def _settled(self, _connection: str, _session_id: str) -> None:
        await self.land_taken()

    async def _shows_now(self) -> bool:
        await self.land_taken()
        return True

    def _queues(self) -> Mapping[str, int]:
        queues = {"commits": 0, **{stage.queue: 0 for stage in self._stages}, "sessions": 0}
        if self._is_started:
            queues |= {"commits": self._log.waiting, "sessions": sum(worker.sessions for worker in self._workers)}
            queues |= {stage.queue: self._writer.pending(stage) for stage in self._unjudged}
            queues |= {
                worker.stage.queue: worker.pending + self._writer.unlanded_on(worker.stage.source) for worker in self._workers
            }
        return queues

    def _why_not(self) -> str:
        if not self._is_started:
            return "it is not started"
        ended = next((worker.stage.name for worker in self._workers if worker.failure is not None), "")
        if ended:
            return f"{ended} ended by a fault of Driftline"
        if self._log.waiting >= self._limits.waiting:
            return "too much waits to be committed"
        return self._commits.trouble or (self._writer.failing and f"what was taken in does not land: {self._writer.failing}")

    async def drained(self) -> None:
        """Return when everything that was taken in is judged. StoreError when that cannot be any more."""
        if not self._is_started:
            return
        await self.land_taken()
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._judged()), asyncio.create_task(self.broken.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        if self.broken.is_set():
            raise self.failure()

    async def _judged(self) -> None:
        for worker in self._workers:
            await worker.drained()
            await self.land_taken()
        while any(map(self._writer.pending, self._unjudged)):
            self._moved.clear()
            await self._moved.wait()

    def failure(self) -> StoreError:
        """Why it is broken, and what to do about it."""
        hint = "Make room where the file is, then start again: what was accepted is in the file, and is taken up."
        return StoreError(f"{self.store.path}: {self.state().why_not}", hint=hint)

    def _worker(self, stage: JudgedStage[Any], judge: Judge) -> LocalTasks:
        return LocalTasks(
            JudgingContext(
                stage=stage, policy=self.policy, judge=judge, redactor=self.redactor, now=self.now, calls=self._calls
            ),
            self.store,
            states=self._writer.states,
            commit=self._commits.insist,
            landed=self._insist_landed,
            erased=self._erased,
        )

    async def _insist_landed(self) -> None:
        """Land what is in the write-ahead log alone, as soon as the tables take it. StoppedError as `Commits.insist`."""
        if not self._writer.is_landed:
            await self._commits.insist(Submission())

    def _judging_ended(self, judging: asyncio.Task[None]) -> None:
        """Nothing ends a judged stage but a stop; where something does, another process has to take it up."""
        if not self._stopping and not judging.cancelled():
            log.critical("judging ended", exc_info=judging.exception())
            self.broken.set()

    def _catch_up(self) -> None:
        self._writer.recover()
        settle_interrupted(self.store, self.now())
        self._writer.catch_up()

    def _wake(self) -> None:
        self._moved.set()
        for worker in self._workers:
            worker.wake()
