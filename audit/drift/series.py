"""A series of scores as hourly sums: the same columns for ten sessions a day and for a hundred thousand.

1. Running sums make any stretch of days one subtraction.
2. The reference says which days count as normal. A decision that a change is "the new normal" moves it: it begins with the first day
   of that change. Days of a change that is over are cut out of it, so that a dip that was mended neither lowers what is expected nor
   hides the next one.
3. A change of a share has evidence from the counts themselves: right for two runs as for two thousand. Of `n0` runs before, `k0` had
   something, and of `n1` after, `k1`. If nothing changed, each order of the runs is as probable as any other, so with `K = k0 + k1` of
   `n = n0 + n1` the order that was seen has the probability 1 / C(n, K), whatever the share is. The alternative says nothing of the
   share before, so it gives its order 1 / C(n0, k0), and averages the share after over Jeffreys' prior, Beta(1/2, 1/2):

       e = B(k1 + 1/2, n1 - k1 + 1/2) / B(1/2, 1/2) * C(n, K) / C(n0, k0)

   For independent runs of any share p it is an e-value: its expectation is the sum over k1 of the Jeffreys probability of k1 times the
   probability that a binomial (n, p) lies between k1 and k1 + n0, which is at most 1. That is the exact test of both counts (Fisher
   1935) with a bet on what follows (Grünwald, de Heide and Koolen 2024, "Safe testing"): 2 of 2 after 0 of 30 are 186 to 1, where
   Fisher's test has 1 in 496. How it holds while one looks after every run is calculated, not proven:
   `docs/decisions/0082-shares-of-few-runs.md`.
4. Runs of one day are seldom independent: what breaks one breaks the next. The correlation is measured before the change, and after
   it over the days that are over, by how often another run of the same day has it if one has (the moments of a beta-binomial
   distribution). If that is too rare to know, runs of a day are taken to be a little alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from schemas.lazy_numpy import np

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

BLOCK_HOURS = 6
"""Hours of a block: what the hours of one day have in common is measured by blocks."""
STRATA = 2
"""Days from Monday to Friday, and weekends: each is compared with its like."""
UNITS, SCORES, WEIGHT, TOTAL, SQUARES, MIXED, TOTALS = range(7)
"""Columns of what cells add up to; see `Cells`."""
_ROUNDING = 1e-9
"""Of a score, squared: no unit is off by less."""
BLOCKS, BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS = range(4)
DAYS, DAY_SQUARES, DAY_MIXED, DAY_TOTALS = range(4, 8)
PAIRS, PAIR_SQUARES, PAIR_MIXED, PAIR_TOTALS = range(8, 12)
"""Columns of what days add up to: the same sums of the weights and totals of blocks and of days, and of pairs of days in a row."""

Floats: TypeAlias = "NDArray[np.float64]"
Ints: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"
_EPOCH = date(1970, 1, 1)

Span = tuple[date, date]
"""A span of days, the first and the last one included."""
REFERENCE_DAYS = 14
"""A change has at least so many days before it, to be compared with."""

ALIKE = 0.25
"""How much alike runs of one day are taken to be where nothing is known: the correlation of any two of them."""
EQUIVALENT_PAIRS = 4.0
"""The weight of that assumption, in pairs of runs of which one has it."""


class Off(NamedTuple):
    """Units off the usual value in stretches of a series, one element per stretch."""

    units: Floats
    """How many there are, those at the usual value among them."""
    weight: Floats
    total: Floats
    """Sum of weight x (score - usual value) of the units."""
    squared: Floats
    """Sum of the squares of the same."""

    @classmethod
    def of(cls, rows: Floats, usual: Floats | float) -> Off:
        """Return those of sums over units, in the order of a series' columns."""
        units, _, weight, total, squares, mixed, totals = rows
        squared = totals - 2 * usual * mixed + usual**2 * squares
        return cls(units, weight, total - usual * weight, np.where(squared > _ROUNDING * squares, squared, 0.0))

    @property
    def least(self) -> Floats:
        """No more than how many are off: of k numbers the squared sum is at most k times the sum of their squares (Cauchy, Schwarz)."""
        return np.where(self.squared > 0, self.total**2 / np.where(self.squared > 0, self.squared, 1.0), 0.0)

    @property
    def counts(self) -> Counts:
        """The units as whole numbers."""
        return Counts(*(np.rint(column).astype(np.int64) for column in (self.least, self.units)))


