"""Change of spread: do the sessions of a day vary more, or less, than before, whatever their mean.

Consecutive days are pooled until they hold enough sessions to estimate a variance; the log of that variance is one value. The variance of
these values before the change is estimated twice, as sampling noise only and as day-to-day variation only; the larger is used.

The mean of a session with five scores varies less than a single score, by a factor between 1 (its scores are equal) and 5 (they are
independent). Sums cannot tell the factor, so evidence is computed for the variance of a session's mean and for that of a single score, and
the smaller one counts: sessions that only get longer or shorter are not a change of spread. The evidence for a change on one of the last
days is the Bayes factor of Student's t (Gönen, Johnson, Lu and Westfall 2005), summed over the days as in `audit.drift.change_detector`.
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
"""UTC days in which a change of spread may begin, the day of the check included; an older one has become normal."""
HISTORY_DAYS = 118
"""UTC days that are used: at least 90 before any change."""
FREEDOM = 7
"""Fewest degrees of freedom of a value, such as eight sessions on one day, or three on each of four days."""
FEWEST_OFF = 4.0
"""Fewest sessions of a value that are off the usual score: days on which all sessions have it do not show how far others lie off."""
FEWEST_BEFORE = 10
"""Fewest values before a change."""
FEWEST_AFTER = 2
"""Fewest values after it: one odd day is not a change."""
SMALLEST_RATIO = 1.25
"""Smallest ratio of both spreads, either way, that is reported."""
CRITICAL_RATIO = 3.0
"""The ratio to the spread before from which on a change is critical."""
_CONFIDENCE_LEVEL = 0.95
_SIZES = ((math.log(1.5) * 2, 0.5), (math.log(3) * 2, 0.5))
"""Prior of the change of the log variance: standard deviations, each with its weight."""


@dataclass(frozen=True, slots=True)
class SpreadChange:
    """A significant change of spread."""

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
    """First day of the baseline."""
    log_evidence: float
    is_confirmed: bool

    @property
    def ratio(self) -> float:
        """Spread after / spread before."""
        return self.after / self.before


class _Values(NamedTuple):
    """The variation of sessions over groups of consecutive days, oldest first."""

    first: Floats
    """First day, as days since 1970."""
    last: Floats
    freedom: Floats
    units: Floats
    level: Floats
    """Log variance of a session's mean, corrected for the bias of few sessions."""
    length: Floats
    """Number of independent scores whose mean would vary like a session's."""


def find_spread(cells: Cells, as_of: date, *, reference: Reference = NO_DECISION) -> SpreadChange | None:
    """Return the change of spread within the last `DAYS` days up to `as_of`, or None. `reference` selects the days that count."""
    values = _build_values(cells, as_of, reference)
    places = np.arange(FEWEST_BEFORE, len(values.level) - FEWEST_AFTER + 1)
    if not places.size:
        return None
    evidence = _log_evidence(values, places)
    index, is_late = int(places[np.argmax(evidence)]), values.first[places] > day_number(as_of) - DAYS
    if values.first[index] <= day_number(as_of) - DAYS:
        return None
    total = float(np.logaddexp.reduce(evidence[is_late]))
    likely_places = places[_likeliest_places(evidence)]
    change = _change(values, index, (likely_places.min(), likely_places.max()), total)
    return change if total >= math.log(SUSPECTED) and max(change.ratio, 1 / change.ratio) >= SMALLEST_RATIO else None


def _likeliest_places(evidence: Floats) -> Ints:
    """Return the places that make up 95 % of the evidence, the likeliest first."""
    order = np.argsort(-evidence, kind="stable")
    cumulative = np.cumsum(np.exp(evidence[order] - np.logaddexp.reduce(evidence)))
    return order[: int(np.searchsorted(cumulative, _CONFIDENCE_LEVEL)) + 1]


def _change(values: _Values, index: int, likely: tuple[int, int], total: float) -> SpreadChange:
    before, after = (math.exp(_mean_level(values, part) / 2) for part in (slice(index), slice(index, None)))
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


