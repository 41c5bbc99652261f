"""Times are written in one form."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from audit.times import iso_time, time_text


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (None, None),
        (datetime(2026, 10, 1, 9, tzinfo=UTC), "2026-10-01T09:00:00Z"),
        (datetime(2026, 10, 1, 9, 0, 0, 1500, tzinfo=UTC), "2026-10-01T09:00:00.001500Z"),
        (datetime(2026, 10, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2026-09-30T23:00:00Z"),
    ],
)
def test_times_are_iso_8601_in_utc(moment: datetime | None, expected: str | None) -> None:
    """Times may come in any zone."""
    assert iso_time(moment) == expected


@pytest.mark.parametrize("value", [None, 3, "2026-10-01", date(2026, 10, 1)])
def test_what_is_no_time_stays_as_it_is(value: object) -> None:
    """Documents contain values of every kind, and dates are not times."""
    assert value is time_text(value)