@dataclass(frozen=True, slots=True)
class Reference:
    """The days of a series that count."""

    since: date | None = None
    """The first day that counts, after the decision that a change is the new normal; None: all of them."""
    cut: tuple[Span, ...] = ()
    """The days of changes that are over, oldest first, apart from each other."""
    days: int = REFERENCE_DAYS
    """A change has at least so many days before it."""

    def counts(self, day: date) -> bool:
        """Return whether a day is to be looked at."""
        return (self.since is None or day >= self.since) and not self.cuts(day)

    def mask(self, days: Ints) -> Flags:
        """Return which of some days, counted from 1970, are to be looked at."""
        kept = np.ones(len(days), dtype=bool) if self.since is None else days >= day_number(self.since)
        for first, last in self.cut:
            kept &= (days < day_number(first)) | (days > day_number(last))
        return kept

    def cuts(self, day: date) -> bool:
        """Return whether a day belongs to a change that is over."""
        return any(first <= day <= last for first, last in self.cut)

    def cuts_into(self, first: date, last: date) -> bool:
        """Return whether a window, both ends included, holds days of a change that is over."""
        return any(begin <= last and first <= end for begin, end in self.cut)


def day_number(day: date) -> int:
    """A day as `Cells.days` counts it: UTC days since 1970."""
    return (day - _EPOCH).days


NO_DECISION = Reference()
"""The reference of a series on which nothing was decided: all its days count."""


