"""Upper bounds of the evidence of many series at once, so that only few series are examined by the change detector.

Nearly all series of a large project are quiet. `bound_log_evidence` computes the bound of `audit.drift.change_evidence.bound_log_evidence` for every
look of the last week and every candidate day, with a variance that is at most that of the detector:

- Only units vary. Blocks, days and their correlation add to the variance in the detector.
- The variance of a unit is measured before the candidate alone, and is the same after it.

For a share, the bound is also at most the largest likelihood ratio of the counts before and after the candidate, which is never below the Bayes
factor of the detector: that averages over all shares after a change.

So a series whose bound is below a threshold has no change at that threshold. Because more evidence never names less (`audit.drift.discoveries`), a
whole family is decided with the bounds first.

Rows before the last week may be sums of a whole day. Arrays are days x series, because one array operation costs more than the numbers of one series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from audit.drift.change_detector import (
    CANDIDATE_AGES,
    CHECKED_DAYS,
    HISTORY_DAYS,
    MIN_DAYS_BEFORE,
    SUSPECTED,
    WINDOW_DAYS,
    Change,
)
from audit.drift.change_evidence import MIN_FREEDOM, MIN_UNITS_AFTER, MIN_UNITS_BEFORE, MIN_VARIANCE, TINY, ratio
from audit.drift.discoveries import believe_changes, mask_candidates
from audit.drift.series import NO_DECISION, Cells, Flags, Floats, Ints, Reference, day_number
from schemas.lazy_numpy import np

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

SUMS = ("units", "weight", "total", "squares", "mixed", "totals")
"""The sums of a row, as in `audit.drift.series.Cells`."""
CHUNK = 120
"""Number of series that are computed at once: their arrays fit into the processor's cache."""
_UNITS, _WEIGHT, _TOTAL, _SQUARES, _MIXED, _TOTALS, _DAYS = range(7)
_COUNTS = slice(_WEIGHT, _TOTAL + 1)
_ROUNDING = 0.01
"""Arrays of looks are in single precision, which costs less than this."""
_MAX_TERM = 80.0
"""Terms with a larger logarithm count as infinite."""
Singles: TypeAlias = "NDArray[np.float32]"
Name = TypeVar("Name")


class FamilySums(NamedTuple):
    """The sums of many series in rows, in any order."""

    series: Ints
    """The number of each row's series."""
    hour: Ints
    """The hour of each row in UTC, since 1970. Before the last week it may be any hour of its day."""
    rows: Floats
    """The SUMS of each row: (6, rows)."""
    references: Sequence[Reference]
    """The days of each series that count."""
    is_share: Sequence[bool]
    """Whether each series is a share, as for `audit.drift.change_detector.check_series`."""

    @classmethod
    def of_cells(cls, many: Sequence[Cells], references: Sequence[Reference] | None = None) -> FamilySums:
        """Return the sums of the cells of means. Without `references` all days count."""
        sizes = [cells.last.size for cells in many]
        rows = np.zeros((len(SUMS), sum(sizes)))
        hours = np.zeros(sum(sizes), "datetime64[h]")
        for cells, size, end in zip(many, sizes, np.cumsum(sizes), strict=True):
            own = slice(end - size, end)
            hours[own] = cells.last
            for row, name in zip(rows, SUMS, strict=True):
                row[own] = getattr(cells, name)
        series = np.repeat(np.arange(len(many)), sizes)
        return cls(series, hours.astype(np.int64), rows, references or [NO_DECISION] * len(many), [False] * len(many))


def find_family_changes(
    family: Sequence[Name], sums: FamilySums, as_of: date, find: Callable[[Name, float], Change | None]
) -> tuple[dict[Name, Change], float]:
    """Return the changes of many series that are believed together, by name, and the penalty for each; see `believe_changes`.

    `sums` are those of the series in the order of their names in `family`. `find` is called only for those that can be named by their bounds.
    """
    mask = mask_candidates(bound_log_evidence(sums, as_of))
    return believe_changes(find, [name for name, is_candidate in zip(family, mask, strict=True) if is_candidate], len(family))


