"""Change of spread: do the sessions of a day vary more, or less, than before, independently of their mean.

Consecutive days are pooled until they hold enough sessions to estimate a variance; the log of that variance is one value. The variance of
these values before the change is estimated twice, as sampling noise only and as day-to-day variation only; the larger is used.

The mean of a session with five scores varies less than a single score, by a factor between 1 (its scores are equal) and 5 (they are
independent). The sums do not contain that factor. So evidence is computed for the variance of a session's mean and for that of a single
score, and the smaller one counts: sessions that only get longer or shorter are not a change of spread. The evidence for a change on one of
the last days is the Bayes factor of Student's t (Gönen, Johnson, Lu and Westfall 2005), summed over the days as in
`audit.drift.change_detector`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from audit.drift.change_detector import CONFIRMED, SUSPECTED
from audit.drift.change_evidence import MIN_VARIANCE, log_bayes_factor
from audit.drift.consecutive_days import Direction, Severity
from audit.drift.series import NO_DECISION, Cells, DeviantUnits, Floats, Ints, Reference, date_of, day_number, rows_of
from schemas.lazy_numpy import np

DAYS = 28
"""UTC days in which a change of spread may begin, the day of the check included; an older one has become normal."""
HISTORY_DAYS = 118
"""UTC days that are used: at least 90 before any change."""
MIN_FREEDOM = 7
"""Minimum degrees of freedom of a value, such as eight sessions on one day, or three on each of four days."""
MIN_DEVIANT_SESSIONS = 4.0
"""Minimum number of sessions of a value that are off the usual score: without them, the days do not show how far such sessions deviate."""
MIN_VALUES_BEFORE = 10
"""Minimum number of values before a change."""
MIN_VALUES_AFTER = 2
"""Minimum number of values after a change: one odd day is not a change."""
MIN_RATIO = 1.25
"""Minimum ratio of the larger spread to the smaller one that is reported."""
CRITICAL_RATIO = 3.0
"""Ratio of the spread after to the spread before from which on a change is critical."""
_CONFIDENCE_LEVEL = 0.95
_CHANGE_SIZES = ((math.log(1.5) * 2, 0.5), (math.log(3) * 2, 0.5))
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
    """The last day that shows the change."""
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

    first_day: Floats
    """Days since 1970."""
    last_day: Floats
    freedom: Floats
    units: Floats
    level: Floats
    """Log variance of a session's mean, corrected for the bias of few sessions."""
    length: Floats
    """Number of independent scores whose mean would vary like a session's."""

    @classmethod
    def empty(cls) -> _Values:
        """Return no values."""
        return cls(*[np.zeros(0)] * 6)


def find_spread(cells: Cells, as_of: date, *, reference: Reference = NO_DECISION) -> SpreadChange | None:
    """Return the change of spread within the last `DAYS` days up to `as_of`, or None. `reference` selects the days that count."""
    values = _build_values(cells, as_of, reference)
    candidates = np.arange(MIN_VALUES_BEFORE, len(values.level) - MIN_VALUES_AFTER + 1)
    if not candidates.size:
        return None
    evidence = _log_evidence(values, candidates)
    first = int(candidates[np.argmax(evidence)])
    oldest_day = day_number(as_of) - DAYS + 1
    if values.first_day[first] < oldest_day:
        return None
    total = float(np.logaddexp.reduce(evidence[values.first_day[candidates] >= oldest_day]))
    if total < math.log(SUSPECTED):
        return None
    likely = candidates[_select_likely(evidence)]
    change = _describe_change(values, first, (likely.min(), likely.max()), total)
    return change if max(change.ratio, 1 / change.ratio) >= MIN_RATIO else None


def _select_likely(evidence: Floats) -> Ints:
    """Return the indices of the candidates that hold 95 % of the evidence, the most probable first."""
    order = np.argsort(-evidence, kind="stable")
    cumulative = np.cumsum(np.exp(evidence[order] - np.logaddexp.reduce(evidence)))
    return order[: int(np.searchsorted(cumulative, _CONFIDENCE_LEVEL)) + 1]


def _describe_change(values: _Values, first: int, likely: tuple[int, int], total: float) -> SpreadChange:
    """Describe the change that begins with the value `first`; `likely` is the interval of that value, ends included."""
    before = _mean_spread(values, slice(first))
    after = _mean_spread(values, slice(first, None))
    return SpreadChange(
        direction="up" if after > before else "down",
        severity="critical" if after >= CRITICAL_RATIO * before else "warning",
        first_day=date_of(values.first_day[first]),
        earliest_day=date_of(values.first_day[likely[0]]),
        latest_day=date_of(values.last_day[likely[1]]),
        until=date_of(values.last_day[-1]),
        before=before,
        after=after,
        sessions_before=round(float(values.units[:first].sum())),
        sessions_after=round(float(values.units[first:].sum())),
        start=date_of(values.first_day[0]),
        log_evidence=total,
        is_confirmed=total >= math.log(CONFIRMED),
    )


