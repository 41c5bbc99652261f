"""Rate limits: how many calls may be under way, from the API's headers.

The bound grows by one for each round of calls that went well, and is halved when the API says that it is too much. Headers
may be missing or garbage; garbage counts as missing.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_PAUSE_SECONDS = 600.0
"""Longest pause for everybody; a server that asks for more is asked again after this."""
_COUNTED = ("requests", "tokens", "input-tokens", "output-tokens")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time and chance, so that a test need not wait for them."""

    now: Callable[[], float] = time.monotonic
    """Seconds on a clock that only goes forward."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.SystemRandom().random
    """A number from 0 to 1."""
    wall: Callable[[], float] = time.time
    """Seconds since 1970, for servers that do not say what time it is."""


def retry_after(headers: Mapping[str, str], wall: Callable[[], float]) -> float | None:
    """Seconds after which the server wants to be asked again: `retry-after-ms`, else `retry-after` as seconds or a date."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(seconds * factor, 0.0)
    at = _http_date(headers.get("retry-after"))
    return None if at is None else max(at - _server_time(headers, wall), 0.0)


def exhausted_for(headers: Mapping[str, str], wall: Callable[[], float]) -> float:
    """Seconds until requests or tokens of which none remain are there again; 0 where some remain."""
    resets = [
        _rfc3339(headers.get(f"anthropic-ratelimit-{counted}-reset"))
        for counted in _COUNTED
        if (remaining := _number(headers.get(f"anthropic-ratelimit-{counted}-remaining"))) is not None and remaining <= 0
    ]
    known = [reset for reset in resets if reset is not None]
    return max(max(known) - _server_time(headers, wall), 0.0) if known else 0.0


class Limiter:
    """Bounds the calls in flight between 1 and `most`; one for all who share a key."""

    def __init__(self, most: int, waiting: Waiting | None = None) -> None:
        self._waiting = waiting or Waiting()
        self._most = most
        self._limit = float(most)
        self._shrunk_at = -math.inf
        self._resumes_at = -math.inf
        self._queue: deque[asyncio.Future[None]] = deque()
        self.in_flight = 0
        """Calls under way."""

    @property
    def limit(self) -> int:
        """The number of calls that may be under way now."""
        return int(self._limit)

    @property
    def paused_until(self) -> float | None:
        """The time when calls may be made again, on the clock of `Waiting.now`; None if they may be made now."""
        return self._resumes_at if self._resumes_at > self._waiting.now() else None

    async def acquire(self, before: float) -> float | None:
        """Wait for a slot: None when it is taken, which `release` gives back.

        Where a pause lasts until `before` or longer, nothing is waited for or taken: the seconds it lasts come back.
        """
        while True:
            while (resumes_at := self.paused_until) is not None:
                pause = resumes_at - self._waiting.now()
                if resumes_at >= before:
                    return pause
                await self._waiting.sleep(pause)
            if self.in_flight < self.limit:  # whoever queued has been let in before
                self.in_flight += 1
                return None
            await self._turn()
            if self.paused_until is None:
                return None
            self.release()

    async def resumed(self) -> None:
        """Wait until calls may be made again."""
        while (resumes_at := self.paused_until) is not None:
            await self._waiting.sleep(resumes_at - self._waiting.now())

    def release(self) -> None:
        """Give a slot back; the caller that waits longest has it next."""
        self.in_flight -= 1
        self._hand_out()

    def grow(self) -> None:
        """A call went well."""
        self._limit = min(self._limit + 1 / self._limit, float(self._most))
        self._hand_out()

    def shrink(self, started: float) -> None:
        """A call that began at `started` was too much.

        Calls that were under way together hear the same thing, so only the first of them halves the limit.
        """
        if started >= self._shrunk_at:
            self._limit = max(self._limit / 2, 1.0)
            self._shrunk_at = self._waiting.now()

    def pause(self, seconds: float) -> None:
        """No call may be made for so long; never longer than `MAX_PAUSE_SECONDS`, and never shorter than was said before."""
        self._resumes_at = max(self._resumes_at, self._waiting.now() + min(seconds, MAX_PAUSE_SECONDS))

    async def _turn(self) -> None:
        """Wait in the queue until a slot is handed over."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot came at the same moment
                self.release()
            raise

    def _hand_out(self) -> None:
        while self._queue and self.in_flight < self.limit:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                self.in_flight += 1


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _rfc3339(text: str | None) -> float | None:
    try:
        at = datetime.fromisoformat(text or "")
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _http_date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _server_time(headers: Mapping[str, str], wall: Callable[[], float]) -> float:
    """The server's own clock where it shows one: ours may be off by an hour."""
    shown = _http_date(headers.get("date"))
    return wall() if shown is None else shown
