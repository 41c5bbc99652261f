"""Limits on calls: rate limits from the API's headers, and a circuit breaker for models with unreadable answers.

Rate limits: the limit on calls in progress grows by one per round of successful calls, and is halved when the API reports too many
requests. Invalid headers count as missing.

The circuit breaker pauses a model, because each unreadable answer is paid for:

1. It counts questions, not calls, because a repair or another output format may still succeed. `MAX_UNREADABLE` consecutive questions
   without a readable answer open the circuit.
2. While it is open, that model is not called: questions wait and cost nothing. Questions in progress make no further call.
3. After the pause, one question is asked. A readable answer closes the circuit; an unreadable one begins the next pause, twice as
   long, at most `MAX_PAUSE_SECONDS`.
4. Refusals, cut-off answers, errors and time-outs change nothing: they do not show whether the model's answers can be read.

Its state belongs to the process: after a restart, and in each worker on Kafka, the count begins at 0.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_PAUSE_SECONDS = 600.0
"""The longest pause, even if a server requests more."""
_COUNTED = ("requests", "tokens", "input-tokens", "output-tokens")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Clocks and randomness, replaced in tests."""

    now: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.SystemRandom().random
    """A number from 0 to 1."""
    wall: Callable[[], float] = time.time
    """Seconds since 1970, for servers that send no date."""


def retry_after(headers: Mapping[str, str], wall: Callable[[], float]) -> float | None:
    """Return the seconds after which the server allows a retry: `retry-after-ms`, else `retry-after` as seconds or a date."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(seconds * factor, 0.0)
    at = _http_date(headers.get("retry-after"))
    return None if at is None else max(at - _server_time(headers, wall), 0.0)


def exhausted_for(headers: Mapping[str, str], wall: Callable[[], float]) -> float:
    """Return the seconds until exhausted requests or tokens are refilled; 0 if none is exhausted."""
    resets = [
        _rfc3339(headers.get(f"anthropic-ratelimit-{counted}-reset"))
        for counted in _COUNTED
        if (remaining := _number(headers.get(f"anthropic-ratelimit-{counted}-remaining"))) is not None and remaining <= 0
    ]
    known = [reset for reset in resets if reset is not None]
    return max(max(known) - _server_time(headers, wall), 0.0) if known else 0.0


class Limiter:
    """Limits the calls in progress, between 1 and `most`. Callers with the same key share it."""

    def __init__(self, most: int, waiting: Waiting | None = None) -> None:
        self._waiting = waiting or Waiting()
        self._most = most
        self._limit = float(most)
        self._shrunk_at = -math.inf
        self._resumes_at = -math.inf
        self._queue: deque[asyncio.Future[None]] = deque()
        self.in_flight = 0
        """Number of calls in progress."""

    @property
    def limit(self) -> int:
        """The number of calls that may be in progress now."""
        return int(self._limit)

    @property
    def paused_until(self) -> float | None:
        """The time when calls may be made again, on the clock of `Waiting.now`; None if they may be made now."""
        return self._resumes_at if self._resumes_at > self._waiting.now() else None

    async def acquire(self, before: float) -> float | None:
        """Wait for a slot and take it; returns None. `release` must give it back.

        If calls are paused until the time `before` or longer, return the seconds of the pause at once instead.
        """
        while True:
            while (resumes_at := self.paused_until) is not None:
                pause = resumes_at - self._waiting.now()
                if resumes_at >= before:
                    return pause
                await self._waiting.sleep(pause)
            if self.in_flight < self.limit:  # queued callers were admitted before
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
        """Give a slot back, to the caller that has waited longest."""
        self.in_flight -= 1
        self._hand_out()

    def grow(self) -> None:
        """Raise the limit after a successful call."""
        self._limit = min(self._limit + 1 / self._limit, float(self._most))
        self._hand_out()

    def shrink(self, started: float) -> None:
        """Halve the limit after a rejected call that began at `started`.

        Concurrent calls are rejected together, so only the first of them counts.
        """
        if started >= self._shrunk_at:
            self._limit = max(self._limit / 2, 1.0)
            self._shrunk_at = self._waiting.now()

    def pause(self, seconds: float) -> None:
        """Make no call for `seconds`, at most `MAX_PAUSE_SECONDS`; never shortens an earlier pause."""
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
    """Return the server's time if it sends one, because our clock may be off by an hour."""
    shown = _http_date(headers.get("date"))
    return wall() if shown is None else shown


MAX_UNREADABLE = 5
"""Consecutive questions. A model that fails one question in five would be paused needlessly once in 3,000 questions."""
FIRST_PAUSE_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Circuit:
    unreadable: int = 0
    """Consecutive questions without a readable answer."""
    pause: float = FIRST_PAUSE_SECONDS
    """The length of the next pause in seconds."""
    resumes_at: float = 0.0
    probe: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Its holder asks the one question after a pause."""

    @property
    def is_closed(self) -> bool:
        return self.unreadable < MAX_UNREADABLE


class CircuitBreaker:
    """See the module. Belongs to one event loop."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._circuits: dict[str, _Circuit] = defaultdict(_Circuit)

    def is_paused(self, model: str) -> bool:
        """Return whether no call may be made to the model now."""
        circuit = self._circuits[model]
        return not circuit.is_closed and self._waiting.now() < circuit.resumes_at

    def may_ask(self, model: str, *, is_probe: bool) -> bool:
        """Return whether an admitted question may still be asked, after waiting for something else."""
        return is_probe or self._circuits[model].is_closed

    @asynccontextmanager
    async def admitted(self, model: str) -> AsyncGenerator[bool]:
        """Wait until a question may be asked; yields True for the one question after a pause, whose answer decides for all waiting ones."""
        circuit = self._circuits[model]
        if not circuit.is_closed:
            async with circuit.probe:
                while not circuit.is_closed and (pause := circuit.resumes_at - self._waiting.now()) > 0:
                    await self._waiting.sleep(pause)
                if not circuit.is_closed:
                    yield True
                    return
        yield False

    def note_readable(self, model: str) -> None:
        """Note a readable answer; it closes the circuit."""
        circuit = self._circuits[model]
        if not circuit.is_closed:
            _LOG.warning("the answers of %s are readable again", model)
        circuit.unreadable, circuit.pause = 0, FIRST_PAUSE_SECONDS

    def note_unreadable(self, model: str) -> None:
        """Note a question that ended with an unreadable answer."""
        circuit = self._circuits[model]
        circuit.unreadable += 1
        # Questions that were in progress when the pause began do not make it longer.
        if circuit.is_closed or self.is_paused(model):
            return
        circuit.resumes_at = self._waiting.now() + circuit.pause
        _LOG.error(
            "%d answers of %s in a row are unreadable; retrying in %g s, exchanges wait",
            circuit.unreadable,
            model,
            circuit.pause,
        )
        circuit.pause = min(circuit.pause * 2, MAX_PAUSE_SECONDS)
