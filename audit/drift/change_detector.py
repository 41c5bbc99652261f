"""Change detector: has the mean of a series changed, since when, and by how much. It looks after every hour with sessions.

At each look, any of the last 400 days may be the first day of a change. For each day, `audit.drift.change_evidence` computes how much more
probable the scores are with a change on that day than without a change. The sum over the days is the evidence: the Shiryaev-Roberts statistic of
e-values that restart every day (Shin, Ramdas and Rinaldo 2023, "E-detectors: a nonparametric framework for sequential change detection").
Without a change each term is 1 on average, so the sum grows by at most 1 per day. It therefore takes at least `SUSPECTED` days on average
to reach `SUSPECTED`, however often one looks. A look depends only on sessions that had ended by its hour, so a late check finds the same
changes as an early one.

The first day and the size are estimated with intervals. Every hour at which the change may have begun is weighted by the probability of the
scores given that hour. The interval of the first day spans the smallest set of hours that holds 95% of the probability. The interval of the
size is that of a mixture over these hours. On a bounded scale it cannot leave the scale: each mean is treated as a share of independent
counts, whose number is chosen so that the share has the same variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.comparison import newcombe_margins, t_quantile, wilson
from audit.drift.change_evidence import (
    Contrast,
    LaterStretch,
    NormalState,
    Ranges,
    Stretch,
    bound_log_evidence,
    compare_means,
    log_evidence,
    normal_before,
    ratio,
)
from audit.drift.consecutive_days import Direction, Severity, severity_of
from audit.drift.series import (
    BLOCK_SQUARES,
    DAY_MIXED,
    DAY_SQUARES,
    DAY_TOTALS,
    NO_DECISION,
    SCORES,
    SQUARES,
    UNITS,
    Cells,
    Counts,
    DaySums,
    DeviantUnits,
    Flags,
    Floats,
    Ints,
    Reference,
    Series,
    Unit,
    cells_of,
    day_correlation,
    discount_correlated,
    log_count_evidence,
)
from schemas.lazy_numpy import np

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

__all__ = [
    "CHECKED_DAYS",
    "CONFIRMED",
    "SUSPECTED",
    "WINDOW_DAYS",
    "Cells",
    "Change",
    "Interval",
    "SeriesState",
    "Unit",
    "check_series",
    "find_change",
]
SUSPECTED = 8 * 365.0
"""Evidence that raises an alarm. One series has a false alarm in 8 years on average, and a project with four tiers one in two years."""
CONFIRMED = 200_000.0
"""Evidence that confirms a change at once."""
LATER_CONFIRMED = 30_000.0
"""Evidence that confirms a change `LATER_CONFIRMED_HOURS` after its alarm."""
LATER_CONFIRMED_HOURS = 24
CHECKED_DAYS = 7
"""Days whose looks each check repeats, so that no look is missed while the process is down."""

HISTORY_DAYS = 400
"""UTC days that a look uses, its own included. After a year without a decision, the new level has become normal."""
WINDOW_DAYS = HISTORY_DAYS + CHECKED_DAYS - 1
"""UTC days of units that a check uses, its own day included."""
_HOURLY_DAYS = 14
"""Days on either side of the most probable first day in which every hour is a candidate for the first hour."""
MIN_DAYS_BEFORE = 6
"""Minimum number of days with sessions before a change: fewer days do not show how much days vary."""
RECENT_DAYS = 7
"""Days before a change from which the recent variance of units is measured."""
MIN_RARE_UNITS = 10.0
"""With fewer units off the usual value before a change, the variance of units is unknown and they are counted instead."""
CANDIDATE_AGES = (
    *((age, 1) for age in range(14)),
    *((age, 2) for age in range(15, 31, 2)),
    *((age, 4) for age in range(33, 60, 4)),
    *((age, 8) for age in range(65, 128, 8)),
    *((age, 16) for age in range(137, HISTORY_DAYS, 16)),
)
"""Ages of the candidate changes in days, each with the number of days that it represents: older changes need less resolution."""
_TOLERANCE = 1e-6

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL = NormalDist()
_MIN_RELATIVE_PROBABILITY = 1e-3
"""The interval of the size leaves out hours with less than this fraction of the largest probability."""
_BISECTIONS = 40
Bounds = tuple[float, float]
"""The lowest and the highest possible score."""
_PSEUDO_UNITS = 0.5
"""Units in the middle of the scale, added at each end, so that a mean at an end of the scale is not considered certain."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95% probability, ends included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A significant change of the mean, as estimated at the last look that raised an alarm."""

    direction: Direction
    severity: Severity
    """Critical if the size is beyond two sigma."""
    alarm_at: datetime
    """Time of the first look in the checked days that raised the alarm."""
    seen_at: datetime
    """Time of the last look that raised the alarm; all estimates use the units up to then."""
    confirmed_at: datetime | None
    """Time of the first look in the checked days that confirmed the change; None while it is only suspected."""
    first_day: date
    """The most probable first day of the change."""
    first_hour: datetime
    """Beginning of the most probable first hour; units that ended earlier are before the change."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95% interval of the first day, included."""
    size: float
    """Mean after less mean before, in points of the score."""
    size_interval: Interval
    """95%; includes the uncertainty of the first day."""
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
class SeriesState:
    """The state of a series at a check."""

    change: Change | None
    level: float
    """Log evidence of the last look, scaled so that 0 is the value expected by chance and 1 is an alarm."""


