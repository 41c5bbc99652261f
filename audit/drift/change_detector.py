"""Change detector: has the mean of a series changed, since when, and by how much. It looks after every hour with sessions.

At each look, any of the last 400 days may be the first day of a change. For each day, `audit.drift.change_evidence` computes how much more
probable the scores are with a change on that day than without any. The sum over the days is the evidence: the Shiryaev-Roberts statistic of
e-values that restart every day (Shin, Ramdas and Rinaldo 2023, "E-detectors: a nonparametric framework for sequential change detection").
Without a change each term is 1 on average, so the sum grows by at most 1 per day. It therefore takes at least `SUSPECTED` days on average
to reach `SUSPECTED`, however often one looks. A look depends only on sessions that had ended by then, so a check that runs late finds what
an earlier one would have found.

The first day and the size are estimated with intervals. Every hour at which the change may have begun is weighted by the probability of the
scores given that hour. The interval of the first day spans the fewest hours that together hold 95 % of the probability. The interval of the
size is that of a mixture over these hours. On a bounded scale it cannot leave the scale: each mean is treated as a share of as many
independent counts as would vary as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.comparison import apart, t_quantile, wilson
from audit.drift.change_evidence import (
    Contrast,
    Later,
    Normal,
    Ranges,
    Stretch,
    contrast,
    log_evidence,
    most_log_evidence,
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
    Days,
    Flags,
    Floats,
    Ints,
    Off,
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
    "Standing",
    "Unit",
    "find_change",
    "standing",
]
SUSPECTED = 8 * 365.0
"""Fewest days to a false alarm of one series, on average: a project with four tiers has one in two years."""
CONFIRMED = 200_000.0
"""Evidence that confirms a change at once."""
DAY_LATER_EVIDENCE = 30_000.0
"""Evidence that confirms a change `DAY_LATER_HOURS` after its alarm."""
DAY_LATER_HOURS = 24
CHECKED_DAYS = 7
"""Days whose looks are repeated at each check, so that none is missed while the process is down."""

HISTORY_DAYS = 400
"""UTC days that a look sees, its own included. After a year without a decision, the new level has become normal."""
WINDOW_DAYS = HISTORY_DAYS + CHECKED_DAYS - 1
"""UTC days of units that a check uses, its own day included."""
_FINE_DAYS = 14
"""Days on either side of the likeliest first day in which every hour is tried as the first one."""
FEWEST_DAYS = 6
"""Fewest days with sessions before a change: fewer do not show how much days vary."""
RECENT_DAYS = 7
"""Days before a change from which the recent variance of units is measured."""
FEWEST_RARE_UNITS = 10.0
"""Below this many units off the usual value before a change, the variance of units is unknown and they are counted instead."""
_AGES = (
    *((age, 1) for age in range(14)),
    *((age, 2) for age in range(15, 31, 2)),
    *((age, 4) for age in range(33, 60, 4)),
    *((age, 8) for age in range(65, 128, 8)),
    *((age, 16) for age in range(137, HISTORY_DAYS, 16)),
)
"""Days since a change that are tried, each with the number of days that it represents: older changes need less resolution."""
_ROUNDING = 1e-6

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL = NormalDist()
_NEGLIGIBLE = 1e-3
"""Hours with less than this fraction of the largest probability are left out of the interval of the size."""
_BISECTIONS = 40
Bounds = tuple[float, float]
"""The least and the greatest score there can be."""
_PRIOR = 0.5
"""Units at the middle of the scale that are added to each side, so that a mean at the end of the scale is not taken for certain."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95 % probability, ends included."""

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
    """Time of the last look that raised it; all estimates use the units up to then."""
    confirmed_at: datetime | None
    """Time of the first look in the checked days that confirmed it; None while it is only suspected."""
    first_day: date
    """The most probable first day of the change."""
    first_hour: datetime
    """Beginning of the most probable first hour; units that ended earlier are before the change."""
    earliest_day: date
    latest_day: date
    """Both ends of the 95 % interval of the first day, included."""
    size: float
    """Mean after less mean before, in points of the score."""
    size_interval: Interval
    """95 %; includes the uncertainty of the first day."""
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
    """Log evidence of the last look, scaled so that 0 is what chance brings and 1 is an alarm."""


