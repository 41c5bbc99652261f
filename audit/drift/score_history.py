"""Looks at a series of scores: after each hour with sessions, what came before it says to a change of the mean on each day.

A look depends on what ended up to it and on nothing later, so a check that comes late finds what an earlier one would have found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.drift.cells import Flags, Floats, Ints
from audit.drift.change_evidence import Contrast, Later, Ranges, contrast, log_evidence, most_log_evidence
from audit.drift.count_evidence import Counts, Days, alike, among_alike, log_count_evidence
from audit.drift.series import BLOCK_SQUARES, DAY_MIXED, DAY_SQUARES, DAY_TOTALS, SQUARES, Off, Series
from audit.drift.variation import Normal, Stretch, normal_before, ratio
from schemas.lazy.numpy import np

if TYPE_CHECKING:
    from schemas.lazy.numpy import NDArray


HISTORY_DAYS = 400
"""A look sees so many UTC days, its own included: an undecided change is seen for a year, then the new level is normal."""
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


class _Tried(NamedTuple):
    """The changes that the looks of some days of one series try, in the order of the days."""

    look_day: Ints
    begun: Ints
    """The first cell of the change."""
    start: Ints
    """First day that the looks see."""
    stands_for: Floats


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
    found, evidence = _weighed(series, tried, normal, pairs)
    starts, stands_for = pairs.starts, tried.stands_for[pairs.row]
    terms = evidence + np.log(stands_for)
    chance = np.log(np.add.reduceat(stands_for, starts))
    best = pairs.of_each(np.maximum.reduceat(terms, starts))
    likeliest = np.maximum.reduceat(np.where(terms == best, np.arange(len(terms)), 0), starts)
    return Looks(pairs.cell[starts], np.maximum(0.0, np.logaddexp.reduceat(terms, starts)), chance, found.size[likeliest])


def contrasts_at(series: Series, cell: int, begun: Ints, reference: int | None = None) -> tuple[Contrast, Floats]:
    """Return a look's contrasts for a change from each of some cells on, and the logarithms of their evidence.

    With `reference`, the index of one of the changes, all of them are weighed by the variance measured for that one.
    """
    day = np.full(len(begun), series.day[cell])
    tried = _Tried(day, begun, first_seen(day), np.ones(len(begun)))
    normal = _normal(series, tried, reference)
    return _weighed(series, tried, normal, _Pairs(np.full(len(begun), cell), np.arange(len(begun))), reference)


def first_seen(day: Ints) -> Ints:
    """The first day that the looks of a day see."""
    return np.maximum(0, day - HISTORY_DAYS + 1)


def _tried(series: Series, days: Ints) -> _Tried:
    ages, stands_for = np.array(_AGES).T
    look_day, age = np.repeat(days, len(ages)), np.tile(ages, len(days))
    start = first_seen(look_day)
    day = np.maximum(0, look_day - age)
    begun = series.starts[day]
    kept = (look_day - age >= start + series.reference_days) & (series.days_between(start, day) >= FEWEST_DAYS)
    return _Tried(look_day[kept], begun[kept], start[kept], np.tile(stands_for, len(days))[kept])


def _paired(series: Series, tried: _Tried) -> _Pairs:
    """Each cell of the days of looks with each change that is tried on its day."""
    days = np.unique(tried.look_day)
    cells = np.flatnonzero(np.isin(series.day, days))
    first, end = (np.searchsorted(tried.look_day, series.day[cells], side=side) for side in ("left", "right"))
    counts = end - first
    return _Pairs(np.repeat(cells, counts), np.arange(counts.sum()) + np.repeat(end - np.cumsum(counts), counts))


def _normal(series: Series, tried: _Tried, reference: int | None = None) -> Normal:
    """Return the normal state before each change."""
    begun, day = tried.begun, _days(series, tried)
    first, lately = series.starts[tried.start], series.starts[np.maximum(tried.start, day - RECENT_DAYS)]
    until, daily = series.sums[..., begun], series.daily[..., day]
    before = Stretch(until - series.sums[..., first], daily - series.daily[..., tried.start])
    settled = Stretch(series.sums[..., series.starts[tried.look_day]] - until, series.daily[..., tried.look_day] - daily)
    return normal_before(before, until - series.sums[..., lately], settled, reference)


def _may_reach(least: float, series: Series, tried: _Tried, normal: Normal, pairs: _Pairs) -> Flags:
    """Tell which of the pairs are of looks that may have so much evidence; those of the last look are among them."""
    terms = most_log_evidence(normal, _later(series.sums[: SQUARES + 1], tried, pairs), pairs.row)
    terms += np.log(tried.stands_for[pairs.row])
    may = np.logaddexp.reduceat(terms, pairs.starts) >= least - _ROUNDING
    may[-1] = True
    return pairs.of_each(may)


def _weighed(
    series: Series, tried: _Tried, normal: Normal, pairs: _Pairs, reference: int | None = None
) -> tuple[Contrast, Floats]:
    """Contrast the normal state with the units from each change on, up to each cell; add the logarithms of the evidence."""
    begun, day, (cell, row) = tried.begun, _days(series, tried), pairs
    daily = series.daily[[BLOCK_SQUARES, DAY_SQUARES]][..., day]
    so_far = np.where(begun == series.starts[day], daily, series.partial[..., begun - 1])
    partial = np.take(series.partial, cell, axis=-1) - np.take(so_far, row, axis=-1)
    found = contrast(normal, Later(_later(series.sums, tried, pairs), partial, row), reference)
    low, high = series.range(series.starts[tried.start], begun - 1)
    ranges = (low[row], high[row]), series.range(begun[row], cell)
    if series.is_share:
        most = _by_counts(series, tried, pairs, partial[1].sum(axis=0))
    else:
        most = _by_rare_values(tried, pairs, found, ranges[0], series=series, squares=partial[1].sum(axis=0))
    return found, np.minimum(log_evidence(found, *ranges), most)


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


def _by_rare_values(
    tried: _Tried, pairs: _Pairs, found: Contrast, before: Ranges, *, series: Series, squares: Floats
) -> Floats:
    """The logarithms of the evidence of scores of which nearly all have one value before a change; infinity where they vary.

    Units count by whether they have another value, before it and after it: see `Off`. `before` is the range of the units before,
    `squares` are those of the days after each change.
    """
    usual = np.where(2 * found.before > before[0] + before[1], before[1], before[0])
    begun, end = tried.begun[pairs.row], pairs.cell + 1
    earlier = _off(series, series.starts[tried.start[pairs.row]], begun, usual)
    most = np.full(len(usual), math.inf)
    where = np.flatnonzero(found.is_usable & (earlier.least < KNOWN))
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
    one = np.where(off.least > 0, ratio(off.total, off.least), 1.0)
    days = Days(
        squares / each**2,
        (mixed - usual * squares) / (one * each),
        (totals - 2 * usual * mixed + usual**2 * squares) / one**2,
    )
    return Counts(off.least, off.units), days


def _sums_of_days(series: Series, first: Ints, last: Ints) -> Days:
    """Return the sums over the days from each `first` to the one before `last`, of totals."""
    columns = series.daily[[DAY_SQUARES, DAY_MIXED, DAY_TOTALS]].sum(axis=1)
    return Days(*(columns[:, last] - columns[:, first]))


def _later(sums: Floats, tried: _Tried, pairs: _Pairs) -> Floats:
    """Return the running sums of the units from each change on, up to each cell."""
    return np.take(sums, pairs.cell + 1, axis=-1) - np.take(sums[..., tried.begun], pairs.row, axis=-1)


def _days(series: Series, tried: _Tried) -> Ints:
    """The day of the first cell of each change."""
    return series.day[np.minimum(tried.begun, len(series.day) - 1)]
