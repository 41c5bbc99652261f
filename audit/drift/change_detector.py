"""Drift by evidence: whether the mean of a series has changed, checked after every hour with sessions, since when, and by how much.

After an hour, each day of the last 400 is a day on which the mean may have changed. For each, `audit.drift.change_evidence` says how much
more probable the scores are with that change than without any; the sum over the days is the evidence (Shiryaev and Roberts' sum, of
e-values that start again every day; Shin, Ramdas and Rinaldo 2023, "E-detectors: a nonparametric framework for sequential change
detection"). Without a change each term is 1 on average, so the sum grows by no more than 1 a day, and it takes at least `SUSPECTED` days
on average until it has reached `SUSPECTED`, however often one looks. A look depends only on sessions that ended by then, so a check
that runs late finds what an earlier one would have found.

The first day and the size are estimated with intervals. Every hour at which the change may have begun is weighted by how probable it
makes the scores. The interval of the first day spans the fewest hours that together hold 95 % of the probability; the interval of the
size mixes what each hour says of the size. For scores on a bounded scale it lies within what the scale allows without being cut off:
means are treated as shares of as many counts as would vary as much.
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
    alike,
    among_alike,
    cells_of,
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
"""Days to a false alarm of one series, at least, on average: a project's four tiers have one in two years."""
CONFIRMED = 200_000.0
"""Evidence from which on a change is confirmed; `STANDS_HOURS` later less will do."""
STANDS = 30_000.0
"""Evidence that confirms a change which was beyond doubt a day before."""
STANDS_HOURS = 24
CHECKED_DAYS = 7
"""The looks of so many days are taken again at each check, so that none is missed while the process is down."""

HISTORY_DAYS = 400
"""A look sees so many UTC days, its own included: an undecided change is seen for a year, then the new level is normal."""
WINDOW_DAYS = HISTORY_DAYS + CHECKED_DAYS - 1
"""The number of UTC days of units that a check can use, its own day included."""
_FINE_DAYS = 14
"""So many days before a look, and on either side of the likeliest day, every hour is tried as the first one."""
FEWEST_DAYS = 6
"""At least so many of them have sessions: what days differ by cannot be told from fewer."""
RECENT_DAYS = 7
"""So many days before a change say how much units vary of late."""
KNOWN = 10.0
"""Where fewer units than this lie off the usual value before a change, their sums do not tell what units vary by."""
_AGES = (
    *((age, 1) for age in range(14)),
    *((age, 2) for age in range(15, 31, 2)),
    *((age, 4) for age in range(33, 60, 4)),
    *((age, 8) for age in range(65, 128, 8)),
    *((age, 16) for age in range(137, HISTORY_DAYS, 16)),
)
"""Days since a change that are tried, each with how many days it stands for: how long ago it was matters less, the longer it is ago."""
_ROUNDING = 1e-6

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL = NormalDist()
_NEGLIGIBLE = 1e-3
"""Hours so much less probable than the most probable one do not count in the interval of the size."""
_HALVINGS = 40
Bounds = tuple[float, float]
"""The least and the greatest score there can be."""
_PRIOR = 0.5
"""Of a unit at the middle of the scale: a mean at its end is taken to be so much less certain than its units say."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95 % probability, ends included."""

    low: float
    high: float


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