def standing(
    units: Cells | Iterable[Unit],
    as_of: date,
    *,
    reference: Reference = NO_DECISION,
    is_share: bool = False,
    bounds: Bounds | None = None,
) -> Standing:
    """Return the state at the end of the day `as_of`: the change found by the looks of the last week, and how near an alarm is.

    `units` are those of one series over the last `WINDOW_DAYS` days, in any order or added up by the hour; units of other days are ignored.
    `reference` selects the days that count, and no change is found before it has `reference.days` days. For a share (`is_share`), the
    weight of a unit is its number of runs and its total the number of runs that have the property. `bounds` are the ends of the scale.
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


def looks_of(series: Series, days: Iterable[int], least: float = -math.inf) -> Looks:
    """Return the looks of the given days, in order.

    Looks that cannot reach a log evidence of `least` are left out, except for the last one.
    """
    candidates = _build_candidates(series, np.array(list(days), dtype=np.int64))
    pairs = _pair_cells(series, candidates)
    if not pairs.cell.size:
        return Looks(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    normal = _normal_states(series, candidates)
    if least > -math.inf:
        is_reachable = _mask_reachable(least, series, candidates, normal, pairs)
        pairs = _Pairs(*(part[is_reachable] for part in pairs))
    contrasts, evidence = _weigh_pairs(series, candidates, normal, pairs)
    starts, stands_for = pairs.starts, candidates.stands_for[pairs.row]
    terms = evidence + np.log(stands_for)
    chance = np.log(np.add.reduceat(stands_for, starts))
    best = pairs.of_each(np.maximum.reduceat(terms, starts))
    likeliest = np.maximum.reduceat(np.where(terms == best, np.arange(len(terms)), 0), starts)
    return Looks(pairs.cell[starts], np.maximum(0.0, np.logaddexp.reduceat(terms, starts)), chance, contrasts.size[likeliest])


def _build_candidates(series: Series, days: Ints) -> _Candidates:
    ages, stands_for = np.array(_AGES).T
    look_day, age = np.repeat(days, len(ages)), np.tile(ages, len(days))
    first_day_seen = first_day_seen_on(look_day)
    day = np.maximum(0, look_day - age)
    first_cell = series.starts[day]
    is_usable = (look_day - age >= first_day_seen + series.reference_days) & (
        series.days_between(first_day_seen, day) >= FEWEST_DAYS
    )
    return _Candidates(
        look_day[is_usable], first_cell[is_usable], first_day_seen[is_usable], np.tile(stands_for, len(days))[is_usable]
    )


class _Candidates(NamedTuple):
    """The possible changes that the looks of some days consider, in order of the days of the looks."""

    look_day: Ints
    first_cell: Ints
    """The first cell of the change."""
    first_day_seen: Ints
    """First day that the looks see."""
    stands_for: Floats
    """Number of days that the candidate represents."""


def first_day_seen_on(day: Ints) -> Ints:
    """Return the first day that the looks of a day see."""
    return np.maximum(0, day - HISTORY_DAYS + 1)


def _pair_cells(series: Series, candidates: _Candidates) -> _Pairs:
    """Pair each cell of the days of looks with each candidate of its day."""
    days = np.unique(candidates.look_day)
    cells = np.flatnonzero(np.isin(series.day, days))
    first, end = (np.searchsorted(candidates.look_day, series.day[cells], side=side) for side in ("left", "right"))
    counts = end - first
    return _Pairs(np.repeat(cells, counts), np.arange(counts.sum()) + np.repeat(end - np.cumsum(counts), counts))


class _Pairs(NamedTuple):
    """Pairs of a look and a candidate; all pairs of one look are adjacent."""

    cell: Ints
    """The cell after which the look is taken."""
    row: Ints
    """The index of the candidate."""

    @property
    def starts(self) -> Ints:
        """The index of the first pair of each look."""
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    def of_each(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeat the value of each look for each of its pairs."""
        return np.repeat(values, np.diff(self.starts, append=len(self.cell)))