def check_series(
    units: Cells | Iterable[Unit],
    as_of: date,
    *,
    reference: Reference = NO_DECISION,
    is_share: bool = False,
    bounds: Bounds | None = None,
    log_penalty: float = 0.0,
) -> SeriesState:
    """Return the state at the end of the day `as_of`: the change found by the looks of the last week, and how near an alarm is.

    `units` are those of one series over the last `WINDOW_DAYS` days, in any order or summed by hour; units of other days are ignored.
    `reference` selects the days that count; no change is found before there are `reference.days` of them. For a share (`is_share`), the
    weight of a unit is its number of runs and its total is the number of runs that have the property. `bounds` are the ends of the scale.
    `log_penalty` is added to the log evidence that an alarm and its confirmation need, for one of many series (`audit.drift.discoveries`).
    """
    cells = units if isinstance(units, Cells) else cells_of(units)
    series = Series(cells, as_of - timedelta(days=WINDOW_DAYS - 1), as_of, reference, is_share=is_share)
    alarm = math.log(SUSPECTED) + log_penalty
    looks = take_looks(series, range(max(0, series.length - CHECKED_DAYS), series.length), alarm)
    if not looks.cells.size:
        return SeriesState(None, 0.0)
    chance = float(looks.log_chance[-1])
    level = max(0.0, (float(looks.log_evidence[-1]) - chance) / (alarm - chance))
    alarms = np.flatnonzero(looks.log_evidence >= alarm)
    return SeriesState(_describe_change(series, looks, alarms, bounds, log_penalty) if alarms.size else None, level)


def find_change(
    units: Cells | Iterable[Unit],
    as_of: date,
    *,
    reference: Reference = NO_DECISION,
    is_share: bool = False,
    bounds: Bounds | None = None,
    log_penalty: float = 0.0,
) -> Change | None:
    """Return the change found at the end of the day `as_of`; see `check_series` for the parameters."""
    return check_series(units, as_of, reference=reference, is_share=is_share, bounds=bounds, log_penalty=log_penalty).change


