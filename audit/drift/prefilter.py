"""Prefilter: which of many series may have changed? An upper bound of the evidence of the change detector, for thousands of series at once.

Nearly all series of a large project are quiet. `bound_evidence` computes, for every look of the last week and every candidate day, the upper
bound of `audit.drift.change_evidence.bound_log_evidence`, with a variance that is at most the one of the detector:

- The components of units, blocks and days are measured before the candidate alone, not from the last days or after it as well.
- Consecutive days are taken as independent, and the variance is not corrected for the estimated mean.

Both only add to the variance in the detector. So a series whose bound is below a threshold has no change at that threshold. Because more evidence
never names less (`audit.drift.discoveries`), a whole family may be decided with the bounds first, and only the series named by these need the detector.

Measured with `python -m benchmarks drift --prefilter` on two busy cores: 0.25 ms for a series of 90 days with 10 sessions a day, where the detector
takes 4 ms. Of quiet series 7 % may have changed by `SUSPECTED`, and none by 250 times that, which a family of 250 needs.

All arrays are days x series, because one array operation costs more than the numbers of one series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
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
from audit.drift.change_evidence import MIN_FREEDOM, MIN_UNITS_AFTER, MIN_UNITS_BEFORE, MIN_VARIANCE, ratio
from audit.drift.discoveries import believe_changes, family_penalty
from audit.drift.series import BLOCK_HOURS, NO_DECISION, Cells, Flags, Floats, Ints, Reference, day_number
from schemas.lazy_numpy import np

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

CHUNK = 60
"""Number of series that are computed at once: their arrays fit into the processor's cache."""
_ROUNDING = 0.01
_MAX_TERM = 80.0
"""Terms with a larger logarithm count as infinite."""
_UNITS, _WEIGHT, _TOTAL, _SQUARES, _MIXED, _TOTALS = range(6)
_BLOCKS, _BLOCK_SQUARES, _BLOCK_MIXED, _BLOCK_TOTALS, _DAYS, _DAY_SQUARES, _DAY_MIXED, _DAY_TOTALS = range(6, 14)
_DAY_BLOCKS = 24 // BLOCK_HOURS
Singles: TypeAlias = "NDArray[np.float32]"
Name = TypeVar("Name")


def bound_evidence(
    many: Sequence[Cells], as_of: date, references: Sequence[Reference] | None = None, *, days: int = CHECKED_DAYS
) -> Floats:
    """Return an upper bound of the log evidence of each series in the looks of the last `days` days up to `as_of`; minus infinity without looks.

    `references` select the days of each series that count; without them, all days do. `days` is at most `CHECKED_DAYS`, as in the detector; a check that
    follows another one may use fewer.
    """
    references = references or [NO_DECISION] * len(many)
    bounds = [
        _bound_chunk(many[start : start + CHUNK], as_of, references[start : start + CHUNK], days)
        for start in range(0, len(many), CHUNK)
    ]
    return np.concatenate([np.zeros(0), *bounds])


def may_have_changed(many: Sequence[Cells], as_of: date, references: Sequence[Reference] | None = None) -> Flags:
    """Return the mask of the series in which `find_change` may find a change; the others have none."""
    return bound_evidence(many, as_of, references) >= math.log(SUSPECTED)


def find_family_changes(
    family: Mapping[Name, Cells],
    as_of: date,
    find: Callable[[Name, float], Change | None],
    references: Sequence[Reference] | None = None,
) -> tuple[dict[Name, Change], float]:
    """Return the changes of many series that are believed together, by name, and the penalty for each; see `believe_changes`.

    `find` is called only for the series that can be named according to their upper bounds.
    """
    alarm = math.log(SUSPECTED)
    bounds = bound_evidence([*family.values()], as_of, references)
    least = alarm + family_penalty(bounds - alarm, len(family))
    possible = [name for name, bound in zip(family, bounds.tolist(), strict=True) if bound >= least]
    return believe_changes(find, possible, len(family))


