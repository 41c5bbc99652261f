"""The log as the engine's coroutines use it: what was submitted is durable when they go on.

1. What callers bring fails where the log does not take it: they hear so, and may bring it again.
2. What the engine made of it was promised or paid for. It is submitted again until the log takes it: a full disk may pass.
3. A database that gives up altogether has to be opened again, which takes another process: `broken` is set.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import duckdb
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from schemas.errors import StoreError
from streams.judging.call_budget import StoppedError
from streams.log.group_commit import GroupCommit
from streams.log.log_writer import Committed, Submission

TROUBLE = (StoreError, duckdb.OperationalError, duckdb.FatalException)
"""What keeps the log from taking records whatever they hold, such as a full disk."""
PAUSES = wait_exponential(multiplier=0.5, max=10.0)
"""Seconds between one try and the next: half a second, then twice as long, up to ten."""
RECENT = 30.0
"""Seconds for which a failed commit counts as trouble, unless one succeeds before: then somebody has to try again."""
log = logging.getLogger(__name__)


class Commits:
    """See the module. Belongs to one event loop; the clock is monotonic, in seconds."""

    def __init__(
        self, group: GroupCommit[Submission, Committed], broken: asyncio.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._group = group
        self._broken = broken
        self._clock = clock
        self._failed_at = -RECENT
        self._given_up = asyncio.Event()

    @property
    def trouble(self) -> str:
        """Why the log takes nothing, in words; nothing when it does."""
        if self._broken.is_set():
            return "the database has given up and has to be opened again"
        return "the log did not take a record" if self._clock() - self._failed_at < RECENT else ""

    async def submit(self, submission: Submission, *, must: bool = False) -> Committed:
        """Commit what a caller brings; see `streams.log.group_commit.GroupCommit.submit`."""
        try:
            committed = await asyncio.wrap_future(self._group.submit(submission, must=must))
        except TROUBLE as error:
            self._failed_at = self._clock()
            if isinstance(error, duckdb.FatalException):
                log.critical("the database has given up: %s", _first_line(error))
                self._broken.set()
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

    def give_up(self) -> None:
        """What the log does not take now is made again by the next start."""
        self._given_up.set()

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


def _warn(tried: RetryCallState) -> None:
    error = tried.outcome.exception() if tried.outcome else None
    log.warning("the log took no record of the engine, trying again in %g s: %s", tried.upcoming_sleep, _first_line(error))


def _first_line(error: BaseException | None) -> str:
    return str(error).partition("\n")[0]