class Series:
    """The cells of the days that count, by day; days are counted from the first one with a cell, totals measured from `origin`."""

    def __init__(
        self, cells: Cells, first: date, last: date, reference: Reference = NO_DECISION, *, is_share: bool = False
    ) -> None:
        kept = _kept(cells, first, last, reference)
        self.cells = kept
        self.reference_days = reference.days
        days = kept.days
        self.first_number = int(days[0]) if days.size else day_number(last)
        self.first = date_of(self.first_number)
        self.length = (last - self.first).days + 1
        self.day = days - self.first_number
        self.origin = float(kept.total[0] / kept.weight[0]) if days.size and not is_share else 0.0
        self.stratum = np.where((self.day + self.first_number + 3) % 7 >= 5, 1, 0)
        self.starts = np.searchsorted(self.day, np.arange(self.length + 1))
        """Where each day begins among the cells, and where the last one ends."""
        rows = rows_of(kept, self.origin)
        self.sums = _running(rows, self.stratum)
        """Of the cells before each, by stratum: (7, STRATA, cells + 1)."""
        self.is_share = is_share
        """True for counts: the weight of a unit is a number of runs, and its total how many of them have something."""
        self.partial = np.zeros((2, STRATA, len(days)))
        """Squares of blocks and of days up to each cell, the block and the day it is in as far as they have gone."""
        self.daily = self._daily(rows)
        """Of the days before each, by stratum: (12, STRATA, days + 1)."""
        self._low = _doubling(kept.low - self.origin, np.minimum)
        self._high = _doubling(kept.high - self.origin, np.maximum)

    def range(self, first: Ints, last: Ints) -> tuple[Floats, Floats]:
        """The least and the greatest mean of a unit from one cell to another, both included, from `origin`."""
        level = np.frexp(last - first + 1)[1] - 1
        second = last - (1 << level) + 1
        low, high = self._low, self._high
        return np.minimum(low[level, first], low[level, second]), np.maximum(high[level, first], high[level, second])

    def counts(self, first: Ints, end: Ints) -> Counts:
        """Of a share: the runs of the cells from each `first` to the one before `end`, and how many of them have it."""
        runs, having = (np.concatenate(([0.0], np.cumsum(column))) for column in (self.cells.weight, self.cells.total))
        return Counts(*(np.rint(sums[end] - sums[first]).astype(np.int64) for sums in (having, runs)))

    def days_between(self, first: Ints, end: Ints) -> Ints:
        """The number of days with sessions from each `first` to the one before `end`."""
        days = self.daily[DAYS].sum(axis=0)
        count: Ints = np.rint(days[end] - days[first]).astype(np.int64)
        return count

    def time(self, cell: int) -> datetime:
        """The time of the last unit of a cell."""
        at: datetime = self.cells.last[cell].astype(datetime)
        return at

    def date(self, day: int) -> date:
        """The date of a day."""
        return self.first + timedelta(days=day)

    def _daily(self, rows: Floats) -> Floats:
        hours = self.cells.last.astype("datetime64[h]").astype(np.int64) % 24
        blocks = _groups(rows, self.day * 24 + hours // BLOCK_HOURS)
        days = _groups(rows, self.day)
        daily = np.zeros((12, STRATA, self.length + 1))
        for grouped, offset in ((blocks, BLOCKS), (days, DAYS)):
            where = self.stratum[grouped.ends], self.day[grouped.ends] + 1
            np.add.at(daily[offset], where, 1.0)
            products = grouped.weight**2, grouped.weight * grouped.total, grouped.total**2
            for column, values in enumerate(products, offset + 1):
                np.add.at(daily[column], where, values)
        self._pairs(daily, days)
        whole = np.cumsum(daily, axis=-1)
        for level, grouped in enumerate((blocks, days)):
            self._so_far(whole, level, grouped)
        return whole

    def _pairs(self, daily: Floats, days: Grouped) -> None:
        """Products of days in a row of one stratum, at the later of them."""
        number, stratum = self.day[days.ends], self.stratum[days.ends]
        follows = np.flatnonzero((np.diff(number) == 1) & (np.diff(stratum) == 0))
        w0, w1, y0, y1 = days.weight[follows], days.weight[follows + 1], days.total[follows], days.total[follows + 1]
        where = stratum[follows + 1], number[follows + 1] + 1
        np.add.at(daily[PAIRS], where, 1.0)
        for column, values in enumerate((w0 * w1, (w0 * y1 + w1 * y0) / 2, y0 * y1), PAIRS + 1):
            np.add.at(daily[column], where, values)

    def _so_far(self, whole: Floats, level: int, grouped: Grouped) -> None:
        """The running squares with the block, or the day, that a cell is in as far as it has gone."""
        column = (BLOCK_SQUARES, DAY_SQUARES)[level]
        index = np.arange(len(self.day))
        group = np.searchsorted(grouped.ends, index)
        begun = np.concatenate(([0], grouped.ends[:-1] + 1))[group]
        running = np.concatenate(([0.0], np.cumsum(self.cells.weight)))
        weight = running[index + 1] - running[begun]
        closed = np.concatenate(([0.0], np.cumsum(grouped.weight**2)))
        first_of_day = np.searchsorted(grouped.ends, self.starts[self.day])
        earlier = closed[group] - closed[first_of_day]
        self.partial[level] = whole[column][:, self.day]
        self.partial[level, self.stratum, index] += earlier + weight**2


def _kept(cells: Cells, first: date, last: date, reference: Reference) -> Cells:
    """The cells of the days that count."""
    days = cells.days
    keep = (days >= day_number(first)) & (days <= day_number(last)) & reference.mask(days)
    times, *columns = cells
    return Cells(times[keep], *(column[keep] for column in columns))


def date_of(number: float) -> date:
    """The day of a number of `Cells.days`."""
    return _EPOCH + timedelta(days=int(number))


def rows_of(cells: Cells, origin: float = 0.0) -> Floats:
    """Return the sums of the cells, a row each of UNITS to TOTALS, with totals measured from an origin."""
    total = cells.total - origin * cells.weight
    mixed = cells.mixed - origin * cells.squares
    totals = cells.totals - 2 * origin * cells.mixed + origin * origin * cells.squares
    return np.stack((cells.units, cells.scores, cells.weight, total, cells.squares, mixed, totals))


def _running(rows: Floats, stratum: Ints) -> Floats:
    wide = np.zeros((len(rows), STRATA, len(stratum) + 1))
    wide[:, stratum, np.arange(1, len(stratum) + 1)] = rows
    return np.cumsum(wide, axis=-1)


def _doubling(values: Floats, extreme: np.ufunc) -> Floats:
    """The extremes of 1, 2, 4, 8, ... values from each one on, so that those of any stretch are the extreme of two of them."""
    levels = [values]
    while (width := 1 << len(levels) - 1) * 2 <= len(values):
        longer = levels[-1].copy()
        longer[:-width] = extreme(longer[:-width], levels[-1][width:])
        levels.append(longer)
    return np.stack(levels)


def _groups(rows: Floats, keys: Ints) -> Grouped:
    """Weight and total of each run of cells of one key, and the place of its last cell."""
    if not keys.size:
        return Grouped(keys, np.zeros(0), np.zeros(0))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1))
    ends = np.append(starts[1:], len(keys)) - 1
    return Grouped(ends, np.add.reduceat(rows[WEIGHT], starts), np.add.reduceat(rows[TOTAL], starts))