def _build_values(cells: Cells, as_of: date, reference: Reference) -> _Values:
    """Return the values of the days that count, each over as many consecutive days as it needs."""
    days = cells.days
    starts = np.flatnonzero(np.diff(days, prepend=-1))
    if not starts.size:
        return _Values(*[np.zeros(0)] * 6)
    day, today = days[starts], day_number(as_of)
    is_used = (day > today - HISTORY_DAYS) & (day <= today) & reference.mask(day)
    rows = np.add.reduceat(rows_of(cells), starts, axis=1)[:, is_used]
    units, scores, weight, total, squares, mixed, totals = rows
    mean = total / weight
    around = np.maximum(0.0, totals - 2 * mean * mixed + mean * mean * squares)
    begins, ends = _group_days(units - 1, Off.of(rows, _usual_value(cells, total.sum() / weight.sum())))
    if not ends.size:
        return _Values(*[np.zeros(0)] * 6)
    rows_used = np.stack((units, units - 1, around, squares, scores, weight))[:, : ends[-1] + 1]
    units, freedom, around, squares, scores, weight = np.add.reduceat(rows_used, begins, axis=1)
    variance = around / squares * units / freedom
    # The log of an estimated variance with k degrees of freedom is too low by about 1/k + 1/(3 k^2).
    level = np.log(np.maximum(variance, SMALLEST_VARIANCE)) + 1 / freedom + 1 / (3 * freedom**2)
    numbers = day[is_used].astype(np.float64)
    return _Values(numbers[begins], numbers[ends], freedom, units, level, squares * scores / weight**2)


def _usual_value(cells: Cells, mean: float) -> float:
    """Return the score that most sessions have, if there is one: then it is an end of the range."""
    low, high = float(cells.low.min()), float(cells.high.max())
    return high if 2 * mean > low + high else low


def _group_days(freedom: Floats, off: Off) -> tuple[Ints, Ints]:
    """Return the first and the last day of each group of consecutive days that is large enough."""
    ends = []
    freedom_so_far = total = squared = 0.0
    for index, (day_freedom, day_total, day_squared) in enumerate(
        zip(freedom.tolist(), off.total.tolist(), off.squared.tolist(), strict=True)
    ):
        freedom_so_far += day_freedom
        total += day_total
        squared += day_squared
        if freedom_so_far >= FREEDOM and total**2 >= FEWEST_OFF * squared > 0:
            ends.append(index)
            freedom_so_far = total = squared = 0.0
    places = np.array(ends, dtype=np.int64)
    return np.append(0, places + 1)[: len(ends)], places


def _log_evidence(values: _Values, places: Ints) -> Floats:
    """Return the log Bayes factors of a change before each place: the smaller of those for sessions and for single scores."""
    compared = [
        _level_differences(values.freedom, level, places) for level in (values.level, values.level + np.log(values.length))
    ]
    agree = compared[0][0] * compared[1][0] > 0
    freedom = (places - 1).astype(np.float64)
    evidence = [
        log_bayes_factor(
            np.where(agree, distance**2 / variance, 0.0), freedom, [(size * size / variance, share) for size, share in _SIZES]
        )
        for distance, variance in compared
    ]
    return np.minimum(*evidence)


def _level_differences(freedom: Floats, level: Floats, places: Ints) -> tuple[Floats, Floats]:
    """Return the mean level from each place on less the mean level before it, and the variance of this difference."""
    is_before = np.arange(len(level)) < places[:, None]
    count = places[:, None].astype(np.float64)
    weights = np.where(is_before, freedom, 0.0)
    centre = (weights * level).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
    squares = np.where(is_before, (level - centre) ** 2, 0.0) * count / (count - 1)
    session_noise = np.maximum(2.0, (squares * freedom).sum(1, keepdims=True) / count)
    precision = 1 / np.maximum(session_noise / freedom, squares.sum(1, keepdims=True) / count)
    sides = [np.where(side, precision, 0.0) for side in (is_before, ~is_before)]
    before, after = ((side * level).sum(1) / side.sum(1) for side in sides)
    return after - before, sum(1 / side.sum(1) for side in sides)


def _mean_level(values: _Values, part: slice) -> float:
    return float(np.average(values.level[part], weights=values.freedom[part]))
