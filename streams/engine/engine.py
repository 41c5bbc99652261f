"""The embedded engine of a server: takes records in, durable on return, and lets the stages work behind it.

1. What comes in one turn of the event loop is committed together (group commit): by the event loop itself where it is much and needs no
   table, else by a thread, which also lands the log and runs diagnosis. The judged stages run in the event loop: they wait for a judge most of the time.
2. What callers bring fails where the log does not take it: they hear so, and may bring it again.
3. What the engine made of it was promised or paid for. It is submitted again until the log takes it: a full disk may pass.
4. A database that gives up altogether has to be opened again, which takes another process: `broken` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.errors import BusyError, StoreError, first_line
from schemas.lazy.duckdb import duckdb
from schemas.records import Record
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine_state import EngineLimits
from streams.engine.record_intake import RecordIntake
from streams.judges.protocol import Judge
from streams.judging.call_budget import StoppedError, settle_interrupted
from streams.judging.judged_stages import JUDGED, JudgedStage
from streams.judging.judging_partition import JudgingContext
from streams.judging.local_tasks import LocalTasks
from streams.log.admission import WRITTEN, Accepted, Committed, Submission
from streams.log.group_commit import GroupCommit
from streams.log.log_writer import LogWriter, trouble
from streams.upkeep.erased_now import ErasedNow

Done = TypeVar("Done")
PAUSES = wait_exponential(multiplier=0.5, max=10.0)
"""Seconds between one try and the next: half a second, then twice as long, up to ten."""
RECENT = 30.0
"""Seconds for which a failed commit counts as trouble, unless one succeeds before: then a caller has to try again."""
MANY = 8
"""Submissions of one turn that the event loop commits itself; for fewer a thread that sleeps is quicker where others use the machine."""
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
            after=self._writer.land_if_due,
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

    async def land_taken(self, topic: str | None = None) -> None:
        """Land what is in the write-ahead log alone, if any of it is of the topic (None: all)."""
        if not self._writer.is_landed and (topic is None or self._writer.unlanded_on(topic)):
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


AtHand = Callable[[Sequence[Submission]], Sequence[Committed] | None]
"""Commits a group without waiting; None where that cannot be: then nothing was done."""


class Commits:
    """The group commit as the engine's coroutines use it, by the module's rules. Belongs to one event loop; the clock is monotonic, in seconds."""

    def __init__(
        self,
        group: GroupCommit[Submission, Committed],
        at_hand: AtHand,
        broken: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._at_hand = at_hand
        self._broken = broken
        self._clock = clock
        self._failed_at = -RECENT
        self._given_up = asyncio.Event()
        self._told: _Told[Committed] = _Told()
        self._last = 0
        """Submissions of the turn before."""
        self._submitted: list[tuple[Submission, bool, asyncio.Future[Committed]]] = []
        """What the event loop has submitted in this turn: the submission, whether it must be taken, and who waits for it."""

    @property
    def trouble(self) -> str:
        """Why the log takes nothing, in words; nothing when it does."""
        if self._broken.is_set():
            return "the database has given up and has to be opened again"
        return "the log did not take a record" if self._clock() - self._failed_at < RECENT else ""

    async def submit(self, submission: Submission, *, must: bool = False) -> Committed:
        """Commit what a caller brings; see `GroupCommit.submit`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Committed] = loop.create_future()
        if not submission.is_filled:
            # The thread lands, and nobody who brings something waits for that.
            self._hand_over([(submission, must, answer)])
        else:
            if not self._submitted:
                # Once everything that the event loop has read together is submitted.
                loop.call_soon(self._commit)
            self._submitted.append((submission, must, answer))
        try:
            committed = await answer
        except trouble() as error:
            self._failed_at = self._clock()
            if isinstance(error, duckdb.FatalException):
                self.give_up_database(error)
            raise
        self._failed_at = -RECENT
        return committed

    async def insist(self, submission: Submission) -> None:
        """Commit what the engine made, as soon as the log takes it. StoppedError when that is not to be waited for any longer."""
        again = AsyncRetrying(
            retry=retry_if_exception(self._may_pass), wait=PAUSES, sleep=self._wait, before_sleep=_warn, reraise=True
        )
        try:
            await again(self.submit, submission, must=True)
        except trouble() as error:
            raise StoppedError from error

    def give_up_database(self, error: BaseException) -> None:
        """Say that another process has to open the database again."""
        log.critical("the database has given up and has to be opened again: %s", first_line(error))
        self._broken.set()

    def give_up(self) -> None:
        """What the log does not take now is made again by the next start."""
        self._given_up.set()

    def _commit(self) -> None:
        """Commit what was submitted in this turn of the event loop, or have the thread commit it."""
        submitted, self._submitted = self._submitted, []
        # Who sends alone waits for nobody else; a thread that lands or diagnoses would keep them waiting.
        is_alone = len(submitted) == self._last == 1
        self._last = len(submitted)
        is_at_hand = self._group.is_idle and (is_alone or len(submitted) >= MANY or not self._group.is_asleep)
        done = self._done_at_hand([submission for submission, *_ in submitted]) if is_at_hand else None
        if done is None:
            self._hand_over(submitted)
            return
        for (*_, answer), outcome in zip(submitted, done, strict=True):
            if not answer.done():
                answer.set_result(outcome)

    def _hand_over(self, submitted: Sequence[tuple[Submission, bool, asyncio.Future[Committed]]]) -> None:
        """Have the thread commit."""
        for submission, must, answer in submitted:
            try:
                self._told.when_done(self._group.submit(submission, must=must, wakes=False), answer)
            except BusyError as error:
                answer.set_exception(error)
        self._group.wake()

    def _done_at_hand(self, group: Sequence[Submission]) -> Sequence[Committed] | None:
        try:
            return self._at_hand(group)
        except Exception as error:  # noqa: BLE001 - the thread tries each alone, and tells who submitted it
            log.warning("a group of %d could not be committed at hand: %s", len(group), first_line(error))
            return None

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, trouble()) and not self._broken.is_set()

    async def _wait(self, seconds: float) -> None:
        """Wait; StoppedError as soon as it was given up."""
        try:
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        except TimeoutError:
            return
        raise StoppedError


class _Told(Generic[Done]):
    """Hands what becomes of a group's submissions to the event loop with one wake-up: a wake-up each costs a system call each."""

    def __init__(self) -> None:
        self._done: deque[tuple[asyncio.Future[Done], Future[Done]]] = deque()
        self._is_due = False

    def when_done(self, future: Future[Done], answer: asyncio.Future[Done]) -> None:
        """Let the answer have what the future has once it is done."""
        loop = answer.get_loop()

        def done(_: Future[Done]) -> None:
            self._done.append((answer, future))
            if not self._is_due:
                self._is_due = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(self._tell)

        future.add_done_callback(done)

    def _tell(self) -> None:
        # First, so that what is done from here on wakes the loop again.
        self._is_due = False
        while self._done:
            answer, future = self._done.popleft()
            if answer.done():
                continue
            if error := future.exception():
                answer.set_exception(error)
            else:
                answer.set_result(future.result())


def _warn(tried: RetryCallState) -> None:
    error = tried.outcome.exception() if tried.outcome else None
    log.warning("the log took no record of the engine, trying again in %g s: %s", tried.upcoming_sleep, first_line(error))
