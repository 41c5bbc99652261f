"""The limit on calls in progress, and the effect of a provider's headers on it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.judges.rate_limits import MAX_PAUSE_SECONDS, Clock, Limiter, PausedError, retry_after, seconds_until_refill

T = TypeVar("T")
NOON = 1_800_014_400.0
DATE = "Fri, 15 Jan 2027 12:00:00 GMT"


class HandClock:
    """A clock that advances only when a task sleeps."""

    def __init__(self) -> None:
        self.at = 1000.0

    async def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.at += seconds
        await asyncio.sleep(0)

    @property
    def judge_clock(self) -> Clock:
        """Return the `Clock` for a limiter."""
        return Clock(now=lambda: self.at, sleep=self.sleep, jitter=lambda: 1.0, wall=lambda: NOON)


def run(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine."""
    return asyncio.run(task)


def test_concurrent_calls_never_exceed_the_limit() -> None:
    """The limit keeps the provider from rejecting all calls, so it must hold in every order of events."""

    async def scenario() -> tuple[int, int]:
        limiter = Limiter(3)
        most = 0

        async def call() -> None:
            nonlocal most
            await limiter.acquire(float("inf"))
            most = max(most, limiter.in_flight)
            for _ in range(3):
                await asyncio.sleep(0)
            limiter.release()

        await asyncio.gather(*(call() for _ in range(50)))
        return most, limiter.in_flight

    assert run(scenario()) == (3, 0)


def test_the_longest_waiting_call_is_next() -> None:
    """A worker that asks continuously must not starve the others."""

    async def scenario() -> list[int]:
        limiter, order = Limiter(1), []
        await limiter.acquire(float("inf"))

        async def call(number: int) -> None:
            await limiter.acquire(float("inf"))
            order.append(number)
            limiter.release()

        waiting = [asyncio.create_task(call(number)) for number in range(3)]
        await asyncio.sleep(0)
        limiter.release()
        waiting.append(asyncio.create_task(call(3)))
        await asyncio.gather(*waiting)
        return order

    assert run(scenario()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "order", [("cancel", "release"), ("release", "cancel"), ("cancel", "", "release"), ("release", "", "cancel")]
)
def test_a_cancelled_wait_keeps_its_slot_available(order: tuple[str, ...]) -> None:
    """A deadline may pass before, during or after a slot is granted; lost slots would stop all judging."""

    async def scenario() -> tuple[bool, int]:
        limiter = Limiter(1)
        await limiter.acquire(float("inf"))
        first, second = (asyncio.create_task(limiter.acquire(float("inf"))) for _ in range(2))
        await asyncio.sleep(0)
        steps = {"cancel": first.cancel, "release": limiter.release, "": None}
        for step in map(steps.__getitem__, order):
            if step is None:
                await asyncio.sleep(0)
            else:
                step()
        await asyncio.wait([first])
        if not first.cancelled():
            limiter.release()
        async with asyncio.timeout(5):
            await second
        limiter.release()
        return first.cancelled(), limiter.in_flight

    assert run(scenario()) == (order != ("release", "", "cancel"), 0)


def test_the_limit_halves_once_per_round_and_grows_back() -> None:
    """Sixteen calls rejected together count once, and the limit must grow back."""
    clock = HandClock()
    limiter = Limiter(16, clock.judge_clock)
    began = clock.at
    for _ in range(16):
        clock.at += 1
        limiter.shrink(started=began)
    assert limiter.limit == 8
    for _ in range(10):
        limiter.shrink(started=clock.at)
    assert limiter.limit == 1
    for _ in range(400):
        limiter.grow()
    assert limiter.limit == 16


def test_a_rising_limit_admits_waiting_calls() -> None:
    """A caller that waits because of a low limit must proceed as soon as the limit rises."""

    async def scenario() -> int:
        clock = HandClock()
        limiter = Limiter(2, clock.judge_clock)
        limiter.shrink(clock.at)
        await limiter.acquire(float("inf"))
        waiter = asyncio.create_task(limiter.acquire(float("inf")))
        await asyncio.sleep(0)
        limiter.grow()
        await waiter
        return limiter.in_flight

    assert run(scenario()) == 2


