"""Change of spread: the sessions of a day vary more or less than before, whether or not their mean changes.

Consecutive days are pooled until they hold enough sessions to estimate a variance. The log of that variance is one value. The variance of
the values before the change is estimated twice, as sampling noise only and as day-to-day variation only; the larger is used.

The mean of a session with five scores varies less than a single score, by a factor between 1 (its scores are equal) and 5 (they are
independent). The sums do not contain that factor. So the evidence is computed twice, for the variance of a session's mean and for that of
a single score, and the smaller evidence counts. Sessions that only get longer or shorter are therefore not a change of spread.

The evidence for a change on one of the last days is the Bayes factor of Student's t (Gönen, Johnson, Lu and Westfall 2005), summed over
the days as in `audit.drift.change_detector`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from audit.drift.change_detector import CONFIRMED, SUSPECTED
from audit.drift.change_evidence import MIN_VARIANCE, log_bayes_factor
from audit.drift.consecutive_days import Direction, Severity
from audit.drift.series import (
    NO_DECISION,
    Cells,
    DeviantUnits,
    Flags,
    Floats,
    Ints,
    Reference,
    UnitSums,
    date_of,
    day_number,
    rows_of,
)
from schemas.lazy_numpy import np

DAYS = 28
"""Number of UTC days, up to the day of the check, in which a change of spread may begin. An older change has become normal."""
HISTORY_DAYS = 118
"""Number of UTC days that are read, so that at least 90 days precede any change."""
MIN_FREEDOM = 7
"""Minimum degrees of freedom of a value: for example eight sessions on one day, or three on each of four days."""
MIN_DEVIANT_SESSIONS = 4.0
"""Minimum number of sessions of a value that differ from the usual score. Fewer sessions do not show how far they deviate."""
MIN_VALUES_BEFORE = 10
"""Minimum number of values before a change."""
MIN_VALUES_AFTER = 2
"""Minimum number of values after a change: one odd day is not a change."""
MIN_RATIO = 1.25
"""Minimum ratio of the larger spread to the smaller one. A smaller change is not reported."""
CRITICAL_RATIO = 3.0
"""Minimum ratio of the spread after a change to the spread before it for a critical change."""
_CONFIDENCE_LEVEL = 0.95
_CHANGE_SIZES = ((math.log(1.5) * 2, 0.5), (math.log(3) * 2, 0.5))
"""Prior of the change of the log variance: pairs of a standard deviation and its weight."""


@dataclass(frozen=True, slots=True)
class SpreadChange:
    """A significant change of spread."""

    direction: Direction
    severity: Severity
    first_day: date
    """The most probable first day."""
    earliest_day: date
    latest_day: date
    """The 95% interval of the first day is `earliest_day` to `latest_day`, both included."""
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


def find_spread(cells: Cells, as_of: date, *, reference: Reference = NO_DECISION) -> SpreadChange | None:
    """Return the change of spread that began within the `DAYS` days up to `as_of`; None without one. Only days of `reference` count."""
    values = _build_values(cells, as_of, reference)
    candidates = np.arange(MIN_VALUES_BEFORE, len(values.level) - MIN_VALUES_AFTER + 1)
    if not candidates.size:
        return None
    evidence = _log_evidence(values, candidates)
    first = int(candidates[np.argmax(evidence)])
    oldest_day = day_number(as_of) - DAYS + 1
    if values.first_day[first] < oldest_day:
        return None
    log_evidence = float(np.logaddexp.reduce(evidence[values.first_day[candidates] >= oldest_day]))
    if log_evidence < math.log(SUSPECTED):
        return None
    likely = candidates[_select_likely(evidence)]
    change = _describe_change(values, first, (likely.min(), likely.max()), log_evidence)
    return change if max(change.ratio, 1 / change.ratio) >= MIN_RATIO else None


def _select_likely(evidence: Floats) -> Ints:
    """Return the indices of the candidates that hold 95% of the evidence, the most probable first."""
    order = np.argsort(-evidence, kind="stable")
    cumulative = np.cumsum(np.exp(evidence[order] - np.logaddexp.reduce(evidence)))
    return order[: int(np.searchsorted(cumulative, _CONFIDENCE_LEVEL)) + 1]


def _describe_change(values: _Values, first: int, likely: tuple[int, int], log_evidence: float) -> SpreadChange:
    """Describe the change that begins with the value `first`. `likely` are the first and the last value with which it may begin."""
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
        log_evidence=log_evidence,
        is_confirmed=log_evidence >= math.log(CONFIRMED),
    )


def _mean_spread(values: _Values, part: slice) -> float:
    """Return the standard deviation of a session's mean over some values."""
    return math.exp(float(np.average(values.level[part], weights=values.freedom[part])) / 2)


class _Values(NamedTuple):
    """The variation of sessions in groups of consecutive days, one element per group, oldest first."""

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


class _GroupSums(NamedTuple):
    """The sums over the days of each group."""

    units: Floats
    freedom: Floats
    """Degrees of freedom: a day with n sessions has n - 1."""
    centred_squares: Floats
    squares: Floats
    scores: Floats
    weight: Floats


def _build_values(cells: Cells, as_of: date, reference: Reference) -> _Values:
    """Return the values of the days that count, each over as many consecutive days as it needs."""
    days, rows = _sum_days(cells, as_of, reference)
    if not days.size:
        return _Values.empty()
    sums = UnitSums(*rows)
    mean = float(sums.total.sum() / sums.weight.sum())
    deviant = DeviantUnits.from_sums(rows, _usual_score(cells, mean))
    firsts, lasts = _group_days(sums.units - 1, deviant)
    if not lasts.size:
        return _Values.empty()
    groups = _sum_groups(sums, firsts, lasts[-1] + 1)
    variance = groups.centred_squares / groups.squares * groups.units / groups.freedom
    return _Values(
        first_day=days[firsts],
        last_day=days[lasts],
        freedom=groups.freedom,
        units=groups.units,
        level=_log_variance(variance, groups.freedom),
        length=groups.squares * groups.scores / groups.weight**2,
    )