class _Chunk(NamedTuple):
    """The sums of several series; days are numbered from the first day with a cell of any of them."""

    cells: Floats
    """The rows UNITS to SQUARES of the cells of the last days, relative to the origin of their series."""
    owner: Ints
    """The series of each of these cells."""
    day: Ints
    running: Floats
    """Sums of the days before each day: (14, strata, days + 1, series)."""
    first_day: Ints
    """The first day with a cell of each series."""
    reference_days: Ints
    weekend: Flags
    """Whether each day is one of a weekend."""


def _bound_chunk(many: Sequence[Cells], as_of: date, references: Sequence[Reference], days: int) -> Floats:
    chunk = _sum_chunk(many, as_of, references)
    if chunk is None:
        return np.full(len(many), -math.inf)
    end = len(chunk.weekend)
    look_days = range(max(0, end - days), end)
    ages, represented_days = np.array(CANDIDATE_AGES).T
    highest = np.full(len(many), -math.inf)
    for history_start, grouped_days in _group_look_days(look_days):
        candidates = np.unique(np.concatenate([day - ages for day in grouped_days]))
        candidates = candidates[candidates >= 0]
        normal = _measure_normal(chunk, candidates, history_start)
        for day in grouped_days:
            is_used = ages <= day
            columns = np.searchsorted(candidates, day - ages[is_used])
            state = normal.select(columns)
            highest = np.maximum(
                highest, _bound_looks(chunk, state, day, day - ages[is_used], np.log(represented_days[is_used]))
            )
    return highest


def _group_look_days(look_days: range) -> Iterator[tuple[int, list[int]]]:
    """Yield the first day of the history of looks, with the days of these looks."""
    starts = [max(0, day - HISTORY_DAYS + 1) for day in look_days]
    for start in sorted(set(starts)):
        yield start, [day for day, own_start in zip(look_days, starts, strict=True) if own_start == start]


def _sum_chunk(many: Sequence[Cells], as_of: date, references: Sequence[Reference]) -> _Chunk | None:
    owner = np.repeat(np.arange(len(many)), [cells.last.size for cells in many])
    if not owner.size:
        return None
    last = np.concatenate([cells.last for cells in many])
    rows = np.stack([
        np.concatenate([getattr(cells, name) for cells in many])
        for name in ("units", "weight", "total", "squares", "mixed", "totals")
    ])  # fmt: skip
    hours = last.astype("datetime64[h]").astype(np.int64)
    days = hours // 24
    is_used = (days > day_number(as_of) - WINDOW_DAYS) & (days <= day_number(as_of))
    for index, reference in enumerate(references):
        if reference.since is not None or reference.cut:
            own = owner == index
            is_used[own] &= reference.mask(days[own])
    if not is_used.any():
        return None
    if not is_used.all():
        owner, hours, days, rows = owner[is_used], hours[is_used], days[is_used], rows[:, is_used]
    is_first = np.diff(owner, prepend=-1) > 0
    origin = np.zeros(len(many))
    origin[owner[is_first]] = rows[_TOTAL, is_first] / rows[_WEIGHT, is_first]
    shift = origin[owner]
    rows[_TOTALS] += shift * (shift * rows[_SQUARES] - 2 * rows[_MIXED])
    rows[_MIXED] -= shift * rows[_SQUARES]
    rows[_TOTAL] -= shift * rows[_WEIGHT]

    first = int(days.min())
    day = days - first
    length = day_number(as_of) - first + 1
    shape = (length, len(many))
    key = day * len(many) + owner
    daily = np.empty((14, *shape))
    for index, row in enumerate(rows):
        daily[index] = np.bincount(key, row, length * len(many)).reshape(shape)
    block_key = key + hours % 24 // BLOCK_HOURS * (length * len(many))
    block_weight, block_total = (
        np.bincount(block_key, rows[row], _DAY_BLOCKS * length * len(many)).reshape(_DAY_BLOCKS, *shape)
        for row in (_WEIGHT, _TOTAL)
    )
    daily[_BLOCKS] = (block_weight > 0).sum(axis=0)
    daily[_BLOCK_SQUARES] = (block_weight**2).sum(axis=0)
    daily[_BLOCK_MIXED] = (block_weight * block_total).sum(axis=0)
    daily[_BLOCK_TOTALS] = (block_total**2).sum(axis=0)
    daily[_DAYS] = daily[_WEIGHT] > 0
    daily[_DAY_SQUARES] = daily[_WEIGHT] ** 2
    daily[_DAY_MIXED] = daily[_WEIGHT] * daily[_TOTAL]
    daily[_DAY_TOTALS] = daily[_TOTAL] ** 2
    weekend = (np.arange(first, first + length) + 3) % 7 >= 5
    running = np.zeros((14, 2, length + 1, len(many)))
    for stratum, is_own in enumerate((~weekend, weekend)):
        np.cumsum(daily * is_own[:, None], axis=1, out=running[:, stratum, 1:])
    first_day = np.full(len(many), length)
    first_day[owner[is_first]] = day[is_first]
    is_recent = day >= length - CHECKED_DAYS
    return _Chunk(
        cells=rows[: _SQUARES + 1, is_recent],
        owner=owner[is_recent],
        day=day[is_recent],
        running=running,
        first_day=first_day,
        reference_days=np.array([reference.days for reference in references]),
        weekend=weekend,
    )


