"""Limits on calls: rate limits from the API's headers, and a circuit breaker for models with unreadable answers.

Rate limits: the limit on calls in progress grows by one per round of successful calls. It is halved when the API reports too many
requests (additive increase, multiplicative decrease). Invalid headers count as missing.

The circuit breaker pauses a model, because each unreadable answer is paid for:

1. It counts questions, not calls, because a repair or another output mode may still succeed. `MAX_UNREADABLE` consecutive questions
   without a readable answer open the circuit.
2. While the circuit is open, the model is not called. New questions wait and cost nothing; questions in progress make no further call.
3. After the pause, one question is asked as a probe. A readable answer closes the circuit. An unreadable one starts a pause that is
   twice as long, up to `MAX_PAUSE_SECONDS`.
4. Refusals, cut-off answers, errors and timeouts change nothing: they do not show whether the model's answers can be read.

The state is in memory: each process, and so each worker on Kafka, starts counting at 0.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_PAUSE_SECONDS = 600.0
"""The longest pause, even if a server requests more."""
MAX_UNREADABLE = 5
"""Consecutive unreadable questions that open the circuit. With one failure in five, that happens once in about 3,000 questions."""
FIRST_PAUSE_SECONDS = 60.0
"""The length of a circuit's first pause."""
_LOG = logging.getLogger(__name__)
_RATE_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
"""A duration as Go writes it, which OpenAI's headers have."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The sources of time and randomness, replaced in tests."""

    now: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.SystemRandom().random
    """Returns a random number from 0 to 1."""
    wall: Callable[[], float] = time.time
    """The Unix time in seconds, used if a server sends no date."""


def retry_after(headers: Mapping[str, str], wall: Callable[[], float]) -> float | None:
    """Return the seconds after which the server allows a retry: `retry-after-ms`, else `retry-after` as seconds or a date."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _parse_number(headers.get(name))
        if seconds is not None:
            return max(seconds * factor, 0.0)
    retry_at = _parse_http_date(headers.get("retry-after"))
    return None if retry_at is None else max(retry_at - _server_time(headers, wall), 0.0)


def seconds_until_refill(headers: Mapping[str, str], wall: Callable[[], float]) -> float:
    """Return the seconds until all exhausted rate limits are reset; 0 if none is exhausted."""
    waits = [0.0]
    for limit in _RATE_LIMITS:
        remaining = _parse_number(headers.get(f"anthropic-ratelimit-{limit}-remaining"))
        reset = _parse_rfc3339(headers.get(f"anthropic-ratelimit-{limit}-reset"))
        if remaining is not None and remaining <= 0 and reset is not None:
            waits.append(reset - _server_time(headers, wall))
        remaining = _parse_number(headers.get(f"x-ratelimit-remaining-{limit}"))
        if remaining is not None and remaining <= 0:
            waits.append(_parse_duration(headers.get(f"x-ratelimit-reset-{limit}")))
    return max(waits)


class PausedError(Exception):
    """Raised if a pause of all calls, of which `seconds` remain, lasts until the caller's deadline or longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"rate limited: retry after {math.ceil(seconds)} s")
        self.seconds = seconds


