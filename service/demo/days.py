"""The days of the demo: every date in it is a number of days before its last day.

The data is generated for the days of a script and then shifted by whole days. So every demo has the same texts, faults, quiet days,
incidents and costs, the same number of days before its end. Only dates differ.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

SCRIPT_END = date(2026, 11, 1)
"""Last day of the script, a Sunday. Outputs and pictures in the documents are of a demo that ends on it."""


def moved_by(last_day: date) -> timedelta:
    """Return the shift of a script that ends on this day."""
    return last_day - SCRIPT_END


def moment_before(last_day: date, days: int, hour: int = 0, minute: int = 0) -> datetime:
    """Return this time of day, UTC, a number of days before the last day."""
    return datetime.combine(last_day - timedelta(days=days), time(hour, minute), UTC)


def present_of(last_day: date) -> datetime:
    """Return the demo's present: the end of its last day."""
    return moment_before(last_day, -1)