class _NormalState(NamedTuple):
    """The normal state before each candidate of each series: (candidates, series)."""

    is_usable: Flags
    is_pooled: Flags
    mean: Floats
    """By stratum."""
    variance: Floats
    """A lower bound of the variance of the mean, by stratum."""
    unit: Floats
    """A lower bound of the variance of a unit."""
    factor: Floats
    """The factor of a squared distance in the bound."""

    def select(self, candidates: Ints) -> _NormalState:
        """Return the states before some of the candidates."""
        return _NormalState(
            self.is_usable[candidates],
            self.is_pooled[candidates],
            self.mean[:, candidates],
            self.variance[:, candidates],
            self.unit[candidates],
            self.factor[candidates],
        )


def _measure_normal(chunk: _Chunk, candidates: Ints, history_start: int) -> _NormalState:
    sums = chunk.running[:, :, candidates] - chunk.running[:, :, history_start : history_start + 1]
    is_pooled = np.any(sums[_UNITS] < MIN_UNITS_BEFORE, axis=0)
    sums[:, 0] += np.where(is_pooled, sums[:, 1], 0.0)
    sums[:, 1] *= ~is_pooled
    strata = np.maximum(1.0, (sums[_UNITS] > 0).sum(axis=0))
    mean = ratio(sums[_TOTAL], sums[_WEIGHT])
    squares = sums[_SQUARES].sum(axis=0)
    units = sums[_UNITS].sum(axis=0)
    days = sums[_DAYS].sum(axis=0)

    def sum_centred(first_row: int, count: Floats) -> Floats:
        row_squares, mixed, totals = sums[first_row : first_row + 3]
        centred: Floats = np.maximum(0.0, totals - 2 * mean * mixed + mean * mean * row_squares).sum(axis=0)
        corrected: Floats = centred * count / np.maximum(1.0, count - strata)
        return corrected

    by_unit = sum_centred(_SQUARES, units)
    by_block = sum_centred(_BLOCK_SQUARES, sums[_BLOCKS].sum(axis=0))
    by_day = sum_centred(_DAY_SQUARES, days)
    block_squares, day_squares = sums[_BLOCK_SQUARES], sums[_DAY_SQUARES]
    unit = np.maximum(MIN_VARIANCE, ratio(by_unit, squares))
    block = ratio(np.maximum(0.0, by_block - by_unit), block_squares.sum(axis=0) - squares)
    day = ratio(np.maximum(0.0, by_day - by_block), (day_squares - block_squares).sum(axis=0))
    variance = unit * sums[_SQUARES] + block * np.maximum(0.0, block_squares - sums[_SQUARES])
    variance += day * np.maximum(0.0, day_squares - block_squares)
    has_reference = candidates[:, None] >= np.maximum(chunk.first_day, history_start) + chunk.reference_days
    return _NormalState(
        is_usable=has_reference & (days >= MIN_DAYS_BEFORE) & (units >= MIN_UNITS_BEFORE),
        is_pooled=is_pooled,
        mean=mean,
        variance=ratio(variance, sums[_WEIGHT] ** 2),
        unit=unit,
        factor=(1 + 1 / np.maximum(MIN_FREEDOM, days - strata)) / 2,
    )