def test_a_pause_delays_every_call_until_it_ends() -> None:
    """A pause that one call learns about applies to all calls with the key."""
    clock = HandClock()
    limiter = Limiter(2, clock.judge_clock)
    limiter.pause(30)
    limiter.pause(10)
    assert limiter.paused_until == 1030.0
    run(limiter.acquire(1031))
    assert clock.at == 1030.0
    assert limiter.paused_until is None


def test_a_pause_beyond_the_deadline_is_reported_at_once() -> None:
    """Waiting beyond the deadline would only block the session."""
    clock = HandClock()
    limiter = Limiter(2, clock.judge_clock)
    limiter.pause(300)
    with pytest.raises(PausedError) as paused:
        run(limiter.acquire(1120))
    assert paused.value.seconds == 300.0
    assert clock.at == 1000.0
    assert limiter.in_flight == 0


def test_a_pause_also_delays_queued_calls() -> None:
    """Most calls are in the queue when a provider demands a pause."""
    clock = HandClock()
    limiter = Limiter(1, clock.judge_clock)

    async def pause_while_a_call_waits() -> None:
        await limiter.acquire(2000)
        waiter = asyncio.create_task(limiter.acquire(1100))
        await asyncio.sleep(0)
        limiter.pause(200)
        limiter.release()
        await waiter

    with pytest.raises(PausedError) as paused:
        run(pause_while_a_call_waits())
    assert paused.value.seconds == 200.0
    assert limiter.in_flight == 0


def test_the_length_of_a_pause_is_bounded() -> None:
    """A server that demands a pause of a year must not disable judging."""
    clock = HandClock()
    limiter = Limiter(1, clock.judge_clock)
    limiter.pause(1e9)
    assert limiter.paused_until == 1000.0 + MAX_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "7", "retry-after-ms": "soon"}, 7.0),
        ({"retry-after": "Fri, 15 Jan 2027 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 12:00:30 GMT", "date": "Fri, 15 Jan 2027 12:00:10 GMT"}, 20.0),
        ({"retry-after": "Fri, 15 Jan 2027 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "later"}, None),
    ],
)
def test_every_form_of_retry_after_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    """A misread delay would cause a burst of calls or an idle hour."""
    assert retry_after(headers, lambda: NOON) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"anthropic-ratelimit-requests-remaining": "0"}, 0.0),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "2027-01-15T12:00:40Z"}, 40.0),
        ({"anthropic-ratelimit-requests-remaining": "3", "anthropic-ratelimit-requests-reset": "2027-01-15T12:00:40Z"}, 0.0),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2027-01-15T13:00:40Z",
                "date": "Fri, 15 Jan 2027 13:00:00 GMT",
            },
            40.0,
        ),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "soon"}, 0.0),
        ({"anthropic-ratelimit-requests-remaining": "none", "anthropic-ratelimit-requests-reset": "2027-01-15T12:00:40Z"}, 0.0),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "2027-01-15T11:00:00Z"}, 0.0),
    ],
)
def test_an_empty_allowance_pauses_until_its_reset(headers: dict[str, str], seconds: float) -> None:
    """Times are compared with the server's clock if it sends one, because ours may be off by an hour."""
    assert seconds_until_refill(headers, lambda: NOON) == seconds


@given(
    st.dictionaries(
        st.sampled_from(
            ["retry-after", "retry-after-ms", "date"]
            + [f"anthropic-ratelimit-{what}-{part}" for what in ("requests", "tokens") for part in ("remaining", "reset")]
        ),
        st.text(max_size=40)
        | st.sampled_from(["0", "9" * 400, "1e999", DATE, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"]),
    )
)
def test_invalid_headers_are_ignored(headers: dict[str, str]) -> None:
    """Headers may come from any server: invalid ones count as missing, never as negative times."""
    after = retry_after(headers, lambda: NOON)
    assert after is None or after >= 0
    assert seconds_until_refill(headers, lambda: NOON) >= 0
