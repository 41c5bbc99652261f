"""The watchdog's rule: missed intervals, and the resulting status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.silence import Silence, listening_since, silence

NOW = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
FIVE = timedelta(minutes=5)
MICROSECOND = timedelta(microseconds=1)
spans = st.timedeltas(timedelta(0), timedelta(days=3))


@pytest.mark.parametrize(
    ("elapsed", "missed", "status", "level"),
    [
        (timedelta(0), 0, "green", None),
        (FIVE, 0, "green", None),
        (FIVE + MICROSECOND, 1, "yellow", "info"),
        (2 * FIVE, 1, "yellow", "info"),
        (2 * FIVE + MICROSECOND, 2, "yellow", "warning"),
        (3 * FIVE, 2, "yellow", "warning"),
        (3 * FIVE + MICROSECOND, 3, "red", "critical"),
        (timedelta(days=400), 115199, "red", "critical"),
    ],
)
def test_missed_intervals_call_for_a_status_and_a_level(
    elapsed: timedelta, missed: int, status: str, level: str | None
) -> None:
    """Green below one interval, yellow below three, red beyond; reported at one, two and three missed intervals."""
    current = silence(NOW - elapsed, None, NOW, FIVE)
    assert current == Silence(elapsed, missed)
    assert current.status == status
    assert current.level == level


def test_a_heartbeat_from_the_future_counts_as_now() -> None:
    """A sender's clock may be ahead of ours."""
    assert Silence(timedelta(0), 0) == silence(NOW + FIVE, None, NOW, FIVE)


@given(last=spans, listened=spans)
def test_time_before_the_server_listened_does_not_count(last: timedelta, listened: timedelta) -> None:
    """After an hour of downtime, the server must not report that everybody has stopped."""
    current = silence(NOW - last, NOW - listened, NOW, FIVE)
    assert current.elapsed == min(last, listened)
    assert (current.missed == 0) == (current.elapsed <= FIVE)


@given(first=spans, second=spans)
def test_silence_only_grows(first: timedelta, second: timedelta) -> None:
    """Waiting longer never lowers a reported level."""
    shorter, longer = sorted([first, second])
    assert silence(NOW - shorter, None, NOW, FIVE).missed <= silence(NOW - longer, None, NOW, FIVE).missed


@pytest.mark.parametrize(
    ("last_look", "ready", "expected"),
    [
        (NOW - timedelta(seconds=60), True, NOW - FIVE),
        (NOW - timedelta(seconds=61), True, NOW),
        (NOW - timedelta(seconds=30), False, NOW),
        (None, True, NOW),
    ],
)
def test_listening_begins_again_after_every_break(last_look: datetime | None, expected: datetime, *, ready: bool) -> None:
    """A process that was paused, or refused records, heard nothing."""
    since = listening_since(NOW - FIVE, last_look, NOW, ready=ready, patience=timedelta(seconds=60))
    assert since == expected
