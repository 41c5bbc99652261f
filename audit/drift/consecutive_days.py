"""Drift by runs of days: three or more consecutive days with scores whose averages are off the baseline on the same side.

The rule compares the average of a day with the standard deviation of single scores. The standard deviation of an average of n scores
is √n times smaller, so the rule only finds large changes, and never one below one sigma. It is kept because it is simple;
`audit.drift.change_detector` finds small changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from typing import Literal

DAYS = 7
"""UTC days that are used, the day of the check included."""
MIN_RUN_DAYS = 3
"""Minimum number of days of a run."""
MIN_SIGMA = 0.01
"""Minimum standard deviation of a baseline that is assumed, in points of the score."""
CRITICAL = 2.0
"""Sigma beyond which a drift is critical."""

Direction = Literal["up", "down"]
Severity = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True)
class DailyAverage:
    """The average of one tier's scores on one UTC day, by the time of the exchanges."""

    day: date
    average: float | None
    """Points of the score; None for a day without scores."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A run of days on one side of the baseline."""

    direction: Direction
    severity: Severity
    days: tuple[DailyAverage, ...]
    """All days of the run in order, including those after the third."""
    deviation: float
    """The largest distance of a day's average from the mean, in sigma, positive."""


def consecutive_days(days: Sequence[DailyAverage], mean: float, stddev: float, as_of: date) -> tuple[Drift, ...]:
    """Return the runs of at least three days beyond one sigma of a baseline, in order.

    Only the seven days that end with `as_of` are used. A day without scores neither belongs to a run nor ends it. A day within
    one sigma, or on the other side, ends it. `mean` and `stddev` are those of the baseline, unrounded.
    """
    first = as_of - timedelta(days=DAYS - 1)
    scored = [daily for daily in days if daily.average is not None and first <= daily.day <= as_of]
    scored.sort(key=lambda daily: daily.day)
    sigma = max(stddev, MIN_SIGMA)
    drifts = []
    for side, group in groupby(scored, key=lambda daily: _side(daily, mean, sigma)):
        run = tuple(group)
        if side is not None and len(run) >= MIN_RUN_DAYS:
            deviation = max(abs(_distance(daily, mean, sigma)) for daily in run)
            drifts.append(Drift(side, severity_of(deviation), run, deviation))
    return tuple(drifts)


def severity_of(deviation: float) -> Severity:
    """Return the severity of a change by its size in sigma, in either direction."""
    return "critical" if abs(deviation) > CRITICAL else "warning"


def _side(daily: DailyAverage, mean: float, sigma: float) -> Direction | None:
    """Return the side of the baseline on which a day lies; None within one sigma."""
    distance = _distance(daily, mean, sigma)
    if abs(distance) <= 1:
        return None
    return "up" if distance > 0 else "down"


def _distance(daily: DailyAverage, mean: float, sigma: float) -> float:
    """Return the distance of a day's average from the mean in sigma; 0 for a day without scores."""
    return 0.0 if daily.average is None else (daily.average - mean) / sigma