def bound_log_evidence(sums: FamilySums, as_of: date) -> Floats:
    """Return an upper bound of the log evidence of each series in the looks of the last week up to the end of the day `as_of`.

    It is minus infinity for a series without looks.
    """
    bounds = np.full(len(sums.references), -math.inf)
    last_day = day_number(as_of)
    series, hour, rows = sums.series, sums.hour, sums.rows
    is_used = (hour // 24 > last_day - WINDOW_DAYS) & (hour // 24 <= last_day)
    if not is_used.any():
        return bounds
    if not is_used.all():
        series, hour, rows = series[is_used], hour[is_used], rows[:, is_used]
    if (np.diff(series) < 0).any():
        order = np.argsort(series, kind="stable")
        series, hour, rows = series[order], hour[order], rows[:, order]
    first_day = min(int(hour.min()) // 24, last_day - CHECKED_DAYS)
    for start in range(0, len(bounds), CHUNK):
        own = slice(*np.searchsorted(series, (start, start + CHUNK)))
        chosen = slice(start, start + CHUNK)
        chunk = FamilySums(
            series[own] - start, hour[own] - 24 * first_day, rows[:, own], sums.references[chosen], sums.is_share[chosen]
        )
        bounds[chosen] = _Chunk(chunk, range(first_day, last_day + 1)).bound_looks()
    return bounds


class _NormalState(NamedTuple):
    """The normal state before each candidate of each series: (candidates, series)."""

    counts: Floats
    """The sums of the weight and of the total of all days."""
    is_pooled: Flags
    """True if weekdays and weekends are compared together, because either has few units; both strata then have the same state."""
    mean: Singles
    """By stratum."""
    variance: Singles
    """A lower bound of the variance of the mean, by stratum."""
    unit: Singles
    """A lower bound of the variance of a unit."""
    factor: Singles
    """The factor of a squared distance in the bound."""
    constant: Singles
    """The constant of the term of each candidate: 0, or minus infinity without enough data before it."""


class _Chunk:
    """The sums of several series by day and, in the last week, by hour; days and hours are numbered from the first day."""

    def __init__(self, sums: FamilySums, days: range) -> None:
        self._length = len(days)
        self._is_share = np.array(sums.is_share, dtype=bool)
        self._is_weekend = (np.array(days) + 3) % 7 >= 5  # 1970 began on a Thursday; Monday is 0
        # A day of the last week has 24 lines, an earlier one has one.
        early = self._length - CHECKED_DAYS
        day = sums.hour // 24
        line = np.where(day < early, day, sums.hour - 23 * early)
        count, lines = len(sums.references), early + 24 * CHECKED_DAYS
        key = sums.series * lines + line
        by_series = np.stack([np.bincount(key, row, lines * count).reshape(count, lines) for row in sums.rows])
        grid = np.ascontiguousarray(by_series.transpose(0, 2, 1))
        line_days = np.concatenate((np.array(days[:early], dtype=np.int64), np.repeat(days[early:], 24)))
        for number, reference in enumerate(sums.references):
            if reference.since is not None or reference.cut:
                grid[..., number] *= reference.mask(line_days)
        self._origin = ratio(grid[_TOTAL].sum(axis=0), grid[_WEIGHT].sum(axis=0))
        grid[_TOTALS] += self._origin * (self._origin * grid[_SQUARES] - 2 * grid[_MIXED])
        grid[_MIXED] -= self._origin * grid[_SQUARES]
        grid[_TOTAL] -= self._origin * grid[_WEIGHT]
        hours = grid[:, early:].reshape(len(SUMS), CHECKED_DAYS, 24, count)
        self._hours = hours[: _SQUARES + 1]
        daily = np.concatenate((grid[:, :early], hours.sum(axis=2)), axis=1)
        has_units = daily[_UNITS] > 0
        daily = np.concatenate((daily, has_units[None]))
        self._running = np.zeros((len(daily), 2, self._length + 1, count))
        """Sums of the days before each day, of weekdays and of weekends."""
        for stratum, is_own in enumerate((~self._is_weekend, self._is_weekend)):
            np.cumsum(daily * is_own[:, None], axis=1, out=self._running[:, stratum, 1:])
        self._first_day = np.where(has_units.any(axis=0), has_units.argmax(axis=0), self._length)
        self._reference_days = np.array([reference.days for reference in sums.references])

    def bound_looks(self) -> Floats:
        """Return the highest bound of the looks of the last week, by series."""
        ages, represented_days = np.array(CANDIDATE_AGES).T
        bounds = np.full(len(self._first_day), -math.inf)
        looks = [(max(0, day - HISTORY_DAYS + 1), day) for day in range(self._length - CHECKED_DAYS, self._length)]
        for start, group in groupby(looks, lambda look: look[0]):
            days = [day for _, day in group]
            candidates = np.unique(np.subtract.outer(days, ages).clip(0))
            normal = self._measure_normal(candidates, start)
            for day in days:
                is_used = ages <= day
                columns = np.searchsorted(candidates, day - ages[is_used])
                state = _NormalState(*(column[..., columns, :] for column in normal))  # type: ignore[arg-type]
                log_represented = np.log(represented_days[is_used]).astype(np.float32)[:, None]
                bounds = np.maximum(bounds, self._bound_day(day, day - ages[is_used], state, log_represented))
        return bounds

    def _measure_normal(self, candidates: Ints, start: int) -> _NormalState:
        before = self._running[:, :, candidates] - self._running[:, :, start : start + 1]
        together = before.sum(axis=1)
        units, squares, days = together[_UNITS], together[_SQUARES], together[_DAYS]
        is_pooled = (before[_UNITS] < MIN_UNITS_BEFORE).any(axis=0)
        before = np.where(is_pooled, together[:, None], before)
        strata = np.where(is_pooled, 1.0, 2.0)
        mean = ratio(before[_TOTAL], before[_WEIGHT])
        centred = np.maximum(0.0, before[_TOTALS] - 2 * mean * before[_MIXED] + mean * mean * before[_SQUARES])
        centred = np.where(is_pooled, centred[0], centred.sum(axis=0)) * units
        unit = np.maximum(MIN_VARIANCE, ratio(centred, squares * np.maximum(1.0, units - strata)))
        has_reference = candidates[:, None] >= np.maximum(self._first_day, start) + self._reference_days
        is_usable = has_reference & (days >= MIN_DAYS_BEFORE) & (units >= MIN_UNITS_BEFORE)
        columns: tuple[Floats, ...] = (
            mean,
            unit * ratio(before[_SQUARES], before[_WEIGHT] ** 2),
            unit,
            (1 + 1 / np.maximum(MIN_FREEDOM, days - strata)) / 2,
            np.where(is_usable, 0.0, -math.inf),
        )
        return _NormalState(together[_COUNTS], is_pooled, *(column.astype(np.float32) for column in columns))

    def _bound_day(self, day: int, candidates: Ints, normal: _NormalState, log_represented: Singles) -> Floats:
        """Return the highest bound of the looks of one day, by series."""
        hours = self._hours[:, day - self._length]
        has_units = hours[_UNITS].any(axis=1)
        if not has_units.any():
            return np.full(len(self._first_day), -math.inf)
        looks = np.cumsum(hours[:, has_units], axis=1)
        is_look = looks[_UNITS] > 0
        running = self._running[: _SQUARES + 1]
        later: Singles = (running[:, :, day : day + 1] - running[:, :, candidates]).astype(np.float32)
        # All looks of the day are of one stratum; the other one has the same distance in all of them.
        own = 1 if self._is_weekend[day] else 0
        pooled = later[:, 1 - own] * normal.is_pooled
        other_units, other_weight, other_total, other_squares = later[:, 1 - own] - pooled
        _, weight, total, squares = later[:, own] + pooled
        other_mean, other_variance = normal.mean[1 - own], normal.variance[1 - own]
        difference = np.where(other_units > 0, ratio(other_total, other_weight) - other_mean, 0.0)
        distance = ratio(difference**2, other_variance + normal.unit * ratio(other_squares, other_weight**2))
        deviation = total - normal.mean[own] * weight
        constant = normal.constant + log_represented + distance * normal.factor
        state = normal.mean[own], normal.variance[own], normal.unit, normal.factor, constant
        columns = _Columns(*(column[:, None] for column in (weight, deviation, squares, *state)))  # type: ignore[arg-type]
        terms = _bound_terms(looks.astype(np.float32), columns)
        units = later[_UNITS].sum(axis=0)
        few = np.flatnonzero((units < MIN_UNITS_AFTER).any(axis=1))
        terms[few] = np.where(units[few, None] + looks[_UNITS] < MIN_UNITS_AFTER - 0.5, -math.inf, terms[few])
        bounds = _add_candidates(terms, is_look)
        close = np.flatnonzero(self._is_share & (bounds >= math.log(SUSPECTED)))
        if close.size:
            after = later[_COUNTS].sum(axis=1)[:, :, None, close] + looks[_COUNTS, None][..., close]
            limits = _limit_by_counts(normal.counts[:, :, None, close], after, self._origin[close])
            limits += log_represented[:, None]
            bounds[close] = _add_candidates(np.minimum(terms[..., close], limits), is_look[:, close])
        return bounds


class _Columns(NamedTuple):
    """Columns of the candidates of each series, and the stratum of the looks' day: (candidates, 1, series)."""

    weight: Singles
    """The sums of the days from the candidate up to the day of the looks."""
    deviation: Singles
    squares: Singles
    mean: Singles
    variance: Singles
    unit: Singles
    factor: Singles
    constant: Singles


def _bound_terms(looks: Singles, columns: _Columns) -> Singles:
    """Return the logarithms of the terms of the evidence: (candidates, looks, series). This is most of the time, so it is in place."""
    # difference^2 / (variance + unit squares / weight^2), multiplied by weight^2
    divisor = columns.weight + looks[_WEIGHT]
    divisor *= divisor
    divisor *= columns.variance
    unit_squares = columns.squares + looks[_SQUARES]
    unit_squares *= columns.unit
    divisor += unit_squares
    terms: Singles = columns.mean * looks[_WEIGHT]
    np.subtract(looks[_TOTAL], terms, out=terms)
    terms += columns.deviation
    terms *= terms
    terms /= np.maximum(divisor, np.float32(1e-30), out=divisor)
    terms *= columns.factor
    terms += columns.constant
    return terms


def _add_candidates(terms: Floats | Singles, is_look: Flags) -> Floats:
    """Return the highest log evidence of the looks of each series."""
    evidence = (np.exp(np.minimum(terms, _MAX_TERM)).sum(axis=0) * is_look).max(axis=0).astype(np.float64)
    log_evidence = np.log(np.maximum(evidence, TINY)) + _ROUNDING
    return np.where(evidence > 0, np.where(log_evidence < _MAX_TERM, log_evidence, math.inf), -math.inf)


def _limit_by_counts(before: Floats, after: Floats, origin: Floats) -> Floats:
    """Return the largest log likelihood ratios of the counts of shares, from the weights and the totals relative to `origin`."""

    def log_likelihood(counts: Floats) -> Floats:
        share = np.clip(ratio(counts[1], counts[0]) + origin, 0.0, 1.0)
        logs = share * np.log(np.maximum(share, TINY)) + (1 - share) * np.log(np.maximum(1 - share, TINY))
        return counts[0] * logs  # type: ignore[no-any-return]

    return log_likelihood(before) + log_likelihood(after) - log_likelihood(before + after)