def take_looks(series: Series, days: Iterable[int], min_evidence: float = -math.inf) -> Looks:
    """Return the looks of the given days, in order.

    Looks that cannot reach the log evidence `min_evidence` are left out, except for the last one.
    """
    candidates = _build_candidates(series, np.array(list(days), dtype=np.int64))
    pairs = _pair_cells(series, candidates)
    if not pairs.cell.size:
        return Looks(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    normal = _estimate_normal_states(series, candidates)
    if min_evidence > -math.inf:
        is_reachable = _mask_reachable(min_evidence, series, candidates, normal, pairs)
        pairs = _Pairs(pairs.cell[is_reachable], pairs.candidate[is_reachable])
    contrasts, evidence = _weigh_pairs(series, candidates, normal, pairs)
    starts = pairs.starts
    represented_days = candidates.represented_days[pairs.candidate]
    terms = evidence + np.log(represented_days)
    highest = pairs.repeat_per_look(np.maximum.reduceat(terms, starts))
    likeliest = np.maximum.reduceat(np.where(terms == highest, np.arange(len(terms)), 0), starts)
    return Looks(
        cells=pairs.cell[starts],
        log_evidence=np.maximum(0.0, np.logaddexp.reduceat(terms, starts)),
        log_chance=np.log(np.add.reduceat(represented_days, starts)),
        size=contrasts.size[likeliest],
    )


def _build_candidates(series: Series, days: Ints) -> _Candidates:
    """Return the candidates of the looks of each day that have enough days before them."""
    ages, represented_days = np.array(CANDIDATE_AGES).T
    look_day = np.repeat(days, len(ages))
    age = np.tile(ages, len(days))
    history_start = first_history_day(look_day)
    day = np.maximum(0, look_day - age)
    first_cell = series.starts[day]
    has_reference = look_day - age >= history_start + series.reference_days
    is_usable = has_reference & (series.days_between(history_start, day) >= MIN_DAYS_BEFORE)
    return _Candidates(
        look_day=look_day[is_usable],
        first_cell=first_cell[is_usable],
        history_start=history_start[is_usable],
        represented_days=np.tile(represented_days, len(days))[is_usable],
    )


class _Candidates(NamedTuple):
    """The possible changes that the looks of some days consider, in order of the days of the looks."""

    look_day: Ints
    first_cell: Ints
    """The first cell of the change."""
    history_start: Ints
    """First day that the look uses."""
    represented_days: Floats
    """The number of days that the candidate represents."""


def first_history_day(day: Ints) -> Ints:
    """Return the first day that the looks of a day use."""
    return np.maximum(0, day - HISTORY_DAYS + 1)


def _pair_cells(series: Series, candidates: _Candidates) -> _Pairs:
    """Pair each cell of the days of looks with each candidate of its day."""
    days = np.unique(candidates.look_day)
    cells = np.flatnonzero(np.isin(series.day, days))
    first = np.searchsorted(candidates.look_day, series.day[cells], side="left")
    end = np.searchsorted(candidates.look_day, series.day[cells], side="right")
    counts = end - first
    return _Pairs(np.repeat(cells, counts), np.arange(counts.sum()) + np.repeat(end - np.cumsum(counts), counts))


class _Pairs(NamedTuple):
    """Pairs of a look and a candidate; all pairs of one look are adjacent."""

    cell: Ints
    """The cell after which the look is taken."""
    candidate: Ints
    """The index of the candidate."""

    @property
    def starts(self) -> Ints:
        """The index of the first pair of each look."""
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    def repeat_per_look(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeat the value of each look for each of its pairs."""
        return np.repeat(values, np.diff(self.starts, append=len(self.cell)))


def _estimate_normal_states(series: Series, candidates: _Candidates, reference: int | None = None) -> NormalState:
    """Return the normal state before each candidate."""
    first_day = _first_days(series, candidates)
    recent_day = np.maximum(candidates.history_start, first_day - RECENT_DAYS)
    sums_until = series.sums[..., candidates.first_cell]
    days_until = series.daily[..., first_day]
    before = Stretch(
        sums_until - series.sums[..., series.starts[candidates.history_start]],
        days_until - series.daily[..., candidates.history_start],
    )
    recent = sums_until - series.sums[..., series.starts[recent_day]]
    settled = Stretch(
        series.sums[..., series.starts[candidates.look_day]] - sums_until,
        series.daily[..., candidates.look_day] - days_until,
    )
    return normal_before(before, recent, settled, reference)


def _first_days(series: Series, candidates: _Candidates) -> Ints:
    """Return the day of the first cell of each candidate."""
    return series.day[np.minimum(candidates.first_cell, len(series.day) - 1)]


def _mask_reachable(min_evidence: float, series: Series, candidates: _Candidates, normal: NormalState, pairs: _Pairs) -> Flags:
    """Return the mask of pairs whose looks may reach the log evidence `min_evidence`, and of the pairs of the last look."""
    terms = bound_log_evidence(normal, _sum_after(series.sums[: SQUARES + 1], candidates, pairs), pairs.candidate)
    terms += np.log(candidates.represented_days[pairs.candidate])
    is_reachable = np.logaddexp.reduceat(terms, pairs.starts) >= min_evidence - _TOLERANCE
    is_reachable[-1] = True
    return pairs.repeat_per_look(is_reachable)


def _sum_after(sums: Floats, candidates: _Candidates, pairs: _Pairs) -> Floats:
    """Return the sums of the units from the first cell of each pair's candidate up to the cell of its look."""
    return np.take(sums, pairs.cell + 1, axis=-1) - np.take(sums[..., candidates.first_cell], pairs.candidate, axis=-1)


def _weigh_pairs(
    series: Series, candidates: _Candidates, normal: NormalState, pairs: _Pairs, reference: int | None = None
) -> tuple[Contrast, Floats]:
    """Return the contrast of each pair's units with the normal state before its candidate, and its log evidence."""
    first_cell = candidates.first_cell
    squares = _sum_squares_after(series, candidates, pairs)
    later = LaterStretch(_sum_after(series.sums, candidates, pairs), squares, pairs.candidate)
    contrasts = compare_means(normal, later, reference)
    low, high = series.range(series.starts[candidates.history_start], first_cell - 1)
    range_before = low[pairs.candidate], high[pairs.candidate]
    range_after = series.range(first_cell[pairs.candidate], pairs.cell)
    day_squares = squares[1].sum(axis=0)
    if series.is_share:
        bounds = _count_evidence(series, candidates, pairs, day_squares)
    else:
        bounds = _rare_value_evidence(series, candidates, pairs, contrasts, range_before, day_squares=day_squares)
    return contrasts, np.minimum(log_evidence(contrasts, range_before, range_after), bounds)


def _sum_squares_after(series: Series, candidates: _Candidates, pairs: _Pairs) -> Floats:
    """Return the sums of the squares of blocks and of days from each candidate up to the look: (2, STRATA, pairs)."""
    first_cell = candidates.first_cell
    first_day = _first_days(series, candidates)
    at_midnight = series.daily[[BLOCK_SQUARES, DAY_SQUARES]][..., first_day]
    is_first_of_day = first_cell == series.starts[first_day]
    before_change = np.where(is_first_of_day, at_midnight, series.running_squares[..., first_cell - 1])
    squares: Floats = np.take(series.running_squares, pairs.cell, axis=-1) - np.take(before_change, pairs.candidate, axis=-1)
    return squares


def _count_evidence(series: Series, candidates: _Candidates, pairs: _Pairs, day_squares: Floats) -> Floats:
    """Return the log evidence by the counts of a share, which bounds that of the normal approximation from above.

    `day_squares` are the sums of the squares of the days after each change.
    """
    first_day = _first_days(series, candidates)
    before = series.counts(series.starts[candidates.history_start], candidates.first_cell)
    settled = series.counts(series.starts[first_day], series.starts[candidates.look_day])
    days_before = _sum_days(series, candidates.history_start, first_day)
    days_settled = _sum_days(series, first_day, candidates.look_day)
    correlation = day_correlation([(before, days_before), (settled, days_settled)])[pairs.candidate]
    after = series.counts(candidates.first_cell[pairs.candidate], pairs.cell + 1)
    before_pairs = Counts(before.positives[pairs.candidate], before.runs[pairs.candidate])
    runs_per_day = day_squares / np.maximum(after.runs, 1)
    return discount_correlated(log_count_evidence(before_pairs, after), correlation, runs_per_day)


def _sum_days(series: Series, first: Ints, end: Ints) -> DaySums:
    """Return the sums over the days from each `first` up to but excluding `end`."""
    columns = series.daily[[DAY_SQUARES, DAY_MIXED, DAY_TOTALS]].sum(axis=1)
    return DaySums(*(columns[:, end] - columns[:, first]))


def _rare_value_evidence(
    series: Series, candidates: _Candidates, pairs: _Pairs, contrasts: Contrast, range_before: Ranges, *, day_squares: Floats
) -> Floats:
    """Return an upper bound of the log evidence if nearly all scores before a change have one value; infinity if they vary.

    Units are then counted by whether they have another value, see `DeviantUnits`. `day_squares` are the sums of the squares of the days
    after each change.
    """
    low, high = range_before
    usual = np.where(2 * contrasts.before > low + high, high, low)
    first_cell = candidates.first_cell[pairs.candidate]
    before = _sum_deviant_units(series, series.starts[candidates.history_start[pairs.candidate]], first_cell, usual)
    bounds = np.full(len(usual), math.inf)
    rare = np.flatnonzero(contrasts.is_usable & (before.min_count < MIN_RARE_UNITS))
    if not rare.size:
        return bounds
    usual = usual[rare]
    candidate = pairs.candidate[rare]
    history_start = candidates.history_start[candidate]
    look_day = candidates.look_day[candidate]
    first_day = _first_days(series, candidates)[candidate]
    correlation = day_correlation(
        [_count_rare_units(series, history_start, first_day, usual), _count_rare_units(series, first_day, look_day, usual)]
    )
    after = _sum_deviant_units(series, first_cell[rare], pairs.cell[rare] + 1, usual)
    units_per_day = ratio(day_squares[rare] * after.units, after.weight**2)
    log_evidences = log_count_evidence(DeviantUnits(*(column[rare] for column in before)).counts, after.counts)
    bounds[rare] = discount_correlated(log_evidences, correlation, units_per_day)
    return bounds


def _sum_deviant_units(series: Series, first: Ints, end: Ints, usual: Floats) -> DeviantUnits:
    """Return the units off the usual value in the cells from each `first` up to but excluding `end`."""
    sums = series.sums.sum(axis=1)
    return DeviantUnits.from_sums(sums[:, end] - sums[:, first], usual)


def _count_rare_units(series: Series, first: Ints, end: Ints, usual: Floats) -> tuple[Counts, DaySums]:
    """Count the units off the usual value over whole days, with sums by day."""
    units = _sum_deviant_units(series, series.starts[first], series.starts[end], usual)
    squares, mixed, totals = _sum_days(series, first, end)
    weight_per_unit = np.where(units.units > 0, ratio(units.weight, units.units), 1.0)
    total_per_unit = np.where(units.min_count > 0, ratio(units.total, units.min_count), 1.0)
    day_sums = DaySums(
        squares / weight_per_unit**2,
        (mixed - usual * squares) / (total_per_unit * weight_per_unit),
        (totals - 2 * usual * mixed + usual**2 * squares) / total_per_unit**2,
    )
    return Counts(units.min_count, units.units), day_sums


def _describe_change(series: Series, looks: Looks, alarms: Ints, bounds: Bounds | None, log_penalty: float) -> Change:
    """Describe the change at the last look that raised an alarm; `alarms` are the indices of all looks that did."""
    last_alarm = alarms[-1]
    cell = int(looks.cells[last_alarm])
    first_cells, contrast, evidence = _weigh_first_cells(series, cell)
    contrast, scale = _put_on_scale(series, cell, first_cells, contrast, bounds)
    estimated = estimate(contrast, evidence, scale)
    best = estimated.best
    first_cell = int(first_cells[best])
    size = float(contrast.size[best])
    sigma = math.sqrt(float(contrast.unit_variance[best]))
    same_direction = alarms[_last_reversal(looks.size[alarms] > 0, is_up=size > 0) :]
    times = series.cells.last[looks.cells[same_direction]]
    confirming = np.flatnonzero(is_confirmed(times, looks.log_evidence[same_direction] - log_penalty))
    sums = series.sums.sum(axis=1)
    before = sums[:, first_cell] - sums[:, series.starts[first_history_day(series.day[cell])]]
    after = sums[:, cell + 1] - sums[:, first_cell]
    likely_days = series.day[first_cells[estimated.likely]]
    return Change(
        direction="up" if size > 0 else "down",
        severity=severity_of(size / sigma),
        alarm_at=times[0].astype(datetime),
        seen_at=series.time(cell),
        confirmed_at=times[confirming[0]].astype(datetime) if confirming.size else None,
        first_day=series.date(int(series.day[first_cell])),
        first_hour=series.time(first_cell).replace(minute=0, second=0, microsecond=0),
        earliest_day=series.date(int(likely_days.min())),
        latest_day=series.date(int(likely_days.max())),
        size=size,
        size_interval=estimated.size,
        sigma=sigma,
        mean_before=float(contrast.before[best]) + series.origin,
        mean_after=float(contrast.after[best]) + series.origin,
        scores_before=round(before[SCORES]),
        scores_after=round(after[SCORES]),
        units_before=round(before[UNITS]),
        units_after=round(after[UNITS]),
        log_evidence=float(looks.log_evidence[last_alarm]),
    )


def _weigh_first_cells(series: Series, cell: int) -> tuple[Ints, Contrast, Floats]:
    """Return the cells at which a change may begin, in order, with the contrast and the log evidence of each at the look after `cell`."""
    day = series.day[cell]
    history_start = int(first_history_day(day))
    first_day = history_start + series.reference_days
    has_days = series.days_between(np.array([history_start]), np.arange(first_day, day + 1)) >= MIN_DAYS_BEFORE
    first_cells = np.unique(series.starts[first_day : day + 1][has_days])
    first_cells = first_cells[first_cells <= cell]
    _, evidence = contrasts_at(series, cell, first_cells)
    likeliest = int(series.day[first_cells[int(np.argmax(evidence))]])
    earliest_cell = max(first_cells[0], series.starts[max(first_day, likeliest - _HOURLY_DAYS)])
    nearby_cells = np.arange(earliest_cell, cell + 1)
    first_cells = np.union1d(first_cells, nearby_cells[series.day[nearby_cells] <= likeliest + _HOURLY_DAYS])
    _, evidence = contrasts_at(series, cell, first_cells)
    # All candidates use the variance of the likeliest one; otherwise their evidence would differ by how well each variance is known.
    contrast, evidence = contrasts_at(series, cell, first_cells, int(np.argmax(evidence)))
    # A change that first shows in a cell began after the previous cell, so the first cell after a weekend represents the whole weekend.
    hours = np.diff(series.cells.last[first_cells], prepend=series.cells.last[first_cells[0] - 1]).astype(np.float64)
    evidence += np.log(np.maximum(1.0, hours))
    usable = contrast.is_usable
    return first_cells[usable], contrast.where(usable), evidence[usable]


def contrasts_at(series: Series, cell: int, first_cells: Ints, reference: int | None = None) -> tuple[Contrast, Floats]:
    """Return the contrasts and log evidence of the look after `cell` for changes that begin at each of `first_cells`.

    With `reference`, the index of one of the changes, all changes use the variance measured for that one.
    """
    count = len(first_cells)
    look_day = np.full(count, series.day[cell])
    candidates = _Candidates(look_day, first_cells, first_history_day(look_day), np.ones(count))
    normal = _estimate_normal_states(series, candidates, reference)
    return _weigh_pairs(series, candidates, normal, _Pairs(np.full(count, cell), np.arange(count)), reference)


def _put_on_scale(
    series: Series, cell: int, first_cells: Ints, contrast: Contrast, bounds: Bounds | None
) -> tuple[Contrast, Scale | None]:
    """Return the contrasts and the scale of their means. A share's means are its plain counts, which people can check."""
    if series.is_share:
        history_cell = np.full(len(first_cells), series.starts[first_history_day(series.day[cell])])
        end = np.full(len(first_cells), cell + 1)
        return put_counts_on_scale(contrast, series.counts(history_cell, first_cells), series.counts(first_cells, end))
    return contrast, None if bounds is None else put_scores_on_scale(contrast, bounds, series.origin)


def put_counts_on_scale(contrast: Contrast, before: Counts, after: Counts) -> tuple[Contrast, Scale]:
    """Return the contrasts with plain shares as means, and their scale.

    If hours and days vary more than independent runs would, the number of effective runs is reduced accordingly.
    """

    def side(counts: Counts, variance: Floats, unit_variance: Floats) -> Side:
        return Side(counts.positives / counts.runs, counts.runs / np.maximum(1.0, ratio(variance, unit_variance)))

    side_before = side(before, contrast.variance_before, contrast.unit_before)
    side_after = side(after, contrast.variance_after, contrast.unit_after)
    return contrast._replace(before=side_before.mean, after=side_after.mean), Scale(side_before, side_after)


def put_scores_on_scale(contrast: Contrast, bounds: Bounds, origin: float) -> Scale:
    """Return the scale of bounded scores, whose means are measured from `origin`.

    A share p of n counts has the variance p (1 - p) / n, so a mean with the variance v is worth p (1 - p) / v counts.
    """
    low, high = bounds
    width = high - low

    def side(mean: Floats, variance: Floats, units: Floats) -> Side:
        share = np.clip((mean + origin - low) / width, 0.0, 1.0)  # rounding may push a mean off the scale
        inner = (share * units + _PSEUDO_UNITS) / (units + 2 * _PSEUDO_UNITS)
        return Side(share, inner * (1 - inner) * width**2 / variance)

    return Scale(
        side(contrast.before, contrast.variance_before, contrast.units_before),
        side(contrast.after, contrast.variance_after, contrast.units_after),
        width,
    )


def estimate(contrast: Contrast, log_evidence: Floats, scale: Scale | None = None) -> Estimate:
    """Estimate when the change began and how large it is from the usable first cells in order, of which there is at least one.

    Of equally probable cells the latest is the best. Without a `scale`, scores are unbounded.
    """
    weights = np.exp(log_evidence - log_evidence.max())
    probabilities = weights / weights.sum()
    ranking = np.lexsort((-np.arange(len(probabilities)), -probabilities))
    count = np.searchsorted(np.cumsum(probabilities[ranking]), CONFIDENCE) + 1
    best = int(ranking[0])
    quantile = t_quantile(1 - _TAIL, float(contrast.freedom[best]))
    if scale is None:
        size = _size_interval(contrast, probabilities, quantile)
    else:
        size = _size_interval_on_scale(scale, probabilities, quantile)
    return Estimate(best, np.sort(ranking[:count]), size)


def _size_interval(contrast: Contrast, probabilities: Floats, quantile: float) -> Interval:
    """Return the interval of a mixture of t distributions, by its first two moments."""
    centre = float((probabilities * contrast.size).sum())
    variance = float((probabilities * (contrast.variance + (contrast.size - centre) ** 2)).sum())
    half_width = quantile * float(np.sqrt(variance))
    return Interval(centre - half_width, centre + half_width)


def _size_interval_on_scale(scale: Scale, probabilities: Floats, quantile: float) -> Interval:
    """Return the interval of a mixture of Newcombe's intervals, with 2.5% of the mixture beyond each end.

    The mixture reaches no farther than its widest component, so it stays on the scale. Each side of a component is treated as half of a
    normal distribution.
    """
    is_relevant = probabilities > _MIN_RELATIVE_PROBABILITY * probabilities.max()
    shares = probabilities[is_relevant] / probabilities[is_relevant].sum()
    before = Side(scale.before.mean[is_relevant], scale.before.size[is_relevant])
    after = Side(scale.after.mean[is_relevant], scale.after.size[is_relevant])
    below, above = newcombe_margins(
        (before.mean, *wilson(before.mean, before.size, quantile)), (after.mean, *wilson(after.mean, after.size, quantile))
    )
    size = after.mean - before.mean
    normal_quantile = _NORMAL.inv_cdf(1 - _TAIL)

    def probability_below(value: float) -> float:
        deviation = value - size
        half_width = np.maximum(np.where(deviation < 0, below, above), np.finfo(np.float64).tiny)
        standard_errors = normal_quantile * deviation / half_width
        return sum(float(share) * _NORMAL.cdf(float(error)) for share, error in zip(shares, standard_errors, strict=True))

    lowest = float((size - below).min())
    highest = float((size + above).max())
    low = _bisect(lowest, highest, lambda value: probability_below(value) < _TAIL)
    high = _bisect(lowest, highest, lambda value: probability_below(value) < 1 - _TAIL)
    return Interval(low * scale.width, high * scale.width)


def _bisect(low: float, high: float, is_below: Callable[[float], bool]) -> float:
    """Return the number in a range up to which a condition holds."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _last_reversal(is_rising: Flags, *, is_up: bool) -> int:
    """Return the index of the first look from which on all looks have the direction `is_up`; at most that of the last look."""
    reversals = np.flatnonzero(is_rising != is_up)
    if not reversals.size:
        return 0
    return min(int(reversals[-1]) + 1, len(is_rising) - 1)


def is_confirmed(times: NDArray[np.datetime64], log_evidence: Floats) -> Flags:
    """Return the mask of the looks of one alarm that confirm it: by `CONFIRMED`, or a day later by `LATER_CONFIRMED`.

    The looks are given by their times and their log evidence.
    """
    is_certain = log_evidence >= math.log(CONFIRMED)
    is_later = times - times[0] >= np.timedelta64(LATER_CONFIRMED_HOURS, "h")
    is_stable = is_later & (log_evidence >= math.log(LATER_CONFIRMED))
    return is_certain | is_stable  # type: ignore[no-any-return]


class Looks(NamedTuple):
    """The looks of some days, one after each hour with sessions, oldest first."""

    cells: Ints
    """The cell after which each look is taken."""
    log_evidence: Floats
    """Log of the evidence summed over the candidate days; at least 0."""
    log_chance: Floats
    """Log of the evidence expected without a change: 1 per candidate day."""
    size: Floats
    """Mean after less mean before, for the most probable day."""


class Side(NamedTuple):
    """The means on one side of a change, on a scale from 0 to 1, one element per first cell."""

    mean: Floats
    size: Floats
    """The number of independent counts whose share would have the same variance."""


class Scale(NamedTuple):
    """Both sides of a change on a scale, and the width of the scale in points."""

    before: Side
    after: Side
    width: float = 1.0


class Estimate(NamedTuple):
    """The estimate of a change."""

    best: int
    """The index of the most probable first cell."""
    likely: Ints
    """The indices of the first cells in the interval of the first day, in order."""
    size: Interval
    """The interval of the difference of the means."""