def _normal_states(series: Series, candidates: _Candidates, reference: int | None = None) -> Normal:
    """Return the normal state before each candidate."""
    first_cell, day = candidates.first_cell, _first_days(series, candidates)
    first, lately = (
        series.starts[candidates.first_day_seen],
        series.starts[np.maximum(candidates.first_day_seen, day - RECENT_DAYS)],
    )
    until, daily = series.sums[..., first_cell], series.daily[..., day]
    before = Stretch(until - series.sums[..., first], daily - series.daily[..., candidates.first_day_seen])
    settled = Stretch(
        series.sums[..., series.starts[candidates.look_day]] - until, series.daily[..., candidates.look_day] - daily
    )
    return normal_before(before, until - series.sums[..., lately], settled, reference)


def _first_days(series: Series, candidates: _Candidates) -> Ints:
    """Return the day of the first cell of each candidate."""
    return series.day[np.minimum(candidates.first_cell, len(series.day) - 1)]


def _mask_reachable(least: float, series: Series, candidates: _Candidates, normal: Normal, pairs: _Pairs) -> Flags:
    """Return the mask of pairs whose looks may reach a log evidence of `least`, and of the pairs of the last look."""
    terms = most_log_evidence(normal, _sum_after(series.sums[: SQUARES + 1], candidates, pairs), pairs.row)
    terms += np.log(candidates.stands_for[pairs.row])
    is_reachable = np.logaddexp.reduceat(terms, pairs.starts) >= least - _ROUNDING
    is_reachable[-1] = True
    return pairs.of_each(is_reachable)


def _sum_after(sums: Floats, candidates: _Candidates, pairs: _Pairs) -> Floats:
    """Return the sums of the units from the first cell of each pair's candidate up to the cell of its look."""
    return np.take(sums, pairs.cell + 1, axis=-1) - np.take(sums[..., candidates.first_cell], pairs.row, axis=-1)


def _weigh_pairs(
    series: Series, candidates: _Candidates, normal: Normal, pairs: _Pairs, reference: int | None = None
) -> tuple[Contrast, Floats]:
    """Return the contrast of each pair's units with the normal state before its candidate, and its log evidence."""
    first_cell, day, (cell, row) = candidates.first_cell, _first_days(series, candidates), pairs
    daily = series.daily[[BLOCK_SQUARES, DAY_SQUARES]][..., day]
    so_far = np.where(first_cell == series.starts[day], daily, series.partial[..., first_cell - 1])
    partial = np.take(series.partial, cell, axis=-1) - np.take(so_far, row, axis=-1)
    contrasts = contrast(normal, Later(_sum_after(series.sums, candidates, pairs), partial, row), reference)
    low, high = series.range(series.starts[candidates.first_day_seen], first_cell - 1)
    ranges = (low[row], high[row]), series.range(first_cell[row], cell)
    if series.is_share:
        most = _count_evidence(series, candidates, pairs, partial[1].sum(axis=0))
    else:
        most = _rare_value_evidence(candidates, pairs, contrasts, ranges[0], series=series, squares=partial[1].sum(axis=0))
    return contrasts, np.minimum(log_evidence(contrasts, *ranges), most)


def _count_evidence(series: Series, candidates: _Candidates, pairs: _Pairs, squares: Floats) -> Floats:
    """Return the log evidence by the counts of a share, which bounds that of the normal approximation from above.

    `squares` are the squared sums of the days after each change.
    """
    day = _first_days(series, candidates)
    before = series.counts(series.starts[candidates.first_day_seen], candidates.first_cell)
    settled = series.counts(series.starts[day], series.starts[candidates.look_day])
    correlation = day_correlation(
        (
            (before, _sums_of_days(series, candidates.first_day_seen, day)),
            (settled, _sums_of_days(series, day, candidates.look_day)),
        )
    )[pairs.row]
    after = series.counts(candidates.first_cell[pairs.row], pairs.cell + 1)
    log_evidences = log_count_evidence(Counts(*(part[pairs.row] for part in before)), after)
    return discount_correlated(log_evidences, correlation, squares / np.maximum(after.of, 1))


def _sums_of_days(series: Series, first: Ints, last: Ints) -> Days:
    """Return the sums over the days from each `first` up to but excluding `last`."""
    columns = series.daily[[DAY_SQUARES, DAY_MIXED, DAY_TOTALS]].sum(axis=1)
    return Days(*(columns[:, last] - columns[:, first]))