def _bound_looks(chunk: _Chunk, normal: _NormalState, day: int, candidates: Ints, log_represented: Floats) -> Floats:
    """Return the highest bound of the looks of one day, by series."""
    count = len(chunk.first_day)
    is_today = chunk.day == day
    owner = chunk.owner[is_today]
    if not owner.size:
        return np.full(count, -math.inf)
    # The cells of the day, one row per look; series with fewer looks repeat their last one.
    group_start = np.flatnonzero(np.diff(owner, prepend=-1))
    position = np.arange(len(owner)) - np.repeat(group_start, np.diff(group_start, append=len(owner)))
    today = np.zeros((4, int(position.max()) + 1, count))
    today[:, position, owner] = chunk.cells[:, is_today]
    today = np.cumsum(today, axis=1)
    rows = slice(_UNITS, _SQUARES + 1)
    later = chunk.running[rows, :, day : day + 1] - chunk.running[rows][:, :, candidates]
    # All cells of the day are of one stratum, which is the first one if strata are pooled.
    own = 1 if chunk.weekend[day] else 0
    other_later = np.where(normal.is_pooled, 0.0, later[:, 1 - own])
    own_later = np.where(normal.is_pooled, later.sum(axis=1), later[:, own])
    mean = np.where(normal.is_pooled, normal.mean[0], normal.mean[own])
    variance = np.where(normal.is_pooled, normal.variance[0], normal.variance[own])
    other_difference = np.where(
        other_later[_UNITS] > 0, ratio(other_later[_TOTAL], other_later[_WEIGHT]) - normal.mean[1 - own], 0.0
    )
    other_variance = normal.variance[1 - own] + normal.unit * ratio(other_later[_SQUARES], other_later[_WEIGHT] ** 2)
    constant = ratio(other_difference**2, other_variance) * normal.factor + log_represented[:, None]
    has_look = today[_UNITS, -1] > 0
    deviation = own_later[_TOTAL] - mean * own_later[_WEIGHT]
    units_later = own_later[_UNITS] + other_later[_UNITS]
    later_columns = own_later[_WEIGHT], deviation, own_later[_SQUARES]
    normal_columns = mean, variance, normal.unit, normal.factor, constant
    columns = _Columns(*(column.astype(np.float32)[:, None] for column in (*later_columns, *normal_columns)))
    terms = _exponentiate_terms(today.astype(np.float32), columns)
    terms *= normal.is_usable[:, None] & (units_later[:, None] + today[_UNITS] > MIN_UNITS_AFTER - 0.5)
    evidence = terms.sum(axis=0).max(axis=0)
    log_evidence = np.log(np.maximum(evidence, np.float32(1e-30))) + _ROUNDING
    return np.where(has_look & (evidence > 0), np.where(log_evidence < _MAX_TERM, log_evidence, math.inf), -math.inf)


class _Columns(NamedTuple):
    """Columns of the candidates of each series, and the stratum of the looks' day: (candidates, 1, series)."""

    weight_later: Singles
    """The sums of the days from the candidate up to the day of the looks."""
    deviation_later: Singles
    squares_later: Singles
    mean: Singles
    variance: Singles
    unit: Singles
    factor: Singles
    constant: Singles


def _exponentiate_terms(today: Singles, columns: _Columns) -> Singles:
    """Return the terms of the evidence: (candidates, looks, series).

    This is most of the time, so it is in single precision, which costs less than `_ROUNDING`, and in place.
    """
    # difference^2 / (variance + unit squares / weight^2), multiplied by weight^2
    divisor = columns.weight_later + today[_WEIGHT]
    divisor *= divisor
    divisor *= columns.variance
    divisor += columns.unit * columns.squares_later
    divisor += columns.unit * today[_SQUARES]
    terms = today[_TOTAL] - columns.mean * today[_WEIGHT]
    terms += columns.deviation_later
    terms *= terms
    terms /= np.maximum(divisor, np.float32(1e-30), out=divisor)
    terms *= columns.factor
    terms += columns.constant
    exponentials: Singles = np.exp(np.minimum(terms, np.float32(_MAX_TERM), out=terms), out=terms)
    return exponentials