def looks_of(series: Series, days: Iterable[int], least: float = -math.inf) -> Looks:
    """The looks of some days, in order; but for the last one those are left out that cannot have so much `log_evidence`."""
    tried = _tried(series, np.array(list(days), dtype=np.int64))
    pairs = _paired(series, tried)
    if not pairs.cell.size:
        return Looks(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    normal = _normal(series, tried)
    if least > -math.inf:
        may = _may_reach(least, series, tried, normal, pairs)
        pairs = _Pairs(*(part[may] for part in pairs))
    contrasts, evidence = _weighed(series, tried, normal, pairs)
    starts, stands_for = pairs.starts, tried.stands_for[pairs.row]
    terms = evidence + np.log(stands_for)
    chance = np.log(np.add.reduceat(stands_for, starts))
    best = pairs.of_each(np.maximum.reduceat(terms, starts))
    likeliest = np.maximum.reduceat(np.where(terms == best, np.arange(len(terms)), 0), starts)
    return Looks(pairs.cell[starts], np.maximum(0.0, np.logaddexp.reduceat(terms, starts)), chance, contrasts.size[likeliest])


def _tried(series: Series, days: Ints) -> _Tried:
    ages, stands_for = np.array(_AGES).T
    look_day, age = np.repeat(days, len(ages)), np.tile(ages, len(days))
    start = first_seen(look_day)
    day = np.maximum(0, look_day - age)
    begun = series.starts[day]
    kept = (look_day - age >= start + series.reference_days) & (series.days_between(start, day) >= FEWEST_DAYS)
    return _Tried(look_day[kept], begun[kept], start[kept], np.tile(stands_for, len(days))[kept])


class _Tried(NamedTuple):
    """The changes that the looks of some days of one series try, in the order of the days."""

    look_day: Ints
    begun: Ints
    """The first cell of the change."""
    start: Ints
    """First day that the looks see."""
    stands_for: Floats


def first_seen(day: Ints) -> Ints:
    """The first day that the looks of a day see."""
    return np.maximum(0, day - HISTORY_DAYS + 1)


def _paired(series: Series, tried: _Tried) -> _Pairs:
    """Each cell of the days of looks with each change that is tried on its day."""
    days = np.unique(tried.look_day)
    cells = np.flatnonzero(np.isin(series.day, days))
    first, end = (np.searchsorted(tried.look_day, series.day[cells], side=side) for side in ("left", "right"))
    counts = end - first
    return _Pairs(np.repeat(cells, counts), np.arange(counts.sum()) + np.repeat(end - np.cumsum(counts), counts))


class _Pairs(NamedTuple):
    """Looks with what they try, the pairs of a look one after the other."""

    cell: Ints
    """The cell after which the look is taken."""
    row: Ints
    """The place of the change."""

    @property
    def starts(self) -> Ints:
        """The index of the first pair of each look."""
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    def of_each(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of looks, for each of their pairs."""
        return np.repeat(values, np.diff(self.starts, append=len(self.cell)))


def _normal(series: Series, tried: _Tried, reference: int | None = None) -> Normal:
    """Return the normal state before each change."""
    begun, day = tried.begun, _days(series, tried)
    first, lately = series.starts[tried.start], series.starts[np.maximum(tried.start, day - RECENT_DAYS)]
    until, daily = series.sums[..., begun], series.daily[..., day]
    before = Stretch(until - series.sums[..., first], daily - series.daily[..., tried.start])
    settled = Stretch(series.sums[..., series.starts[tried.look_day]] - until, series.daily[..., tried.look_day] - daily)
    return normal_before(before, until - series.sums[..., lately], settled, reference)


def _days(series: Series, tried: _Tried) -> Ints:
    """The day of the first cell of each change."""
    return series.day[np.minimum(tried.begun, len(series.day) - 1)]


def _may_reach(least: float, series: Series, tried: _Tried, normal: Normal, pairs: _Pairs) -> Flags:
    """Return which of the pairs are of looks that may have so much evidence; those of the last look are among them."""
    terms = most_log_evidence(normal, _later(series.sums[: SQUARES + 1], tried, pairs), pairs.row)
    terms += np.log(tried.stands_for[pairs.row])
    may = np.logaddexp.reduceat(terms, pairs.starts) >= least - _ROUNDING
    may[-1] = True
    return pairs.of_each(may)


def _later(sums: Floats, tried: _Tried, pairs: _Pairs) -> Floats:
    """Return the running sums of the units from each change on, up to each cell."""
    return np.take(sums, pairs.cell + 1, axis=-1) - np.take(sums[..., tried.begun], pairs.row, axis=-1)


def _weighed(
    series: Series, tried: _Tried, normal: Normal, pairs: _Pairs, reference: int | None = None
) -> tuple[Contrast, Floats]:
    """Contrast the normal state with the units from each change on, up to each cell; add the logarithms of the evidence."""
    begun, day, (cell, row) = tried.begun, _days(series, tried), pairs
    daily = series.daily[[BLOCK_SQUARES, DAY_SQUARES]][..., day]
    so_far = np.where(begun == series.starts[day], daily, series.partial[..., begun - 1])
    partial = np.take(series.partial, cell, axis=-1) - np.take(so_far, row, axis=-1)
    contrasts = contrast(normal, Later(_later(series.sums, tried, pairs), partial, row), reference)
    low, high = series.range(series.starts[tried.start], begun - 1)
    ranges = (low[row], high[row]), series.range(begun[row], cell)
    if series.is_share:
        most = _by_counts(series, tried, pairs, partial[1].sum(axis=0))
    else:
        most = _by_rare_values(tried, pairs, contrasts, ranges[0], series=series, squares=partial[1].sum(axis=0))
    return contrasts, np.minimum(log_evidence(contrasts, *ranges), most)


def _by_counts(series: Series, tried: _Tried, pairs: _Pairs, squares: Floats) -> Floats:
    """The logarithms of the evidence of the counts of a share: the normal approximation may say less, never more.

    `squares` are those of the days after each change.
    """
    day = _days(series, tried)
    before = series.counts(series.starts[tried.start], tried.begun)
    settled = series.counts(series.starts[day], series.starts[tried.look_day])
    correlation = alike(
        (
            (before, _sums_of_days(series, tried.start, day)),
            (settled, _sums_of_days(series, day, tried.look_day)),
        )
    )[pairs.row]
    after = series.counts(tried.begun[pairs.row], pairs.cell + 1)
    counted = log_count_evidence(Counts(*(part[pairs.row] for part in before)), after)
    return among_alike(counted, correlation, squares / np.maximum(after.of, 1))


def _sums_of_days(series: Series, first: Ints, last: Ints) -> Days:
    """Return the sums over the days from each `first` to the one before `last`, of totals."""
    columns = series.daily[[DAY_SQUARES, DAY_MIXED, DAY_TOTALS]].sum(axis=1)
    return Days(*(columns[:, last] - columns[:, first]))


def _by_rare_values(
    tried: _Tried, pairs: _Pairs, contrasts: Contrast, before: Ranges, *, series: Series, squares: Floats
) -> Floats:
    """The logarithms of the evidence of scores of which nearly all have one value before a change; infinity where they vary.

    Units count by whether they have another value, before it and after it: see `Off`. `before` is the range of the units before,
    `squares` are those of the days after each change.
    """
    usual = np.where(2 * contrasts.before > before[0] + before[1], before[1], before[0])
    begun, end = tried.begun[pairs.row], pairs.cell + 1
    earlier = _off(series, series.starts[tried.start[pairs.row]], begun, usual)
    most = np.full(len(usual), math.inf)
    where = np.flatnonzero(contrasts.is_usable & (earlier.least < KNOWN))
    if not where.size:
        return most
    usual, row = usual[where], pairs.row[where]
    later = _off(series, begun[where], end[where], usual)
    day = _days(series, tried)[row]
    whole = ((tried.start[row], day), (day, tried.look_day[row]))
    correlation = alike(_as_share(series, first, last, usual) for first, last in whole)
    a_day = ratio(squares[where] * later.units, later.weight**2)
    counted = log_count_evidence(Off(*(one[where] for one in earlier)).counts, later.counts)
    most[where] = among_alike(counted, correlation, a_day)
    return most


def _off(series: Series, first: Ints, end: Ints, usual: Floats) -> Off:
    sums = series.sums.sum(axis=1)
    return Off.of(sums[:, end] - sums[:, first], usual)


def _as_share(series: Series, first: Ints, last: Ints, usual: Floats) -> tuple[Counts, Days]:
    """Return the units of whole days as counts of those off the usual value, with sums by day."""
    off = _off(series, series.starts[first], series.starts[last], usual)
    squares, mixed, totals = _sums_of_days(series, first, last)
    each = np.where(off.units > 0, ratio(off.weight, off.units), 1.0)
    unit = np.where(off.least > 0, ratio(off.total, off.least), 1.0)
    days = Days(
        squares / each**2,
        (mixed - usual * squares) / (unit * each),
        (totals - 2 * usual * mixed + usual**2 * squares) / unit**2,
    )
    return Counts(off.least, off.units), days


def _change(series: Series, looks: Looks, raised: Ints, bounds: Bounds | None) -> Change:
    """Describe a change at the last of the looks that raised an alarm."""
    cell = int(looks.cells[raised[-1]])
    begun, contrast, evidence = _places(series, cell)
    contrast, scale = _scaled(series, cell, begun, contrast, bounds)
    estimated = estimate(contrast, evidence, scale)
    is_up = contrast.size[estimated.best] > 0
    same = raised[_last_other(looks.size[raised] > 0, is_up=bool(is_up)) :]
    times = series.cells.last[looks.cells[same]]
    sure = np.flatnonzero(is_confirmed(times, looks.log_evidence[same]))
    size, sigma = float(contrast.size[estimated.best]), math.sqrt(float(contrast.unit_variance[estimated.best]))
    sums, first = series.sums.sum(axis=1), series.starts[first_seen(series.day[cell])]
    before, after = sums[:, begun[estimated.best]] - sums[:, first], sums[:, cell + 1] - sums[:, begun[estimated.best]]
    days = series.day[begun[estimated.places]]
    return Change(
        direction="up" if is_up else "down",
        severity=severity_of(size / sigma),
        alarm_at=times[0].astype(datetime),
        seen_at=series.time(cell),
        confirmed_at=times[sure[0]].astype(datetime) if sure.size else None,
        first_day=series.date(int(series.day[begun[estimated.best]])),
        first_hour=series.time(int(begun[estimated.best])).replace(minute=0, second=0, microsecond=0),
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


def _places(series: Series, cell: int) -> tuple[Ints, Contrast, Floats]:
    """The cells that may be the first one of a change, in order, with what a look says to each and how long it stands for."""
    day = series.day[cell]
    start = int(first_seen(day))
    first = start + series.reference_days
    has_days = series.days_between(np.array([start]), np.arange(first, day + 1)) >= FEWEST_DAYS
    begun = np.unique(series.starts[first : day + 1][has_days])
    begun = begun[begun <= cell]
    _, evidence = contrasts_at(series, cell, begun)
    likeliest = int(series.day[begun[int(np.argmax(evidence))]])
    fine = np.arange(max(begun[0], series.starts[max(first, likeliest - _FINE_DAYS)]), cell + 1)
    begun = np.union1d(begun, fine[series.day[fine] <= likeliest + _FINE_DAYS])
    _, evidence = contrasts_at(series, cell, begun)
    # Weighed by variances of their own, places would be told apart by how well each variance happens to be known.
    contrast, evidence = contrasts_at(series, cell, begun, int(np.argmax(evidence)))
    usable = contrast.is_usable
    # A change that first shows in a cell began after the one before it: the cell after a weekend stands for the whole weekend.
    since_previous = np.diff(series.cells.last[begun], prepend=series.cells.last[begun[0] - 1]).astype(np.float64)
    return begun[usable], contrast.where(usable), (evidence + np.log(np.maximum(1.0, since_previous)))[usable]


def contrasts_at(series: Series, cell: int, begun: Ints, reference: int | None = None) -> tuple[Contrast, Floats]:
    """Return a look's contrasts for a change from each of some cells on, and the logarithms of their evidence.

    With `reference`, the index of one of the changes, all of them are weighed by the variance measured for that one.
    """
    day = np.full(len(begun), series.day[cell])
    tried = _Tried(day, begun, first_seen(day), np.ones(len(begun)))
    normal = _normal(series, tried, reference)
    return _weighed(series, tried, normal, _Pairs(np.full(len(begun), cell), np.arange(len(begun))), reference)


def _scaled(series: Series, cell: int, begun: Ints, contrast: Contrast, bounds: Bounds | None) -> tuple[Contrast, Scale | None]:
    """The contrasts with the scale that their means lie on; of a share, its plain counts, which are what people count."""
    if series.is_share:
        first = np.full(len(begun), series.starts[first_seen(series.day[cell])])
        return of_counts(contrast, series.counts(first, begun), series.counts(begun, np.full(len(begun), cell + 1)))
    return contrast, None if bounds is None else on_scale(contrast, bounds, series.origin)


def of_counts(contrast: Contrast, before: Counts, after: Counts) -> tuple[Contrast, Scale]:
    """Return the contrasts of shares with the plain shares for means, and their scale.

    Where hours and days differ by more than their runs explain, all runs count for less by as much.
    """
    first, later = (
        Side(counts.having / counts.of, counts.of / np.maximum(1.0, ratio(variance, units)))
        for counts, variance, units in (
            (before, contrast.variance_before, contrast.unit_before),
            (after, contrast.variance_after, contrast.unit_after),
        )
    )
    return contrast._replace(before=first.mean, after=later.mean), Scale(first, later)


def on_scale(contrast: Contrast, bounds: Bounds, origin: float) -> Scale:
    """Return the scale of bounded scores, whose means are measured from `origin`.

    A share p of n counts varies by p (1 - p) / n, so a mean that varies by v is worth p (1 - p) / v of them.
    """
    low, width = bounds[0], bounds[1] - bounds[0]

    def side(mean: Floats, variance: Floats, units: Floats) -> Side:
        share = np.clip((mean + origin - low) / width, 0.0, 1.0)  # scores lie on the scale; their sums are rounded
        inner = (share * units + _PRIOR) / (units + 2 * _PRIOR)
        return Side(share, inner * (1 - inner) * width**2 / variance)

    return Scale(
        side(contrast.before, contrast.variance_before, contrast.units_before),
        side(contrast.after, contrast.variance_after, contrast.units_after),
        width,
    )


def estimate(contrast: Contrast, log_evidence: Floats, scale: Scale | None = None) -> Estimate:
    """Estimate when the change began and how large it is, from places in order, at least one of them usable.

    Of two equally probable places the later one is best. Without a `scale`, scores may be any numbers.
    """
    weights = np.exp(log_evidence - log_evidence.max())
    shares = weights / weights.sum()
    ranked = np.lexsort((-np.arange(len(shares)), -shares))
    held = np.searchsorted(np.cumsum(shares[ranked]), CONFIDENCE) + 1
    best = int(ranked[0])
    width = t_quantile(1 - _TAIL, float(contrast.freedom[best]))
    size = _size(contrast, shares, width) if scale is None else _size_on(scale, shares, width)
    return Estimate(best, np.sort(ranked[:held]), size)


def _size(contrast: Contrast, shares: Floats, width: float) -> Interval:
    """The interval of a mixture of t distributions, by its first two moments."""
    centre = float((shares * contrast.size).sum())
    spread = float((shares * (contrast.variance + (contrast.size - centre) ** 2)).sum())
    half = width * float(np.sqrt(spread))
    return Interval(centre - half, centre + half)


def _size_on(scale: Scale, shares: Floats, width: float) -> Interval:
    """The interval of a mixture of Newcombe's intervals: each end is where 2.5 % of the mixture lie beyond.

    A mixture has no more beyond an end than the component that reaches farthest, so it stays on the scale as they do. Within each one,
    either side of the estimate is taken for half of a normal distribution.
    """
    kept = shares > _NEGLIGIBLE * shares.max()
    shares = shares[kept] / shares[kept].sum()
    before, after = (Side(side.mean[kept], side.of[kept]) for side in scale[:2])
    below, above = apart(*((side.mean, *wilson(side.mean, side.of, width)) for side in (before, after)))
    size, errors = after.mean - before.mean, _NORMAL.inv_cdf(1 - _TAIL)

    def beneath(value: float) -> float:
        off = value - size
        far = errors * off / np.maximum(np.where(off < 0, below, above), np.finfo(np.float64).tiny)
        return sum(float(share) * _NORMAL.cdf(float(one)) for share, one in zip(shares, far, strict=True))

    lowest, highest = float((size - below).min()), float((size + above).max())
    low = _halved(lowest, highest, lambda value: beneath(value) < _TAIL)
    high = _halved(lowest, highest, lambda value: beneath(value) < 1 - _TAIL)
    return Interval(low * scale.width, high * scale.width)


def _halved(low: float, high: float, is_below: Callable[[float], bool]) -> float:
    """The place in a range up to which a condition holds."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def _last_other(ups: Flags, *, is_up: bool) -> int:
    """From which look on all are of one direction; that of the last one where the estimate says otherwise than all of them."""
    others = np.flatnonzero(ups != is_up)
    return min(int(others[-1]) + 1, len(ups) - 1) if others.size else 0


def is_confirmed(times: NDArray[np.datetime64], log_evidence: Floats) -> Flags:
    """Return which looks of one alarm confirm it, by much evidence, or by enough evidence that stands for a day.

    Looks are given by their times and the logarithms of their evidence.
    """
    sure = log_evidence >= math.log(CONFIRMED)
    stands = (log_evidence >= math.log(STANDS)) & (times - times[0] >= np.timedelta64(STANDS_HOURS, "h"))
    return sure | stands  # type: ignore[no-any-return]


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


class Looks(NamedTuple):
    """The looks of some days, an hour each, oldest first."""

    cells: Ints
    """The cell after which each look is taken."""
    log_evidence: Floats
    """Logarithm of the evidence at each, summed over the days on which the mean may have changed; at least 0."""
    log_chance: Floats
    """Logarithm of what is to be expected of it when nothing has changed: 1 for each of the days."""
    size: Floats
    """Mean after less mean before the most probable of them."""


class Side(NamedTuple):
    """The means on one side of a change, one element per place, on a scale from 0 to 1."""

    mean: Floats
    of: Floats
    """The number of independent counts whose share would vary as much."""


class Scale(NamedTuple):
    """Both sides of a change on a scale, and how wide it is in points."""

    before: Side
    after: Side
    width: float = 1.0


class Estimate(NamedTuple):
    """The estimate of a change."""

    best: int
    """The most probable place, as an index."""
    places: Ints
    """The places of the interval of when it began, as indexes, in order."""
    size: Interval
    """The interval of the difference of the means."""