class Grouped:
    """Cells added up by group."""

    def __init__(self, ends: Ints, weight: Floats, total: Floats) -> None:
        self.ends, self.weight, self.total = ends, weight, total


@dataclass(frozen=True, slots=True)
class Unit:
    """The scores of one session on one UTC day: what is independent of what came before, as far as anything is.

    Weights are 1 / sampling probability.
    """

    at: datetime
    """Time of the last of its exchanges, UTC, aware or naive but all of one kind."""
    scores: int
    """The number of scores it holds."""
    weight: float
    """Sum of the weights, above 0."""
    total: float
    """Sum of weight x score."""


class Cells(NamedTuple):
    """The sums of units by the hour in which they end: columns of one length, an hour each, oldest first.

    However many units there are, and however they are split into sums on their way, their cells are the same.
    """

    last: NDArray[np.datetime64]
    """Time of the last unit of the hour, UTC, in microseconds."""
    units: Floats
    scores: Floats
    weight: Floats
    total: Floats
    """Sum of weight x score."""
    squares: Floats
    """Sum of the squared weights of the units."""
    mixed: Floats
    """Sum of weight x total of the units."""
    totals: Floats
    """Sum of the squared totals of the units."""
    low: Floats
    """The least mean of a unit."""
    high: Floats
    """The greatest mean of a unit."""

    @property
    def days(self) -> Ints:
        """UTC days since 1970."""
        return self.last.astype("datetime64[D]").astype(np.int64)


def cells_of(units: Iterable[Unit]) -> Cells:
    """Add up units hour by hour, in whatever order they are given."""
    rows = sorted((_naive(one.at), one.weight, one.total, one.scores) for one in units)
    last = np.array([row[0] for row in rows], dtype="datetime64[us]")
    weight, total, scores = (np.array([row[column] for row in rows], dtype=np.float64) for column in (1, 2, 3))
    if not rows:
        return Cells(last, weight, weight, weight, weight, weight, weight, weight, weight, weight)
    starts = np.flatnonzero(np.diff(last.astype("datetime64[h]"), prepend=np.datetime64(0, "h")))
    starts = starts if starts.size and starts[0] == 0 else np.concatenate(([0], starts))
    columns = np.stack(_columns(scores, weight, total))
    count, *sums = np.add.reduceat(columns, starts, axis=1)
    mean = total / weight
    ends = np.append(starts[1:], len(rows)) - 1
    unit_counts, weights, totals, squares, mixed, squared = sums
    return Cells(
        last[ends],
        count,
        unit_counts,
        weights,
        totals,
        squares,
        mixed,
        squared,
        np.minimum.reduceat(mean, starts),
        np.maximum.reduceat(mean, starts),
    )


