"""Drift by evidence: has the mean of a series changed, looked at after every hour with sessions, and since when.

After an hour, each day of the last 400 is a day on which the mean may have changed. For each of them `audit.drift.change_evidence` says how much
more probable the scores are with that change than without any; the sum over the days is the evidence (Shiryaev and Roberts' sum, of
e-values that start again every day; Shin, Ramdas and Rinaldo 2023, "E-detectors: a nonparametric framework for sequential change
detection"). Without a change each term is 1 on average, so the sum grows by no more than 1 a day, and it takes at least `SUSPECTED` days
on average until it has reached `SUSPECTED`, however often one looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from audit.drift.cells import Cells, Flags, Floats, Ints, Unit, cells_of
from audit.drift.change_estimate import Bounds, Interval, Scale, estimate, of_counts, on_scale
from audit.drift.change_evidence import Contrast
from audit.drift.consecutive_days import Direction, Severity, severity_of
from audit.drift.reference import NO_DECISION, Reference
from audit.drift.score_history import FEWEST_DAYS, HISTORY_DAYS, Looks, contrasts_at, first_seen, looks_of
from audit.drift.series import SCORES, UNITS, Series
from schemas.lazy.numpy import np

if TYPE_CHECKING:
    from schemas.lazy.numpy import NDArray


__all__ = [
    "CHECKED_DAYS",
    "CONFIRMED",
    "SUSPECTED",
    "WINDOW_DAYS",
    "Cells",
    "Change",
    "Interval",
    "Standing",
    "Unit",
    "find_change",
    "standing",
]

SUSPECTED = 8 * 365.0
"""Days to a false alarm of one series, at least, on average: a project's four tiers have one in two years."""
CONFIRMED = 200_000.0
"""Evidence from which on a change is confirmed; `STANDS_HOURS` later less will do."""
STANDS = 30_000.0
"""Evidence that confirms a change which was beyond doubt a day before."""
STANDS_HOURS = 24
CHECKED_DAYS = 7
"""The looks of so many days are taken again at each check, so that none is missed while the process is down."""
WINDOW_DAYS = HISTORY_DAYS + CHECKED_DAYS - 1
"""The number of UTC days of units that a check can use, its own day included."""
_FINE_DAYS = 14
"""So many days before a look, and on either side of the likeliest day, every hour is tried as the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the mean that is more than chance, as it looked when it was last beyond doubt."""

    direction: Direction
    severity: Severity
    """Critical when the size is beyond two sigma."""
    alarm_at: datetime
    """Time of the unit after which it was first beyond doubt, within the days that are checked."""
    seen_at: datetime
    """Time of the last unit after which it was: all the estimates rest on the units up to it."""
    confirmed_at: datetime | None
    """Since when it is confirmed, within the days that are checked; None while it is only suspected."""
    first_day: date
    """The most probable first day of the change."""
    first_hour: datetime
    """Beginning of its hour on that day: the units that end before it are those of before."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95 % interval of the first day, included."""
    size: float
    """Mean after less mean before, in points of the score."""
    size_interval: Interval
    """95 %, what is not known of the first day included."""
    sigma: float
    """Standard deviation of one unit's mean, in points of the score."""
    mean_before: float
    mean_after: float
    scores_before: int
    scores_after: int
    units_before: int
    units_after: int
    log_evidence: float
    """Natural logarithm of the evidence."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a series at a check."""

    change: Change | None
    level: float
    """The level after the last look, on the scale of log evidence: 0 is no more than chance brings, 1 is an alarm."""


def standing(
    units: Cells | Iterable[Unit],
    as_of: date,
    *,
    reference: Reference = NO_DECISION,
    is_share: bool = False,
    bounds: Bounds | None = None,
) -> Standing:
    """Return the state at the end of the day `as_of`: a change that the looks of the last week show, and how near an alarm is.

    `units` are those of one series over the last `WINDOW_DAYS` days, one by one in any order, or added up by the hour; earlier and later
    ones do not matter. `reference` says which days count. No change is found before there are `reference.days` days to compare with. Of a
    share (`is_share`), the weight of a unit is a number of runs and its total how many of them have something. `bounds` are the least and
    the greatest score there can be.
    """
    cells = units if isinstance(units, Cells) else cells_of(units)
    series = Series(cells, as_of - timedelta(days=WINDOW_DAYS - 1), as_of, reference, is_share=is_share)
    looks = looks_of(series, range(max(0, series.length - CHECKED_DAYS), series.length), math.log(SUSPECTED))
    if not looks.cells.size:
        return Standing(None, 0.0)
    chance = float(looks.log_chance[-1])
    level = max(0.0, (float(looks.log_evidence[-1]) - chance) / (math.log(SUSPECTED) - chance))
    raised = np.flatnonzero(looks.log_evidence >= math.log(SUSPECTED))
    return Standing(_change(series, looks, raised, bounds) if raised.size else None, level)