def _sum_days(cells: Cells, as_of: date, reference: Reference) -> tuple[Floats, Floats]:
    """Return the days that count, as days since 1970, and the rows of their sums as in `rows_of`."""
    starts = np.flatnonzero(np.diff(cells.days, prepend=-1))
    days = cells.days[starts]
    today = day_number(as_of)
    is_used = (days > today - HISTORY_DAYS) & (days <= today) & reference.mask(days)
    rows = np.add.reduceat(rows_of(cells), starts, axis=1)
    return days[is_used].astype(np.float64), rows[:, is_used]


def _sum_groups(sums: UnitSums, firsts: Ints, end: int) -> _GroupSums:
    """Sum the days of each group. `firsts` are the first days of the groups; the last group ends before `end`."""
    by_day = np.stack((sums.units, sums.units - 1, sums.centred_squares, sums.squares, sums.scores, sums.weight))
    return _GroupSums(*np.add.reduceat(by_day[:, :end], firsts, axis=1))


def _log_variance(variance: Floats, freedom: Floats) -> Floats:
    """Return the log of estimated variances, without its bias: with k degrees of freedom it is too low by about 1/k + 1/(3 k^2)."""
    return np.log(np.maximum(variance, MIN_VARIANCE)) + 1 / freedom + 1 / (3 * freedom**2)


def _usual_score(cells: Cells, mean: float) -> float:
    """Return the end of the range that is nearer to the mean: if most sessions have the same score, it is this one."""
    low = float(cells.low.min())
    high = float(cells.high.max())
    return high if 2 * mean > low + high else low


def _group_days(freedom: Floats, deviant: DeviantUnits) -> tuple[Ints, Ints]:
    """Return the first and the last day of each group of consecutive days that is large enough."""
    lasts = []
    group_freedom = 0.0
    group_deviation = 0.0
    group_squares = 0.0
    days = zip(freedom.tolist(), deviant.total.tolist(), deviant.squared.tolist(), strict=True)
    for index, (day_freedom, day_deviation, day_squares) in enumerate(days):
        group_freedom += day_freedom
        group_deviation += day_deviation
        group_squares += day_squares
        # The number of deviant sessions is at least deviation^2 / squares, see `DeviantUnits.min_count`.
        has_deviant_sessions = group_deviation**2 >= MIN_DEVIANT_SESSIONS * group_squares > 0
        if group_freedom >= MIN_FREEDOM and has_deviant_sessions:
            lasts.append(index)
            group_freedom = 0.0
            group_deviation = 0.0
            group_squares = 0.0
    last_days = np.array(lasts, dtype=np.int64)
    first_days = np.append(0, last_days + 1)[: len(lasts)]
    return first_days, last_days


class _LevelChange(NamedTuple):
    """The change of the mean level at each candidate, and the variance of that change."""

    change: Floats
    variance: Floats


def _log_evidence(values: _Values, candidates: Ints) -> Floats:
    """Return the log Bayes factor of a change at each candidate value: the smaller of those for sessions and for single scores."""
    sessions = _compare_levels(values.freedom, values.level, candidates)
    scores = _compare_levels(values.freedom, values.level + np.log(values.length), candidates)
    is_same_direction = sessions.change * scores.change > 0
    freedom = (candidates - 1).astype(np.float64)

    def evidence(level: _LevelChange) -> Floats:
        squared_t = np.where(is_same_direction, level.change**2 / level.variance, 0.0)
        sizes = [(deviation * deviation / level.variance, weight) for deviation, weight in _CHANGE_SIZES]
        return log_bayes_factor(squared_t, freedom, sizes)

    return np.minimum(evidence(sessions), evidence(scores))


def _compare_levels(freedom: Floats, level: Floats, candidates: Ints) -> _LevelChange:
    """Compare the mean level from each candidate on with the mean level before it. Values count by their precision."""
    # One row per candidate, one column per value.
    is_before = np.arange(len(level)) < candidates[:, None]
    precision = _estimate_precision(freedom, level, is_before)
    precision_before = np.where(is_before, precision, 0.0)
    precision_after = np.where(is_before, 0.0, precision)
    sum_before = precision_before.sum(1)
    sum_after = precision_after.sum(1)
    mean_before = (precision_before * level).sum(1) / sum_before
    mean_after = (precision_after * level).sum(1) / sum_after
    return _LevelChange(mean_after - mean_before, 1 / sum_before + 1 / sum_after)


def _estimate_precision(freedom: Floats, level: Floats, is_before: Flags) -> Floats:
    """Return the inverse variance of each value, in one row per candidate, estimated from the values before the candidate.

    Sampling noise falls with the degrees of freedom of a value, and day-to-day variation does not. The larger of both estimates counts.
    """
    count: Floats = is_before.sum(1, keepdims=True).astype(np.float64)
    weights = np.where(is_before, freedom, 0.0)
    mean = (weights * level).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
    squares = np.where(is_before, (level - mean) ** 2, 0.0) * count / (count - 1)
    # The log of a variance that is estimated with k degrees of freedom has itself a variance of about 2 / k.
    sampling_noise = np.maximum(2.0, (squares * freedom).sum(1, keepdims=True) / count) / freedom
    daily_variation = squares.sum(1, keepdims=True) / count
    precision: Floats = 1 / np.maximum(sampling_noise, daily_variation)
    return precision
