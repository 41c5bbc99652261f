"""Change of spread: do the sessions of a day differ more from each other, or less, than they did, wherever their mean is.

Days are taken together until they say enough of how their sessions vary, and the logarithm of that variance is one value. How much such
values vary is estimated twice from those before the change, as sampling noise only and as day-to-day variation only; the larger is used:
where fewer sessions come, they say less.

The mean of a session of five scores varies less than that of one, by a factor between 1 (all its scores are alike) and 5 (they are
independent). Sums cannot tell which, so both are compared, the variance of a session's mean and that of a single score, and the lesser
evidence counts: sessions that only get longer or shorter are no change of spread. The evidence for a change from one of the last days on is the Bayes
factor of Student's t (Gönen, Johnson, Lu and Westfall 2005), summed over the days as in `audit.drift.change_detector`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from audit.drift.change_detector import CONFIRMED, SUSPECTED
from audit.drift.change_evidence import SMALLEST_VARIANCE, log_bayes_factor
from audit.drift.consecutive_days import Direction, Severity
from audit.drift.series import NO_DECISION, Cells, Floats, Ints, Off, Reference, date_of, day_number, rows_of
from schemas.lazy_numpy import np

DAYS = 28
"""A change of spread that is older than so many UTC days, the one of the check included, is how the series is now."""
HISTORY_DAYS = 118
"""So many UTC days are looked at: 90 of them before any change that is looked for."""
FREEDOM = 7
"""Degrees of freedom that a value rests on, at least: of eight sessions of one day, or of four days with three each."""
FEWEST_OFF = 4.0
"""Of the sessions of a value at least so many lie off the usual value, if most have one: a day on which all have it says nothing of how
far the others lie off."""
FEWEST_BEFORE = 10
"""Values that stand before a change."""
FEWEST_AFTER = 2
"""Values that stand after it: one odd day is no change."""
SMALLEST_RATIO = 1.25
"""Sessions that differ by less than so many times as much, or as little, are not worth an incident."""
CRITICAL_RATIO = 3.0
"""From so many times the spread before on it is critical."""
_INTERVAL = 0.95
_SIZES = ((math.log(1.5) * 2, 0.5), (math.log(3) * 2, 0.5))
"""Standard deviations of the changes of the logarithm that are reckoned with, and how much of the reckoning each has."""


@dataclass(frozen=True, slots=True)
class SpreadChange:
    """A change of spread that is more than chance."""

    direction: Direction
    severity: Severity
    first_day: date
    """The most probable first day."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95 % interval of the first day, included."""
    until: date
    """The last day that shows it."""
    before: float
    """Standard deviation of a session's mean, on the scale of the scores."""
    after: float
    sessions_before: int
    sessions_after: int
    start: date
    """First of the days that were compared with."""
    log_evidence: float
    is_confirmed: bool
    """True if it is confirmed."""

    @property
    def ratio(self) -> float:
        """Spread after by spread before."""
        return self.after / self.before


class _Values(NamedTuple):
    """The variation of the sessions of days in a row, a column each, oldest first."""

    first: Floats
    """First day, as days since 1970."""
    last: Floats
    freedom: Floats
    units: Floats
    level: Floats
    """Logarithm of the variance of a session's mean; what few sessions bias it by is taken off."""
    length: Floats
    """Number of scores whose mean would vary like a session's, if scores were independent."""


def find_spread(cells: Cells, as_of: date, *, reference: Reference = NO_DECISION) -> SpreadChange | None:
    """The change of spread within the last `DAYS` days up to `as_of`; None without one. `reference` says which days count."""
    values = _values(cells, as_of, reference)
    places = np.arange(FEWEST_BEFORE, len(values.level) - FEWEST_AFTER + 1)
    if not places.size:
        return None
    evidence = _log_evidence(values, places)
    index, is_late = int(places[np.argmax(evidence)]), values.first[places] > day_number(as_of) - DAYS
    if values.first[index] <= day_number(as_of) - DAYS:
        return None
    total = float(np.logaddexp.reduce(evidence[is_late]))
    likely = places[_likeliest(evidence)]
    change = _change(values, index, (likely.min(), likely.max()), total)
    return change if total >= math.log(SUSPECTED) and max(change.ratio, 1 / change.ratio) >= SMALLEST_RATIO else None


def _likeliest(evidence: Floats) -> Ints:
    """Return the places that make up 95 % of the evidence, the likeliest first."""
    order = np.argsort(-evidence, kind="stable")
    share = np.cumsum(np.exp(evidence[order] - np.logaddexp.reduce(evidence)))
    return order[: int(np.searchsorted(share, _INTERVAL)) + 1]


