"""What becomes of an alert after a try, and when it is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.alerts.delivery import (
    FIRST_RETRY_SECONDS,
    MAX_ATTEMPTS,
    MAX_REQUESTED_WAIT_SECONDS,
    MAX_RETRY_SECONDS,
    retry_delay,
)
from service.alerts.messages import classify_status

chances = st.floats(0, 1)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, "delivered"),
        (204, "delivered"),
        (301, "never"),
        (400, "never"),
        (401, "never"),
        (404, "never"),
        (408, "later"),
        (410, "never"),
        (425, "later"),
        (429, "later"),
        (500, "later"),
        (503, "later"),
    ],
)
def test_the_status_decides_whether_to_retry(status: int, verdict: str) -> None:
    """A refusal is permanent, and an overload is temporary."""
    assert classify_status(status) == verdict


@given(attempts=st.integers(1, 10_000), chance=chances)
def test_pauses_grow_within_bounds(attempts: int, chance: float) -> None:
    """A receiver that is down is neither flooded nor forgotten."""
    assert FIRST_RETRY_SECONDS / 2 <= retry_delay(attempts, chance, None) <= MAX_RETRY_SECONDS
    assert retry_delay(attempts, chance, None) <= retry_delay(attempts + 1, chance, None)


@given(attempts=st.integers(1, MAX_ATTEMPTS), first=chances, second=chances)
def test_jitter_spreads_the_retries(attempts: int, first: float, second: float) -> None:
    """It adds at most half of the pause."""
    assert retry_delay(attempts, first, None) <= 2 * retry_delay(attempts, second, None)
    low, high = sorted((first, second))
    assert retry_delay(attempts, low, None) <= retry_delay(attempts, high, None)


@given(attempts=st.integers(1, MAX_ATTEMPTS), chance=chances, retry_after=st.floats(0, 1e9))
def test_a_receivers_retry_after_is_respected(attempts: int, chance: float, retry_after: float) -> None:
    """Within reason: a receiver that demands a year is tried again on the same day."""
    assert min(retry_after, MAX_REQUESTED_WAIT_SECONDS) <= retry_delay(attempts, chance, retry_after)
    assert retry_delay(attempts, chance, None) <= retry_delay(attempts, chance, retry_after)


def test_an_alert_is_abandoned_after_hours_and_not_minutes() -> None:
    """A receiver may reboot, or be down over lunch."""
    tries = range(1, MAX_ATTEMPTS)
    assert (
        2.5 * 3600
        < sum(retry_delay(number, 0, None) for number in tries)
        < sum(retry_delay(number, 1, None) for number in tries)
        < 8 * 3600
    )
