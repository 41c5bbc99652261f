"""Group commit: what many callers want to have durable at the same moment is committed together.

1. A commit costs about the same for one record as for a hundred, so under load its cost is shared. Order is kept: what was submitted
   first is committed first.
2. What callers bring fails where the log does not take it: they hear so, and may bring it again.
3. What the engine made of it was promised or paid for. It is submitted again until the log takes it: a full disk may pass.
4. A thread commits. What the event loop can commit without waiting it commits itself, unless the thread has something to commit: a
   change of threads costs more than the commit.
5. A database that gives up altogether has to be opened again, which takes another process: `broken` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

import duckdb
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from schemas.errors import BusyError, first_line
from streams.judging.call_budget import StoppedError
from streams.log.admission import Committed, Submission
from streams.log.log_writer import AGAIN_SECONDS, TROUBLE

Work = TypeVar("Work")
Done = TypeVar("Done")
PAUSES = wait_exponential(multiplier=0.5, max=10.0)
"""Seconds between one try and the next: half a second, then twice as long, up to ten."""
RECENT = 30.0
"""Seconds for which a failed commit counts as trouble, unless one succeeds before: then a caller has to try again."""
log = logging.getLogger(__name__)


class GroupCommit(Generic[Work, Done]):
    """Commits submissions in order, as many at once as have come together.

    `commit` makes all of them durable or none, and answers one outcome each. When it fails for several, each is tried alone, so that
    one bad submission fails alone. `rest` is called when nothing is waiting, for work that can wait; it answers after how many seconds
    it is to be called again, None: once something was committed; without it nothing can wait. `finish` is called at the end. All three run in one thread. `is_ordered` tells whether work is to be committed
    before what is submitted later elsewhere.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Work]], Sequence[Done]],
        rest: Callable[[], float | None] = lambda: None,
        *,
        finish: Callable[[], None] = lambda: None,
        is_ordered: Callable[[Work], bool] = lambda _: True,
        capacity: int,
        at_once: int,
    ) -> None:
        self._commit = commit
        self._rest = rest
        self._finish = finish
        self._capacity = capacity
        self._at_once = at_once
        self._waiting: deque[tuple[Work, Future[Done]]] = deque()
        self._changed = threading.Condition()
        self._is_ordered = is_ordered
        self._ordered = 0
        self._closed = self._is_called = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many submissions wait to be committed."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether it is open and has nothing to commit that is ordered."""
        return not (self._ordered or self._closed)

    def submit(self, work: Work, *, must: bool = False, wakes: bool = True) -> Future[Done]:
        """Ask for work to be committed; the future is done when it is durable.

        BusyError when too many wait already, unless it `must` be taken: what was begun is finished even under load. Without `wakes` the
        thread goes on to sleep until `wake` is called.
        """
        future: Future[Done] = Future()
        with self._changed:
            if self._closed or (not must and len(self._waiting) >= self._capacity):
                raise BusyError("the log cannot take more at the moment" if not self._closed else "the log is closed")
            self._waiting.append((work, future))
            self._ordered += self._is_ordered(work)
            if wakes:
                self._changed.notify()
        return future

    def wake(self) -> None:
        """Have what waits committed."""
        with self._changed:
            self._changed.notify()

    def call(self) -> None:
        """Have the work that can wait looked at."""
        with self._changed:
            self._is_called = True
            self._changed.notify()

    def close(self) -> None:
        """Commit what waits, then end; nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        pause: float | None = 0.0
        while (batch := self._next(pause)) is not None:
            if batch:
                self._settle(batch)
                with self._changed:
                    self._ordered -= sum(self._is_ordered(work) for work, _ in batch)
                pause = 0.0
            else:
                pause = self._rest_quietly()
        try:
            self._finish()
        except Exception:
            log.exception("the log could not be closed")

    def _next(self, pause: float | None) -> list[tuple[Work, Future[Done]]] | None:
        """Return what is waiting, nothing where nothing came for so many seconds; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed or self._is_called, pause)
            self._is_called = False
            if self._closed and not self._waiting:
                return None
            count = min(self._at_once, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _settle(self, batch: Sequence[tuple[Work, Future[Done]]]) -> None:
        try:
            done = self._commit([work for work, _ in batch])
        except Exception as error:  # noqa: BLE001 - whoever submitted gets it
            if len(batch) == 1:
                if batch[0][1].set_running_or_notify_cancel():
                    batch[0][1].set_exception(error)
                return
            log.warning("a group of %d could not be committed together: %s", len(batch), error)
            for one in batch:
                self._settle([one])
            return
        for (_, future), outcome in zip(batch, done, strict=True):
            if future.set_running_or_notify_cancel():
                future.set_result(outcome)

    def _rest_quietly(self) -> float | None:
        try:
            return self._rest()
        except Exception:
            log.exception("work that could wait failed")
            return AGAIN_SECONDS


AtHand = Callable[[Sequence[Submission]], Sequence[Committed] | None]
"""Commits a group without waiting; None where that cannot be: then nothing was done."""


class Commits:
    """The group commit as the engine's coroutines use it, by rules 2 to 5. Belongs to one event loop; the clock is monotonic, in seconds."""

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
        if not self._submitted:
            # Once everything that the event loop has read together is submitted.
            loop.call_soon(self._commit)
        self._submitted.append((submission, must, answer))
        try:
            committed = await answer
        except TROUBLE as error:
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
        except TROUBLE as error:
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
        done = self._done_at_hand([submission for submission, *_ in submitted]) if self._group.is_idle else None
        if done is None:
            for submission, must, answer in submitted:
                try:
                    self._told.when_done(self._group.submit(submission, must=must, wakes=False), answer)
                except BusyError as error:
                    answer.set_exception(error)
            self._group.wake()
            return
        for (*_, answer), outcome in zip(submitted, done, strict=True):
            if not answer.done():
                answer.set_result(outcome)

    def _done_at_hand(self, group: Sequence[Submission]) -> Sequence[Committed] | None:
        try:
            return self._at_hand(group)
        except Exception as error:  # noqa: BLE001 - the thread tries each alone, and tells who submitted it
            log.warning("a group of %d could not be committed at hand: %s", len(group), first_line(error))
            return None

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, TROUBLE) and not self._broken.is_set()

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
