"""Quiet hours: what they hold back, until when, and when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.setup.settings import QuietHours, quiet_hours_of

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    """Return a time in Berlin, as UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).astimezone(UTC)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-10-01T21:59:59", "2026-10-01T21:59:59"),
        ("2026-10-01T22:00:00", "2026-10-02T07:00:00"),
        ("2026-10-02T00:30:00", "2026-10-02T07:00:00"),
        ("2026-10-02T06:59:59", "2026-10-02T07:00:00"),
        ("2026-10-02T07:00:00", "2026-10-02T07:00:00"),
        ("2026-10-24T23:00:00", "2026-10-25T07:00:00"),
        ("2026-03-28T23:00:00", "2026-03-29T07:00:00"),
    ],
)
def test_alerts_at_night_wait_for_the_morning(moment: str, expected: str) -> None:
    """Quiet hours follow local time, also in nights with a clock change."""
    assert at(expected) == quiet_hours_of(f"22:00-07:00 {BERLIN}").over(at(moment))


def test_quiet_hours_may_lie_within_a_day() -> None:
    """A team may want a quiet lunch break."""
    quiet = quiet_hours_of("12:00-13:00")
    noon = datetime(2026, 10, 1, 12, 30, tzinfo=UTC)
    assert quiet.over(noon) == datetime(2026, 10, 1, 13, 0, tzinfo=UTC)
    assert quiet.over(noon - timedelta(hours=1)) == noon - timedelta(hours=1)


def test_an_end_that_occurs_twice_in_a_night_is_the_next_one() -> None:
    """At 02:10 after the clocks went back, the first 02:30 has passed."""
    second = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo(BERLIN), fold=1).astimezone(UTC)
    assert quiet_hours_of(f"22:00-02:30 {BERLIN}").over(second) == second + timedelta(minutes=20)


@given(
    start=st.times(),
    end=st.times(),
    moment=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - bounds are naive
    zone=st.sampled_from([UTC, ZoneInfo(BERLIN), ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu")]),
)
def test_no_alert_is_early_or_waits_more_than_a_day(start: time, end: time, moment: datetime, zone: ZoneInfo) -> None:
    """An alert that is never sent would be worse than one at night."""
    assume(start != end)
    released = QuietHours(start, end, zone).over(moment)
    assert moment <= released <= moment + timedelta(hours=25)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "like 22:00-07:00"),
        ("22-7", "like 22:00-07:00"),
        ("22:00-07:00 Europe/Berlin please", "like 22:00-07:00"),
        ("24:00-07:00", "00:00 to 23:59"),
        ("07:00-07:00", "different times"),
        ("22:00-07:00 Europe/Atlantis", "no time zone Europe/Atlantis"),
        ("22:00-07:00 ../../etc/passwd", "like 22:00-07:00"),
        ("22:00-07:00 /etc/localtime", "no time zone"),
    ],
)
def test_invalid_quiet_hours_are_refused(text: str, words: str) -> None:
    """A typo must neither suppress all alerts nor page everybody at night."""
    with pytest.raises(ValueError, match=words):
        quiet_hours_of(text)