def _rare_value_evidence(
    candidates: _Candidates, pairs: _Pairs, contrasts: Contrast, before: Ranges, *, series: Series, squares: Floats
) -> Floats:
    """Return an upper bound of the log evidence if nearly all scores before a change have one value; infinity if they vary.

    Units are then counted by whether they have another value, see `Off`. `before` is the range of the units before the change, and `squares`
    are the squared sums of the days after it.
    """
    usual = np.where(2 * contrasts.before > before[0] + before[1], before[1], before[0])
    first_cell, end = candidates.first_cell[pairs.row], pairs.cell + 1
    earlier = _off(series, series.starts[candidates.first_day_seen[pairs.row]], first_cell, usual)
    bounds = np.full(len(usual), math.inf)
    rare = np.flatnonzero(contrasts.is_usable & (earlier.least < FEWEST_RARE_UNITS))
    if not rare.size:
        return bounds
    usual, row = usual[rare], pairs.row[rare]
    later = _off(series, first_cell[rare], end[rare], usual)
    day = _first_days(series, candidates)[row]
    spans = ((candidates.first_day_seen[row], day), (day, candidates.look_day[row]))
    correlation = day_correlation(_count_rare_units(series, first, last, usual) for first, last in spans)
    a_day = ratio(squares[rare] * later.units, later.weight**2)
    log_evidences = log_count_evidence(Off(*(column[rare] for column in earlier)).counts, later.counts)
    bounds[rare] = discount_correlated(log_evidences, correlation, a_day)
    return bounds


def _off(series: Series, first: Ints, end: Ints, usual: Floats) -> Off:
    sums = series.sums.sum(axis=1)
    return Off.of(sums[:, end] - sums[:, first], usual)


def _count_rare_units(series: Series, first: Ints, last: Ints, usual: Floats) -> tuple[Counts, Days]:
    """Count the units off the usual value over whole days, with sums by day."""
    off = _off(series, series.starts[first], series.starts[last], usual)
    squares, mixed, totals = _sums_of_days(series, first, last)
    weight_per_unit = np.where(off.units > 0, ratio(off.weight, off.units), 1.0)
    total_per_unit = np.where(off.least > 0, ratio(off.total, off.least), 1.0)
    days = Days(
        squares / weight_per_unit**2,
        (mixed - usual * squares) / (total_per_unit * weight_per_unit),
        (totals - 2 * usual * mixed + usual**2 * squares) / total_per_unit**2,
    )
    return Counts(off.least, off.units), days


def _change(series: Series, looks: Looks, raised: Ints, bounds: Bounds | None) -> Change:
    """Describe the change at the last look that raised an alarm."""
    cell = int(looks.cells[raised[-1]])
    first_cell, contrast, evidence = _find_places(series, cell)
    contrast, scale = _put_on_scale(series, cell, first_cell, contrast, bounds)
    estimated = estimate(contrast, evidence, scale)
    is_up = contrast.size[estimated.best] > 0
    same_direction = raised[_last_reversal(looks.size[raised] > 0, is_up=bool(is_up)) :]
    times = series.cells.last[looks.cells[same_direction]]
    confirmed = np.flatnonzero(is_confirmed(times, looks.log_evidence[same_direction]))
    size, sigma = float(contrast.size[estimated.best]), math.sqrt(float(contrast.unit_variance[estimated.best]))
    sums, first = series.sums.sum(axis=1), series.starts[first_day_seen_on(series.day[cell])]
    before, after = (
        sums[:, first_cell[estimated.best]] - sums[:, first],
        sums[:, cell + 1] - sums[:, first_cell[estimated.best]],
    )
    days = series.day[first_cell[estimated.places]]
    return Change(
        direction="up" if is_up else "down",
        severity=severity_of(size / sigma),
        alarm_at=times[0].astype(datetime),
        seen_at=series.time(cell),
        confirmed_at=times[confirmed[0]].astype(datetime) if confirmed.size else None,
        first_day=series.date(int(series.day[first_cell[estimated.best]])),
        first_hour=series.time(int(first_cell[estimated.best])).replace(minute=0, second=0, microsecond=0),
        earliest_day=series.date(int(days.min())),
        latest_day=series.date(int(days.max())),
        size=size,
        size_interval=estimated.size,
        sigma=sigma,
        mean_before=float(contrast.before[estimated.best]) + series.origin,
        mean_after=float(contrast.after[estimated.best]) + series.origin,
        scores_before=round(before[SCORES]),
        scores_after=round(after[SCORES]),
        units_before=round(before[UNITS]),
        units_after=round(after[UNITS]),
        log_evidence=float(looks.log_evidence[raised[-1]]),
    )