def _mean_spread(values: _Values, part: slice) -> float:
    """Return the standard deviation of a session's mean over some values."""
    return math.exp(float(np.average(values.level[part], weights=values.freedom[part])) / 2)


def _build_values(cells: Cells, as_of: date, reference: Reference) -> _Values:
    """Return the values of the days that count, each over as many consecutive days as it needs."""
    days = cells.days
    starts = np.flatnonzero(np.diff(days, prepend=-1))
    if not starts.size:
        return _Values.empty()
    today = day_number(as_of)
    numbers = days[starts]
    is_used = (numbers > today - HISTORY_DAYS) & (numbers <= today) & reference.mask(numbers)
    rows = np.add.reduceat(rows_of(cells), starts, axis=1)[:, is_used]
    units, scores, weight, total, squares, mixed, totals = rows
    mean = total / weight
    centred_squares = np.maximum(0.0, totals - 2 * mean * mixed + mean * mean * squares)
    usual = _usual_score(cells, total.sum() / weight.sum())
    firsts, lasts = _group_days(units - 1, DeviantUnits.from_sums(rows, usual))
    if not lasts.size:
        return _Values.empty()
    by_day = np.stack((units, units - 1, centred_squares, squares, scores, weight))[:, : lasts[-1] + 1]
    units, freedom, centred_squares, squares, scores, weight = np.add.reduceat(by_day, firsts, axis=1)
    variance = centred_squares / squares * units / freedom
    # The log of an estimated variance with k degrees of freedom is too low by about 1/k + 1/(3 k^2).
    level = np.log(np.maximum(variance, MIN_VARIANCE)) + 1 / freedom + 1 / (3 * freedom**2)
    used_days = numbers[is_used].astype(np.float64)
    return _Values(used_days[firsts], used_days[lasts], freedom, units, level, squares * scores / weight**2)


def _usual_score(cells: Cells, mean: float) -> float:
    """Return the end of the range that is nearer to the mean: if most sessions have the same score, it is this one."""
    low = float(cells.low.min())
    high = float(cells.high.max())
    return high if 2 * mean > low + high else low


def _group_days(freedom: Floats, deviant: DeviantUnits) -> tuple[Ints, Ints]:
    """Return the first and the last day of each group of consecutive days that is large enough."""
    lasts = []
    group_freedom = 0.0
    total = 0.0
    squared = 0.0
    days = zip(freedom.tolist(), deviant.total.tolist(), deviant.squared.tolist(), strict=True)
    for index, (day_freedom, day_total, day_squared) in enumerate(days):
        group_freedom += day_freedom
        total += day_total
        squared += day_squared
        if group_freedom >= MIN_FREEDOM and total**2 >= MIN_DEVIANT_SESSIONS * squared > 0:
            lasts.append(index)
            group_freedom = 0.0
            total = 0.0
            squared = 0.0
    last_days = np.array(lasts, dtype=np.int64)
    first_days = np.append(0, last_days + 1)[: len(lasts)]
    return first_days, last_days


def _log_evidence(values: _Values, candidates: Ints) -> Floats:
    """Return the log Bayes factor of a change at each candidate value: the smaller of those for sessions and for single scores."""
    session_change, session_variance = _compare_levels(values.freedom, values.level, candidates)
    score_change, score_variance = _compare_levels(values.freedom, values.level + np.log(values.length), candidates)
    is_same_direction = session_change * score_change > 0
    freedom = (candidates - 1).astype(np.float64)

    def evidence(change: Floats, variance: Floats) -> Floats:
        squared = np.where(is_same_direction, change**2 / variance, 0.0)
        sizes = [(deviation * deviation / variance, weight) for deviation, weight in _CHANGE_SIZES]
        return log_bayes_factor(squared, freedom, sizes)

    return np.minimum(evidence(session_change, session_variance), evidence(score_change, score_variance))


def _compare_levels(freedom: Floats, level: Floats, candidates: Ints) -> tuple[Floats, Floats]:
    """Return the mean level from each candidate on less the mean level before it, and the variance of this difference."""
    is_before = np.arange(len(level)) < candidates[:, None]
    count = candidates[:, None].astype(np.float64)
    weights = np.where(is_before, freedom, 0.0)
    centre = (weights * level).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
    squares = np.where(is_before, (level - centre) ** 2, 0.0) * count / (count - 1)
    sampling_noise = np.maximum(2.0, (squares * freedom).sum(1, keepdims=True) / count)
    precision = 1 / np.maximum(sampling_noise / freedom, squares.sum(1, keepdims=True) / count)
    before = np.where(is_before, precision, 0.0)
    after = np.where(is_before, 0.0, precision)
    change = (after * level).sum(1) / after.sum(1) - (before * level).sum(1) / before.sum(1)
    return change, 1 / before.sum(1) + 1 / after.sum(1)
