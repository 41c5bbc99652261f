"""What becomes of an alert after a try, and when it is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.alerts.delivery import FIRST_SECONDS, LONGEST_SECONDS, LONGEST_WAIT_SECONDS, MOST_ATTEMPTS, pause, verdict_of

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
def test_a_status_says_whether_another_try_can_help(status: int, verdict: str) -> None:
    """What was refused once is refused again; what is busy is not busy for ever."""
    assert verdict_of(status) == verdict


@given(attempts=st.integers(1, 10_000), chance=chances)
def test_a_pause_grows_and_stays_within_bounds(attempts: int, chance: float) -> None:
    """A receiver that is down is not hammered, and not forgotten."""
    assert FIRST_SECONDS / 2 <= pause(attempts, chance, None) <= LONGEST_SECONDS
    assert pause(attempts, chance, None) <= pause(attempts + 1, chance, None)


@given(attempts=st.integers(1, MOST_ATTEMPTS), first=chances, second=chances)
def test_chance_keeps_many_from_coming_back_together(attempts: int, first: float, second: float) -> None:
    """By half of the pause at most."""
    assert pause(attempts, first, None) <= 2 * pause(attempts, second, None)
    assert (first < second) <= (pause(attempts, first, None) <= pause(attempts, second, None))


@given(attempts=st.integers(1, MOST_ATTEMPTS), chance=chances, asked=st.floats(0, 1e9))
def test_a_receiver_is_not_asked_sooner_than_it_said(attempts: int, chance: float, asked: float) -> None:
    """Within reason: one that asks for a year is asked again the same day."""
    assert min(asked, LONGEST_WAIT_SECONDS) <= pause(attempts, chance, asked)
    assert pause(attempts, chance, None) <= pause(attempts, chance, asked)


def test_an_alert_is_given_up_after_hours_and_not_after_minutes() -> None:
    """A receiver may be rebooted, or stand still over lunch."""
    tries = range(1, MOST_ATTEMPTS)
    assert (
        2.5 * 3600
        < sum(pause(number, 0, None) for number in tries)
        < sum(pause(number, 1, None) for number in tries)
        < 8 * 3600
    )
