"""A series of scores as hourly sums, so that its size does not depend on the number of sessions.

1. With running sums, the sums of any stretch of days are one subtraction.
2. The reference selects the days that count as normal. If a person decides that a change is "the new normal", the reference begins on the
   first day of that change. The days of a change that is over are cut out, so that a dip that was fixed neither lowers the expected level
   nor hides the next one.
3. The evidence for a change of a share comes from the counts themselves and is exact for any number of runs. `k0` of `n0` runs before
   and `k1` of `n1` runs after have the property. Without a change all orders of the runs are equally probable, so with `K = k0 + k1` of
   `n = n0 + n1` the observed order has the probability 1 / C(n, K) for any share. The alternative assumes nothing about the share
   before, so it gives that order 1 / C(n0, k0), and averages the share after over Jeffreys' prior, Beta(1/2, 1/2):

       e = B(k1 + 1/2, n1 - k1 + 1/2) / B(1/2, 1/2) * C(n, K) / C(n0, k0)

   For independent runs of any share p it is an e-value: its expectation is the sum over k1 of the Jeffreys probability of k1 times the
   probability that a binomial (n, p) lies between k1 and k1 + n0, which is at most 1. It combines the exact test of both counts (Fisher
   1935) with a bet on the later runs (Grünwald, de Heide and Koolen 2024, "Safe testing"): 2 of 2 after 0 of 30 are 186 to 1, where
   Fisher's test has 1 in 496. The bound also holds when looking after every run, which is calculated, not proven:
   `docs/decisions/0082-shares-of-few-runs.md`.
4. Runs of one day are seldom independent, because they often fail for the same reason. Their correlation is measured before the change,
   and over whole days after it: how often does another run of the same day have the property if one run has it (the moments of a
   beta-binomial distribution)? If the property is too rare to measure this, `ASSUMED_CORRELATION` is used.
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
"""Length of a block in hours; the correlation within a day is measured by blocks."""
STRATA = 2
"""Weekdays and weekends, each of which is compared only with its own kind."""
UNITS, SCORES, WEIGHT, TOTAL, SQUARES, MIXED, TOTALS = range(7)
"""Rows of the sums over cells; see `Cells`."""
_ROUNDING = 1e-9
"""Squared deviations of a score up to this are rounding errors."""
BLOCKS, BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS = range(4)
DAYS, DAY_SQUARES, DAY_MIXED, DAY_TOTALS = range(4, 8)
PAIRS, PAIR_SQUARES, PAIR_MIXED, PAIR_TOTALS = range(8, 12)
"""Rows of the sums over days: the number, squares and products of blocks, of days, and of pairs of consecutive days."""

Floats: TypeAlias = "NDArray[np.float64]"
Ints: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"
_EPOCH = date(1970, 1, 1)

Span = tuple[date, date]
"""The first and the last day of a span, both included."""
REFERENCE_DAYS = 14
"""Minimum number of days before a change."""

ASSUMED_CORRELATION = 0.25
"""The correlation of two runs of one day that is assumed without data."""
EQUIVALENT_PAIRS = 4.0
"""The weight of that assumption, in pairs of runs of which at least one has the property."""


class DeviantUnits(NamedTuple):
    """The units off the usual value in stretches of a series, one element per stretch."""

    units: Floats
    """The number of all units, including those at the usual value."""
    weight: Floats
    total: Floats
    """Sum of weight x (score - usual value) of the units."""
    squared: Floats
    """Sum of the squares of these products."""

    @classmethod
    def from_sums(cls, rows: Floats, usual: Floats | float) -> DeviantUnits:
        """Compute the deviations from sums over units, in the order of the rows UNITS to TOTALS."""
        units, _, weight, total, squares, mixed, totals = rows
        squared = totals - 2 * usual * mixed + usual**2 * squares
        return cls(units, weight, total - usual * weight, np.where(squared > _ROUNDING * squares, squared, 0.0))

    @property
    def min_count(self) -> Floats:
        """A lower bound of the number of units off: the squared sum of k numbers is at most k times the sum of their squares."""
        has_deviation = self.squared > 0
        return np.where(has_deviation, self.total**2 / np.where(has_deviation, self.squared, 1.0), 0.0)

    @property
    def counts(self) -> Counts:
        """The lower bound and the number of units, as whole numbers."""
        return Counts(np.rint(self.min_count).astype(np.int64), np.rint(self.units).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Reference:
    """The days of a series that count."""

    since: date | None = None
    """The first day that counts, if a person decided that a change is the new normal."""
    cut: tuple[Span, ...] = ()
    """The days of changes that are over, oldest first, not overlapping."""
    days: int = REFERENCE_DAYS
    """Minimum number of days before a change."""

    def counts(self, day: date) -> bool:
        """Return whether a day counts."""
        return (self.since is None or day >= self.since) and not self.cuts(day)

    def mask(self, days: Ints) -> Flags:
        """Return the mask of the days that count; `days` are day numbers as in `Cells.days`."""
        is_selected = np.ones(len(days), dtype=bool) if self.since is None else days >= day_number(self.since)
        for first, last in self.cut:
            is_selected &= (days < day_number(first)) | (days > day_number(last))
        return is_selected

    def cuts(self, day: date) -> bool:
        """Return whether a day belongs to a change that is over."""
        return any(first <= day <= last for first, last in self.cut)

    def cuts_into(self, first: date, last: date) -> bool:
        """Return whether a window, both ends included, contains days of a change that is over."""
        return any(begin <= last and first <= end for begin, end in self.cut)


def day_number(day: date) -> int:
    """Return the number of a day as in `Cells.days`: UTC days since 1970."""
    return (day - _EPOCH).days


NO_DECISION = Reference()
"""The reference of a series without decisions: all its days count."""


class Series:
    """The cells of the days that count. Days are numbered from the first one with a cell; totals are relative to `origin`."""

    def __init__(
        self, cells: Cells, first: date, last: date, reference: Reference = NO_DECISION, *, is_share: bool = False
    ) -> None:
        selected_cells = _select_cells(cells, first, last, reference)
        self.cells = selected_cells
        self.reference_days = reference.days
        days = selected_cells.days
        self.first_number = int(days[0]) if days.size else day_number(last)
        self.first = date_of(self.first_number)
        self.length = (last - self.first).days + 1
        self.day = days - self.first_number
        self.origin = float(selected_cells.total[0] / selected_cells.weight[0]) if days.size and not is_share else 0.0
        weekday = (self.day + self.first_number + 3) % 7  # 1970 began on a Thursday; Monday is 0
        self.stratum = np.where(weekday >= 5, 1, 0)
        self.starts = np.searchsorted(self.day, np.arange(self.length + 1))
        """Index of the first cell of each day, and the end of the last day."""
        rows = rows_of(selected_cells, self.origin)
        self.sums = _running_sums(rows, self.stratum)
        """Sums of the cells before each cell, by stratum: (7, STRATA, cells + 1)."""
        self.is_share = is_share
        """True if the weight of a unit is its number of runs, and its total the number of runs that have the property."""
        self.running_squares = np.zeros((2, STRATA, len(days)))
        """Sums of the squares of blocks and of days up to each cell, including the cell's unfinished block and day."""
        self.daily = self._sum_days(rows)
        """Sums of the days before each day, by stratum: (12, STRATA, days + 1)."""
        self._low = _doubling_extremes(selected_cells.low - self.origin, np.minimum)
        self._high = _doubling_extremes(selected_cells.high - self.origin, np.maximum)

    def range(self, first: Ints, last: Ints) -> tuple[Floats, Floats]:
        """Return the lowest and the highest mean of a unit between two cells, both included, relative to `origin`."""
        level = np.frexp(last - first + 1)[1] - 1
        second = last - (1 << level) + 1
        low = self._low
        high = self._high
        return np.minimum(low[level, first], low[level, second]), np.maximum(high[level, first], high[level, second])

    def counts(self, first: Ints, end: Ints) -> Counts:
        """Return the runs of a share in the cells from each `first` up to but excluding `end`, and how many have the property."""
        positives = np.concatenate(([0.0], np.cumsum(self.cells.total)))
        runs = np.concatenate(([0.0], np.cumsum(self.cells.weight)))
        return Counts(
            np.rint(positives[end] - positives[first]).astype(np.int64), np.rint(runs[end] - runs[first]).astype(np.int64)
        )

    def days_between(self, first: Ints, end: Ints) -> Ints:
        """Return the number of days with sessions from each `first` up to but excluding `end`."""
        days = self.daily[DAYS].sum(axis=0)
        count: Ints = np.rint(days[end] - days[first]).astype(np.int64)
        return count

    def time(self, cell: int) -> datetime:
        """Return the time of the last unit of a cell."""
        time: datetime = self.cells.last[cell].astype(datetime)
        return time

    def date(self, day: int) -> date:
        """Return the date of a day of the series."""
        return self.first + timedelta(days=day)

    def _sum_days(self, rows: Floats) -> Floats:
        hours = self.cells.last.astype("datetime64[h]").astype(np.int64) % 24
        blocks = _sum_groups(rows, self.day * 24 + hours // BLOCK_HOURS)
        days = _sum_groups(rows, self.day)
        daily = np.zeros((12, STRATA, self.length + 1))
        for groups, first_row in ((blocks, BLOCKS), (days, DAYS)):
            index = self.stratum[groups.ends], self.day[groups.ends] + 1
            np.add.at(daily[first_row], index, 1.0)
            products = groups.weight**2, groups.weight * groups.total, groups.total**2
            for row, values in enumerate(products, first_row + 1):
                np.add.at(daily[row], index, values)
        self._sum_pairs(daily, days)
        running = np.cumsum(daily, axis=-1)
        for level, groups in enumerate((blocks, days)):
            self._fill_running_squares(running, level, groups)
        return running

    def _sum_pairs(self, daily: Floats, days: GroupSums) -> None:
        """Add the products of consecutive days of one stratum, at the later day."""
        number = self.day[days.ends]
        stratum = self.stratum[days.ends]
        follows = np.flatnonzero((np.diff(number) == 1) & (np.diff(stratum) == 0))
        w0 = days.weight[follows]
        w1 = days.weight[follows + 1]
        y0 = days.total[follows]
        y1 = days.total[follows + 1]
        index = stratum[follows + 1], number[follows + 1] + 1
        np.add.at(daily[PAIRS], index, 1.0)
        for row, values in enumerate((w0 * w1, (w0 * y1 + w1 * y0) / 2, y0 * y1), PAIRS + 1):
            np.add.at(daily[row], index, values)

    def _fill_running_squares(self, running: Floats, level: int, groups: GroupSums) -> None:
        """Fill the running squares of one level, 0 for blocks and 1 for days, including each cell's unfinished group."""
        row = (BLOCK_SQUARES, DAY_SQUARES)[level]
        index = np.arange(len(self.day))
        group = np.searchsorted(groups.ends, index)
        first_cell = np.concatenate(([0], groups.ends[:-1] + 1))[group]
        weights = np.concatenate(([0.0], np.cumsum(self.cells.weight)))
        weight = weights[index + 1] - weights[first_cell]
        closed_squares = np.concatenate(([0.0], np.cumsum(groups.weight**2)))
        first_of_day = np.searchsorted(groups.ends, self.starts[self.day])
        earlier = closed_squares[group] - closed_squares[first_of_day]
        self.running_squares[level] = running[row][:, self.day]
        self.running_squares[level, self.stratum, index] += earlier + weight**2


def _select_cells(cells: Cells, first: date, last: date, reference: Reference) -> Cells:
    """Return the cells of the days that count."""
    days = cells.days
    mask = (days >= day_number(first)) & (days <= day_number(last)) & reference.mask(days)
    times, *columns = cells
    return Cells(times[mask], *(column[mask] for column in columns))


def select_until(cells: Cells, as_of: date) -> Cells:
    """Return the cells up to the end of a day."""
    end = int(np.searchsorted(cells.days, day_number(as_of), side="right"))
    last, *columns = cells
    return Cells(last[:end], *(column[:end] for column in columns))


def date_of(number: float) -> date:
    """Return the day with a number as in `Cells.days`."""
    return _EPOCH + timedelta(days=int(number))


def rows_of(cells: Cells, origin: float = 0.0) -> Floats:
    """Return the sums of the cells as rows UNITS to TOTALS, with totals relative to an origin."""
    total = cells.total - origin * cells.weight
    mixed = cells.mixed - origin * cells.squares
    totals = cells.totals - 2 * origin * cells.mixed + origin * origin * cells.squares
    return np.stack((cells.units, cells.scores, cells.weight, total, cells.squares, mixed, totals))


class UnitSums(NamedTuple):
    """The sums over the units of each day, oldest first, in the order of `rows_of`; 0 for days without units."""

    units: Floats
    scores: Floats
    weight: Floats
    total: Floats
    squares: Floats
    mixed: Floats
    totals: Floats

    @property
    def mean(self) -> Floats:
        """The mean of each day; 0 for days without units."""
        return self.total / np.where(self.weight > 0, self.weight, np.inf)

    @property
    def centred_squares(self) -> Floats:
        """Sum of the squared products weight x (mean of the unit - mean of the day)."""
        mean = self.mean
        return np.maximum(0.0, self.totals - 2 * mean * self.mixed + mean * mean * self.squares)


def _running_sums(rows: Floats, stratum: Ints) -> Floats:
    by_stratum = np.zeros((len(rows), STRATA, len(stratum) + 1))
    by_stratum[:, stratum, np.arange(1, len(stratum) + 1)] = rows
    return np.cumsum(by_stratum, axis=-1)


def _doubling_extremes(values: Floats, extreme: np.ufunc) -> Floats:
    """Return the extremes of 1, 2, 4, 8, ... values from each value on (a sparse table): any stretch is covered by two of them."""
    levels = [values]
    width = 1
    while width * 2 <= len(values):
        doubled = levels[-1].copy()
        doubled[:-width] = extreme(doubled[:-width], levels[-1][width:])
        levels.append(doubled)
        width *= 2
    return np.stack(levels)


def _sum_groups(rows: Floats, keys: Ints) -> GroupSums:
    """Sum the weight and total of adjacent cells with the same key."""
    if not keys.size:
        return GroupSums(keys, np.zeros(0), np.zeros(0))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1))
    ends = np.append(starts[1:], len(keys)) - 1
    return GroupSums(ends, np.add.reduceat(rows[WEIGHT], starts), np.add.reduceat(rows[TOTAL], starts))