def _find_places(series: Series, cell: int) -> tuple[Ints, Contrast, Floats]:
    """Return the cells at which a change may begin, in order, with the contrast and the log evidence of each at the look after `cell`."""
    day = series.day[cell]
    first_day_seen = int(first_day_seen_on(day))
    first = first_day_seen + series.reference_days
    has_days = series.days_between(np.array([first_day_seen]), np.arange(first, day + 1)) >= FEWEST_DAYS
    first_cell = np.unique(series.starts[first : day + 1][has_days])
    first_cell = first_cell[first_cell <= cell]
    _, evidence = contrasts_at(series, cell, first_cell)
    likeliest = int(series.day[first_cell[int(np.argmax(evidence))]])
    nearby_cells = np.arange(max(first_cell[0], series.starts[max(first, likeliest - _FINE_DAYS)]), cell + 1)
    first_cell = np.union1d(first_cell, nearby_cells[series.day[nearby_cells] <= likeliest + _FINE_DAYS])
    _, evidence = contrasts_at(series, cell, first_cell)
    # All candidates use the variance of the likeliest one; otherwise their evidence would differ by how well each variance is known.
    contrast, evidence = contrasts_at(series, cell, first_cell, int(np.argmax(evidence)))
    usable = contrast.is_usable
    # A change that first shows in a cell began after the previous cell, so the first cell after a weekend represents the whole weekend.
    since_previous = np.diff(series.cells.last[first_cell], prepend=series.cells.last[first_cell[0] - 1]).astype(np.float64)
    return first_cell[usable], contrast.where(usable), (evidence + np.log(np.maximum(1.0, since_previous)))[usable]


def contrasts_at(series: Series, cell: int, first_cell: Ints, reference: int | None = None) -> tuple[Contrast, Floats]:
    """Return the contrasts and log evidence of the look after `cell` for changes that begin at each of some cells.

    With `reference`, the index of one of the changes, the variance measured for that one is used for all.
    """
    day = np.full(len(first_cell), series.day[cell])
    candidates = _Candidates(day, first_cell, first_day_seen_on(day), np.ones(len(first_cell)))
    normal = _normal_states(series, candidates, reference)
    return _weigh_pairs(
        series, candidates, normal, _Pairs(np.full(len(first_cell), cell), np.arange(len(first_cell))), reference
    )


def _put_on_scale(
    series: Series, cell: int, first_cell: Ints, contrast: Contrast, bounds: Bounds | None
) -> tuple[Contrast, Scale | None]:
    """Return the contrasts and the scale of their means; those of a share are its plain counts, which people can check."""
    if series.is_share:
        first = np.full(len(first_cell), series.starts[first_day_seen_on(series.day[cell])])
        return of_counts(
            contrast, series.counts(first, first_cell), series.counts(first_cell, np.full(len(first_cell), cell + 1))
        )
    return contrast, None if bounds is None else on_scale(contrast, bounds, series.origin)


def of_counts(contrast: Contrast, before: Counts, after: Counts) -> tuple[Contrast, Scale]:
    """Return the contrasts with plain shares as means, and their scale.

    If hours and days vary more than independent runs would, the number of effective runs is reduced accordingly.
    """
    before_side, after_side = (
        Side(counts.having / counts.of, counts.of / np.maximum(1.0, ratio(variance, units)))
        for counts, variance, units in (
            (before, contrast.variance_before, contrast.unit_before),
            (after, contrast.variance_after, contrast.unit_after),
        )
    )
    return contrast._replace(before=before_side.mean, after=after_side.mean), Scale(before_side, after_side)


def on_scale(contrast: Contrast, bounds: Bounds, origin: float) -> Scale:
    """Return the scale of bounded scores, whose means are measured from `origin`.

    A share p of n counts has the variance p (1 - p) / n, so a mean with the variance v is worth p (1 - p) / v counts.
    """
    low, width = bounds[0], bounds[1] - bounds[0]

    def side(mean: Floats, variance: Floats, units: Floats) -> Side:
        share = np.clip((mean + origin - low) / width, 0.0, 1.0)  # rounding may push a mean off the scale
        inner = (share * units + _PRIOR) / (units + 2 * _PRIOR)
        return Side(share, inner * (1 - inner) * width**2 / variance)

    return Scale(
        side(contrast.before, contrast.variance_before, contrast.units_before),
        side(contrast.after, contrast.variance_after, contrast.units_after),
        width,
    )