def _change(values: _Values, index: int, likely: tuple[int, int], total: float) -> SpreadChange:
    before, after = (math.exp(_mean(values, part) / 2) for part in (slice(index), slice(index, None)))
    return SpreadChange(
        direction="up" if after > before else "down",
        severity="critical" if after >= CRITICAL_RATIO * before else "warning",
        first_day=date_of(values.first[index]),
        earliest_day=date_of(values.first[likely[0]]),
        latest_day=date_of(values.last[likely[1]]),
        until=date_of(values.last[-1]),
        before=before,
        after=after,
        sessions_before=round(float(values.units[:index].sum())),
        sessions_after=round(float(values.units[index:].sum())),
        start=date_of(values.first[0]),
        log_evidence=total,
        is_confirmed=total >= math.log(CONFIRMED),
    )


def _values(cells: Cells, as_of: date, reference: Reference) -> _Values:
    """The values of the days that count, each of as many days in a row as it takes."""
    number = cells.days
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    if not starts.size:
        return _Values(*[np.zeros(0)] * 6)
    day, today = number[starts], day_number(as_of)
    counted = (day > today - HISTORY_DAYS) & (day <= today) & reference.mask(day)
    rows = np.add.reduceat(rows_of(cells), starts, axis=1)[:, counted]
    units, scores, weight, total, squares, mixed, totals = rows
    mean = total / weight
    around = np.maximum(0.0, totals - 2 * mean * mixed + mean * mean * squares)
    begins, ends = _grouped(units - 1, Off.of(rows, _usual(cells, total.sum() / weight.sum())))
    if not ends.size:
        return _Values(*[np.zeros(0)] * 6)
    whole = np.stack((units, units - 1, around, squares, scores, weight))[:, : ends[-1] + 1]
    units, freedom, around, squares, scores, weight = np.add.reduceat(whole, begins, axis=1)
    variance = around / squares * units / freedom
    # The logarithm of a variance of k degrees of freedom lies low by about 1/k + 1/(3 k^2).
    level = np.log(np.maximum(variance, SMALLEST_VARIANCE)) + 1 / freedom + 1 / (3 * freedom**2)
    numbers = day[counted].astype(np.float64)
    return _Values(numbers[begins], numbers[ends], freedom, units, level, squares * scores / weight**2)


def _usual(cells: Cells, mean: float) -> float:
    """Return the value that most sessions have, if most have one: then it is the least or the greatest."""
    low, high = float(cells.low.min()), float(cells.high.max())
    return high if 2 * mean > low + high else low


def _grouped(freedom: Floats, off: Off) -> tuple[Ints, Ints]:
    """The first and the last of the days in a row, as many as it takes."""
    ends, freedom_so_far, total, squared = [], 0.0, 0.0, 0.0
    for index, (free, far, square) in enumerate(zip(freedom.tolist(), off.total.tolist(), off.squared.tolist(), strict=True)):
        freedom_so_far, total, squared = freedom_so_far + free, total + far, squared + square
        if freedom_so_far >= FREEDOM and total**2 >= FEWEST_OFF * squared > 0:
            ends.append(index)
            freedom_so_far, total, squared = 0.0, 0.0, 0.0
    places = np.array(ends, dtype=np.int64)
    return np.append(0, places + 1)[: len(ends)], places


def _log_evidence(values: _Values, places: Ints) -> Floats:
    """Logarithms of the Bayes factors of a change before each of some values: of sessions or of single scores, whichever is less."""
    compared = [_distances(values.freedom, level, places) for level in (values.level, values.level + np.log(values.length))]
    agree = compared[0][0] * compared[1][0] > 0
    freedom = (places - 1).astype(np.float64)
    evidence = [
        log_bayes_factor(
            np.where(agree, distance**2 / variance, 0.0), freedom, [(size * size / variance, share) for size, share in _SIZES]
        )
        for distance, variance in compared
    ]
    return np.minimum(*evidence)


def _distances(freedom: Floats, level: Floats, places: Ints) -> tuple[Floats, Floats]:
    """Return by how much the mean level from each place on exceeds that before it, and the variance of this difference."""
    is_before = np.arange(len(level)) < places[:, None]
    count = places[:, None].astype(np.float64)
    weights = np.where(is_before, freedom, 0.0)
    centre = (weights * level).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
    squares = np.where(is_before, (level - centre) ** 2, 0.0) * count / (count - 1)
    by_session = np.maximum(2.0, (squares * freedom).sum(1, keepdims=True) / count)
    precision = 1 / np.maximum(by_session / freedom, squares.sum(1, keepdims=True) / count)
    sides = [np.where(side, precision, 0.0) for side in (is_before, ~is_before)]
    before, after = ((side * level).sum(1) / side.sum(1) for side in sides)
    return after - before, sum(1 / side.sum(1) for side in sides)


def _mean(values: _Values, part: slice) -> float:
    return float(np.average(values.level[part], weights=values.freedom[part]))