class Limiter:
    """An adaptive limit on the calls in progress, between 1 and `max_limit`."""

    def __init__(self, max_limit: int, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._max_limit = max_limit
        self._limit = float(max_limit)
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
        """The time when calls may be made again, by `Clock.now`; None if they may be made now."""
        return self._resumes_at if self._resumes_at > self._clock.now() else None

    async def acquire(self, deadline: float) -> None:
        """Wait for a slot and take it. The caller must `release` it.

        Raises PausedError, without waiting, if calls are paused until the deadline or longer.
        """
        while True:
            await self._wait_for_resumption(deadline)
            if self.in_flight < self.limit:  # `release` and `grow` have already served the queue
                self.in_flight += 1
                return
            await self._wait_for_slot()
            if self.paused_until is None:
                return
            self.release()

    async def resumed(self) -> None:
        """Wait until calls may be made again."""
        await self._wait_for_resumption(math.inf)

    def release(self) -> None:
        """Return a slot; the caller that has waited longest gets it."""
        self.in_flight -= 1
        self._grant_slots()

    def grow(self) -> None:
        """Raise the limit after a successful call."""
        self._limit = min(self._limit + 1 / self._limit, float(self._max_limit))
        self._grant_slots()

    def shrink(self, started: float) -> None:
        """Halve the limit after a rejected call that was started at `started`.

        Concurrent calls are often rejected together, so a call that was started before the limit last shrank is ignored.
        """
        if started >= self._shrunk_at:
            self._limit = max(self._limit / 2, 1.0)
            self._shrunk_at = self._clock.now()

    def pause(self, seconds: float) -> None:
        """Pause all calls for `seconds`, at most `MAX_PAUSE_SECONDS`; an earlier, longer pause stays in force."""
        self._resumes_at = max(self._resumes_at, self._clock.now() + min(seconds, MAX_PAUSE_SECONDS))

    async def _wait_for_resumption(self, deadline: float) -> None:
        """Wait until no pause is left: calls in progress may extend it meanwhile."""
        while (resumes_at := self.paused_until) is not None:
            pause = resumes_at - self._clock.now()
            if resumes_at >= deadline:
                raise PausedError(pause)
            await self._clock.sleep(pause)

    async def _wait_for_slot(self) -> None:
        """Wait in the queue until a slot is granted."""
        granted = asyncio.get_running_loop().create_future()
        self._queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # the slot was granted just before the cancellation
                self.release()
            raise

    def _grant_slots(self) -> None:
        while self._queue and self.in_flight < self.limit:
            granted = self._queue.popleft()
            if not granted.done():
                granted.set_result(None)
                self.in_flight += 1


class CircuitBreaker:
    """A circuit breaker per model, as the module describes. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._circuits: dict[str, _Circuit] = defaultdict(_Circuit)

    def is_paused(self, model: str) -> bool:
        """Return whether no call may be made to the model now."""
        circuit = self._circuits[model]
        return not circuit.is_closed and self._clock.now() < circuit.resumes_at

    def may_ask(self, model: str, *, is_probe: bool) -> bool:
        """Return whether an admitted question may still be asked; the circuit may have opened since its admission."""
        return is_probe or self._circuits[model].is_closed

    @asynccontextmanager
    async def admitted(self, model: str) -> AsyncGenerator[bool]:
        """Wait until a question may be asked. Yields True if the question is the probe after a pause, which decides for all others."""
        circuit = self._circuits[model]
        if not circuit.is_closed:
            async with circuit.probe:
                while not circuit.is_closed and self._clock.now() < circuit.resumes_at:
                    await self._clock.sleep(circuit.resumes_at - self._clock.now())
                if not circuit.is_closed:
                    yield True
                    return
        yield False

    def note_readable(self, model: str) -> None:
        """Note a readable answer; it closes the circuit."""
        circuit = self._circuits[model]
        if not circuit.is_closed:
            _LOG.warning("the answers of %s are readable again", model)
        circuit.unreadable = 0
        circuit.pause = FIRST_PAUSE_SECONDS

    def note_unreadable(self, model: str) -> None:
        """Note a question that ended with an unreadable answer; enough of them open the circuit."""
        circuit = self._circuits[model]
        circuit.unreadable += 1
        # Questions that were in progress when the pause began must not extend it.
        if circuit.is_closed or self.is_paused(model):
            return
        circuit.resumes_at = self._clock.now() + circuit.pause
        _LOG.error(
            "%d consecutive answers of %s are unreadable; exchanges wait, and the next question is asked in %g s",
            circuit.unreadable,
            model,
            circuit.pause,
        )
        circuit.pause = min(circuit.pause * 2, MAX_PAUSE_SECONDS)


@dataclass(slots=True)
class _Circuit:
    """The circuit of one model."""

    unreadable: int = 0
    """Consecutive questions without a readable answer."""
    pause: float = FIRST_PAUSE_SECONDS
    """The length of the next pause in seconds."""
    resumes_at: float = 0.0
    probe: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the question that probes the model after a pause."""

    @property
    def is_closed(self) -> bool:
        return self.unreadable < MAX_UNREADABLE


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _parse_duration(text: str | None) -> float:
    """Return the seconds of a duration such as `1m2.5s` or `250ms`, or of a plain number; 0 if it is neither."""
    match = _DURATION.fullmatch(text or "")
    if match is None:
        return _parse_number(text) or 0.0
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def _parse_rfc3339(text: str | None) -> float | None:
    try:
        moment = datetime.fromisoformat(text or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _parse_http_date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _server_time(headers: Mapping[str, str], wall: Callable[[], float]) -> float:
    """Return the server's time, or ours if it sends none: the two clocks may differ by an hour."""
    server_time = _parse_http_date(headers.get("date"))
    return wall() if server_time is None else server_time
