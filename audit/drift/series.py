"""A series of cells with running sums, so that any stretch of days is one subtraction."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from audit.drift.cells import Cells, Floats, Ints, date_of, day_number
from audit.drift.count_evidence import Counts
from audit.drift.reference import NO_DECISION, Reference
from schemas.lazy.numpy import np

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
        place = np.arange(len(self.day))
        group = np.searchsorted(grouped.ends, place)
        begun = np.concatenate(([0], grouped.ends[:-1] + 1))[group]
        running = np.concatenate(([0.0], np.cumsum(self.cells.weight)))
        weight = running[place + 1] - running[begun]
        closed = np.concatenate(([0.0], np.cumsum(grouped.weight**2)))
        first_of_day = np.searchsorted(grouped.ends, self.starts[self.day])
        earlier = closed[group] - closed[first_of_day]
        self.partial[level] = whole[column][:, self.day]
        self.partial[level, self.stratum, place] += earlier + weight**2


class Grouped:
    """Cells added up by group."""

    def __init__(self, ends: Ints, weight: Floats, total: Floats) -> None:
        self.ends, self.weight, self.total = ends, weight, total


def _groups(rows: Floats, keys: Ints) -> Grouped:
    """Weight and total of each run of cells of one key, and the place of its last cell."""
    if not keys.size:
        return Grouped(keys, np.zeros(0), np.zeros(0))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1))
    ends = np.append(starts[1:], len(keys)) - 1
    return Grouped(ends, np.add.reduceat(rows[WEIGHT], starts), np.add.reduceat(rows[TOTAL], starts))


def _doubling(values: Floats, extreme: np.ufunc) -> Floats:
    """The extremes of 1, 2, 4, 8, ... values from each one on, so that those of any stretch are the extreme of two of them."""
    levels = [values]
    while (width := 1 << len(levels) - 1) * 2 <= len(values):
        longer = levels[-1].copy()
        longer[:-width] = extreme(longer[:-width], levels[-1][width:])
        levels.append(longer)
    return np.stack(levels)


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


def _kept(cells: Cells, first: date, last: date, reference: Reference) -> Cells:
    """The cells of the days that count."""
    days = cells.days
    keep = (days >= day_number(first)) & (days <= day_number(last)) & reference.mask(days)
    times, *columns = cells
    return Cells(times[keep], *(column[keep] for column in columns))