def estimate(contrast: Contrast, log_evidence: Floats, scale: Scale | None = None) -> Estimate:
    """Estimate when the change began and how large it is from the usable places in order, of which there is at least one.

    Of equally probable places the latest is the best. Without a `scale`, scores are unbounded.
    """
    weights = np.exp(log_evidence - log_evidence.max())
    probabilities = weights / weights.sum()
    ranking = np.lexsort((-np.arange(len(probabilities)), -probabilities))
    count = np.searchsorted(np.cumsum(probabilities[ranking]), CONFIDENCE) + 1
    best = int(ranking[0])
    width = t_quantile(1 - _TAIL, float(contrast.freedom[best]))
    size = (
        _size_interval(contrast, probabilities, width)
        if scale is None
        else _size_interval_on_scale(scale, probabilities, width)
    )
    return Estimate(best, np.sort(ranking[:count]), size)


def _size_interval(contrast: Contrast, shares: Floats, width: float) -> Interval:
    """Return the interval of a mixture of t distributions, by its first two moments."""
    centre = float((shares * contrast.size).sum())
    variance = float((shares * (contrast.variance + (contrast.size - centre) ** 2)).sum())
    half = width * float(np.sqrt(variance))
    return Interval(centre - half, centre + half)


def _size_interval_on_scale(scale: Scale, shares: Floats, width: float) -> Interval:
    """Return the interval of a mixture of Newcombe's intervals, with 2.5 % of the mixture beyond each end.

    The mixture reaches no farther than its widest component, so it stays on the scale. Each side of a component is taken to be half of a
    normal distribution.
    """
    is_relevant = shares > _NEGLIGIBLE * shares.max()
    shares = shares[is_relevant] / shares[is_relevant].sum()
    before, after = (Side(side.mean[is_relevant], side.of[is_relevant]) for side in scale[:2])
    below, above = apart(*((side.mean, *wilson(side.mean, side.of, width)) for side in (before, after)))
    size, errors = after.mean - before.mean, _NORMAL.inv_cdf(1 - _TAIL)

    def probability_below(value: float) -> float:
        deviation = value - size
        standard_errors = errors * deviation / np.maximum(np.where(deviation < 0, below, above), np.finfo(np.float64).tiny)
        return sum(float(share) * _NORMAL.cdf(float(value)) for share, value in zip(shares, standard_errors, strict=True))

    lowest, highest = float((size - below).min()), float((size + above).max())
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
    """Return the mask of the looks of one alarm that confirm it: by `CONFIRMED`, or a day later by `DAY_LATER_EVIDENCE`.

    The looks are given by their times and their log evidence.
    """
    is_certain = log_evidence >= math.log(CONFIRMED)
    is_stable = (log_evidence >= math.log(DAY_LATER_EVIDENCE)) & (times - times[0] >= np.timedelta64(DAY_LATER_HOURS, "h"))
    return is_certain | is_stable  # type: ignore[no-any-return]


def find_change(
    units: Cells | Iterable[Unit],
    as_of: date,
    *,
    reference: Reference = NO_DECISION,
    is_share: bool = False,
    bounds: Bounds | None = None,
) -> Change | None:
    """Return the change found at the end of the day `as_of`; see `standing` for the parameters."""
    return standing(units, as_of, reference=reference, is_share=is_share, bounds=bounds).change


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
    """The means on one side of a change, on a scale from 0 to 1, one element per place."""

    mean: Floats
    of: Floats
    """The number of independent counts whose share would have the same variance."""


class Scale(NamedTuple):
    """Both sides of a change on a scale, and the width of the scale in points."""

    before: Side
    after: Side
    width: float = 1.0


class Estimate(NamedTuple):
    """The estimate of a change."""

    best: int
    """The most probable place, as an index."""
    places: Ints
    """The places in the interval of the first day, as indexes, in order."""
    size: Interval
    """The interval of the difference of the means."""