def _naive(at: datetime) -> datetime:
    return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)


def _columns(scores: Floats, weight: Floats, total: Floats) -> tuple[Floats, ...]:
    return np.ones_like(weight), scores, weight, total, weight * weight, weight * total, total * total


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans as few as can be: those that overlap, or follow each other without a day between, are one."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first.toordinal() <= merged[-1][1].toordinal() + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


class Counts(NamedTuple):
    """Counts of stretches, one element per stretch. They are whole numbers except for `alike`."""

    having: Ints | Floats
    """How many have it."""
    of: Ints | Floats
    """How many there are."""


class Days(NamedTuple):
    """Sums over the days of a stretch, one element per stretch."""

    squares: Floats
    """Of the squared numbers of runs."""
    mixed: Floats
    """Of the runs times those that have it."""
    having: Floats
    """Of the squared numbers of those that have it."""


def alike(stretches: Iterable[tuple[Counts, Days]]) -> Floats:
    """Return the correlation of two runs of one day, 0 to 1, measured in stretches of one share each."""
    pairs = [_paired(counts, days) for counts, days in stretches]
    more, beside = (np.add.reduce([one[column] for one in pairs]) for column in (0, 1))
    correlation: Floats = np.clip((EQUIVALENT_PAIRS * ALIKE + more) / (EQUIVALENT_PAIRS + beside), 0.0, 1.0)
    return correlation


def _paired(counts: Counts, days: Days) -> tuple[Floats, Floats]:
    """Return by how many more runs have it beside one that has than by chance, and of how many beside it, by what is the rarer.

    If one has it, another of its day has it with the probability p + r (1 - p), where p is the share and r the correlation. The share
    is that of the same runs, so what one day says is compared with itself in part: a single day says nothing.
    """
    is_rare = 2 * counts.having <= counts.of
    rare = np.where(is_rare, counts.having, counts.of - counts.having)
    # If not having it is the rarer, n - k stands for k.
    mixed = np.where(is_rare, days.mixed, days.squares - days.mixed)
    squared = np.where(is_rare, days.having, days.squares - 2 * days.mixed + days.having)
    runs = np.maximum(counts.of, 1)
    share, a_day = rare / runs, days.squares / runs
    both, others = squared - rare, mixed - rare
    own = share * (1 - share) * runs / np.maximum(runs - 1, 1) * np.maximum(a_day - 1, 0.0)
    return (both - share * others + own) / (1 - share), others * (1 - a_day / runs)


def log_count_evidence(before: Counts, after: Counts) -> Floats:
    """Return the natural logarithm of the e-values that the share differs between each stretch before and the one after it."""
    top = int(np.max(before.of + after.of, initial=0))
    numbers = np.arange(1, top + 1, dtype=np.float64)
    whole = np.concatenate(([0.0], np.cumsum(np.log(numbers))))
    half = np.concatenate(([0.0], np.cumsum(np.log(numbers - 0.5))))
    orders_before = whole[before.of] - whole[before.having] - whole[before.of - before.having]
    both = Counts(before.having + after.having, before.of + after.of)
    orders = whole[both.of] - whole[both.having] - whole[both.of - both.having]
    averaged = half[after.having] + half[after.of - after.having] - whole[after.of]
    evidence: Floats = averaged + orders - orders_before
    return evidence


def among_alike(counted: Floats, correlation: Floats, a_day: Floats) -> Floats:
    """Return the logarithms of the evidence of counts, less where runs of a day are alike: they count for less, never for more.

    `a_day` is how many runs there are beside a run on its day, itself included, on average.
    """
    counted_alike: Floats = np.minimum(counted, counted / (1 + correlation * np.maximum(a_day - 1, 0.0)))
    return counted_alike