class GroupSums(NamedTuple):
    """The weight and total of groups of adjacent cells."""

    ends: Ints
    """The index of each group's last cell."""
    weight: Floats
    total: Floats


@dataclass(frozen=True, slots=True)
class Unit:
    """The scores of one session on one UTC day, assumed to be independent of other units. Weights are 1 / sampling probability."""

    at: datetime
    """Time of the last exchange in UTC, for all units either aware or naive."""
    scores: int
    """The number of scores."""
    weight: float
    """Sum of the weights, above 0."""
    total: float
    """Sum of weight x score."""


class Cells(NamedTuple):
    """The sums of units by the hour in which they end, oldest first.

    The cells depend only on the units, not on how these were grouped before.
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
    """The lowest mean of a unit."""
    high: Floats
    """The highest mean of a unit."""

    @property
    def days(self) -> Ints:
        """UTC days since 1970."""
        return self.last.astype("datetime64[D]").astype(np.int64)


def cells_of(units: Iterable[Unit]) -> Cells:
    """Sum units by hour; their order does not matter."""
    rows = sorted((_to_naive_utc(unit.at), unit.weight, unit.total, unit.scores) for unit in units)
    last = np.array([row[0] for row in rows], dtype="datetime64[us]")
    weight, total, scores = (np.array([row[column] for row in rows], dtype=np.float64) for column in (1, 2, 3))
    if not rows:
        return Cells(last, weight, weight, weight, weight, weight, weight, weight, weight, weight)
    hours = last.astype("datetime64[h]")
    starts = np.append(0, np.flatnonzero(hours[1:] != hours[:-1]) + 1)
    ends = np.append(starts[1:], len(rows)) - 1
    columns = np.ones_like(weight), scores, weight, total, weight * weight, weight * total, total * total
    counts, scores, weights, totals, squares, mixed, total_squares = np.add.reduceat(np.stack(columns), starts, axis=1)
    mean = total / weight
    return Cells(
        last=last[ends],
        units=counts,
        scores=scores,
        weight=weights,
        total=totals,
        squares=squares,
        mixed=mixed,
        totals=total_squares,
        low=np.minimum.reduceat(mean, starts),
        high=np.maximum.reduceat(mean, starts),
    )


def _to_naive_utc(time: datetime) -> datetime:
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Merge spans that overlap or are adjacent; returns them oldest first."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first.toordinal() <= merged[-1][1].toordinal() + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


class Counts(NamedTuple):
    """Counts of the runs of stretches, one element per stretch. Only `day_correlation` accepts fractions."""

    positives: Ints | Floats
    """The number of runs that have the property."""
    runs: Ints | Floats
    """The number of runs."""


class DaySums(NamedTuple):
    """Sums over the days of a stretch, one element per stretch."""

    run_squares: Floats
    """Sum of the squared numbers of runs."""
    products: Floats
    """Sum of the number of runs times the number of runs that have the property."""
    positive_squares: Floats
    """Sum of the squared numbers of runs that have the property."""


def day_correlation(stretches: Iterable[tuple[Counts, DaySums]]) -> Floats:
    """Return the correlation of two runs of one day, 0 to 1, measured in stretches with a constant share."""
    pairs = [_count_same_day_pairs(counts, day_sums) for counts, day_sums in stretches]
    excess = np.add.reduce([pair[0] for pair in pairs])
    divisor = np.add.reduce([pair[1] for pair in pairs])
    correlation: Floats = np.clip((EQUIVALENT_PAIRS * ASSUMED_CORRELATION + excess) / (EQUIVALENT_PAIRS + divisor), 0.0, 1.0)
    return correlation


def _count_same_day_pairs(counts: Counts, day_sums: DaySums) -> tuple[Floats, Floats]:
    """Return the excess of same-day pairs over chance, and the number of pairs by which it is divided to get the correlation.

    The rarer of having and not having the property is used. If one run has it, another run of its day has it with the probability
    p + r (1 - p), where p is the share and r the correlation. The share is estimated from the same runs, which `self_terms` corrects: a
    single day gives no information.
    """
    is_rare = 2 * counts.positives <= counts.runs
    rare = np.where(is_rare, counts.positives, counts.runs - counts.positives)
    # If most runs have the property, n - k replaces k.
    products = np.where(is_rare, day_sums.products, day_sums.run_squares - day_sums.products)
    complement_squares = day_sums.run_squares - 2 * day_sums.products + day_sums.positive_squares
    rare_squares = np.where(is_rare, day_sums.positive_squares, complement_squares)
    runs = np.maximum(counts.runs, 1)
    share = rare / runs
    runs_per_day = day_sums.run_squares / runs
    joint_pairs = rare_squares - rare
    other_runs = products - rare
    self_terms = share * (1 - share) * runs / np.maximum(runs - 1, 1) * np.maximum(runs_per_day - 1, 0.0)
    return (joint_pairs - share * other_runs + self_terms) / (1 - share), other_runs * (1 - runs_per_day / runs)


def log_count_evidence(before: Counts, after: Counts) -> Floats:
    """Return the log e-values for a difference of the share between each stretch before and the stretch after it."""
    both = Counts(before.positives + after.positives, before.runs + after.runs)
    numbers = np.arange(1, int(np.max(both.runs, initial=0)) + 1, dtype=np.float64)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(numbers))))
    log_half_factorials = np.concatenate(([0.0], np.cumsum(np.log(numbers - 0.5))))

    def log_orders(counts: Counts) -> Floats:
        positives = counts.positives
        negatives = counts.runs - counts.positives
        orders: Floats = log_factorials[counts.runs] - log_factorials[positives] - log_factorials[negatives]
        return orders

    half_factorials = log_half_factorials[after.positives] + log_half_factorials[after.runs - after.positives]
    log_averaged = half_factorials - log_factorials[after.runs]
    evidence: Floats = log_averaged + log_orders(both) - log_orders(before)
    return evidence


def discount_correlated(log_evidence: Floats, correlation: Floats, runs_per_day: Floats) -> Floats:
    """Reduce the log evidence of counts by the correlation of runs of one day; evidence is never increased.

    `runs_per_day` is the mean number of runs on the day of a run, itself included.
    """
    discounted: Floats = np.minimum(log_evidence, log_evidence / (1 + correlation * np.maximum(runs_per_day - 1, 0.0)))
    return discounted