def find_change(
    units: Cells | Iterable[Unit],
    as_of: date,
    *,
    reference: Reference = NO_DECISION,
    is_share: bool = False,
    bounds: Bounds | None = None,
) -> Change | None:
    """The change of `standing`."""
    return standing(units, as_of, reference=reference, is_share=is_share, bounds=bounds).change


def is_confirmed(times: NDArray[np.datetime64], log_evidence: Floats) -> Flags:
    """Tell which looks of one alarm confirm it, by much evidence, or by enough evidence that stands for a day.

    Looks are given by their times and the logarithms of their evidence.
    """
    sure = log_evidence >= math.log(CONFIRMED)
    stands = (log_evidence >= math.log(STANDS)) & (times - times[0] >= np.timedelta64(STANDS_HOURS, "h"))
    return sure | stands  # type: ignore[no-any-return]


def _change(series: Series, looks: Looks, raised: Ints, bounds: Bounds | None) -> Change:
    """Describe a change at the last of the looks that raised an alarm."""
    cell = int(looks.cells[raised[-1]])
    begun, found, evidence = _places(series, cell)
    found, scale = _scaled(series, cell, begun, found, bounds)
    known = estimate(found, evidence, scale)
    is_up = found.size[known.best] > 0
    same = raised[_last_other(looks.size[raised] > 0, is_up=bool(is_up)) :]
    times = series.cells.last[looks.cells[same]]
    sure = np.flatnonzero(is_confirmed(times, looks.log_evidence[same]))
    size, sigma = float(found.size[known.best]), math.sqrt(float(found.unit_variance[known.best]))
    sums, first = series.sums.sum(axis=1), series.starts[first_seen(series.day[cell])]
    before, after = sums[:, begun[known.best]] - sums[:, first], sums[:, cell + 1] - sums[:, begun[known.best]]
    days = series.day[begun[known.places]]
    return Change(
        direction="up" if is_up else "down",
        severity=severity_of(size / sigma),
        alarm_at=times[0].astype(datetime),
        seen_at=series.time(cell),
        confirmed_at=times[sure[0]].astype(datetime) if sure.size else None,
        first_day=series.date(int(series.day[begun[known.best]])),
        first_hour=series.time(int(begun[known.best])).replace(minute=0, second=0, microsecond=0),
        earliest_day=series.date(int(days.min())),
        latest_day=series.date(int(days.max())),
        size=size,
        size_interval=known.size,
        sigma=sigma,
        mean_before=float(found.before[known.best]) + series.origin,
        mean_after=float(found.after[known.best]) + series.origin,
        scores_before=round(before[SCORES]),
        scores_after=round(after[SCORES]),
        units_before=round(before[UNITS]),
        units_after=round(after[UNITS]),
        log_evidence=float(looks.log_evidence[raised[-1]]),
    )


def _scaled(series: Series, cell: int, begun: Ints, found: Contrast, bounds: Bounds | None) -> tuple[Contrast, Scale | None]:
    """The contrasts with the scale that their means lie on; of a share, its plain counts, which are what people count."""
    if series.is_share:
        first = np.full(len(begun), series.starts[first_seen(series.day[cell])])
        return of_counts(found, series.counts(first, begun), series.counts(begun, np.full(len(begun), cell + 1)))
    return found, None if bounds is None else on_scale(found, bounds, series.origin)


def _last_other(ups: Flags, *, is_up: bool) -> int:
    """From which look on all are of one direction; that of the last one where the estimate says otherwise than all of them."""
    others = np.flatnonzero(ups != is_up)
    return min(int(others[-1]) + 1, len(ups) - 1) if others.size else 0


def _places(series: Series, cell: int) -> tuple[Ints, Contrast, Floats]:
    """The cells that may be the first one of a change, in order, with what a look says to each and how long it stands for."""
    day = series.day[cell]
    start = int(first_seen(day))
    first = start + series.reference_days
    known = series.days_between(np.array([start]), np.arange(first, day + 1)) >= FEWEST_DAYS
    begun = np.unique(series.starts[first : day + 1][known])
    begun = begun[begun <= cell]
    _, evidence = contrasts_at(series, cell, begun)
    likeliest = int(series.day[begun[int(np.argmax(evidence))]])
    fine = np.arange(max(begun[0], series.starts[max(first, likeliest - _FINE_DAYS)]), cell + 1)
    begun = np.union1d(begun, fine[series.day[fine] <= likeliest + _FINE_DAYS])
    _, evidence = contrasts_at(series, cell, begun)
    # Weighed by variances of their own, places would be told apart by how well each variance happens to be known.
    found, evidence = contrasts_at(series, cell, begun, int(np.argmax(evidence)))
    usable = found.is_usable
    # A change that first shows in a cell began after the one before it: the cell after a weekend stands for the whole weekend.
    since_previous = np.diff(series.cells.last[begun], prepend=series.cells.last[begun[0] - 1]).astype(np.float64)
    return begun[usable], found.where(usable), (evidence + np.log(np.maximum(1.0, since_previous)))[usable]
