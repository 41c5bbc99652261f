"""Looks at a series of scores: after each hour with sessions, what came before it says to a change of the mean on each day.

A look depends on what ended up to it and on nothing later, so a check that comes late finds what an earlier one would have found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from audit.drift.cells import Floats, Ints
from audit.drift.change_evidence import Contrast, Later, Stretch, contrast, log_evidence
from audit.drift.series import BLOCK_SQUARES, DAY_SQUARES, Series

REFERENCE_DAYS = 14
"""A change has at least so many days before it, to be compared with."""
HISTORY_DAYS = 400
"""A look sees so many UTC days, its own included: a change that nobody decided on is seen for a year, then what is new is normal."""
RECENT_DAYS = 7
"""So many days before a change say how much units vary of late."""
_AGES = (
    *((age, 1) for age in range(14)),
    *((age, 2) for age in range(15, 31, 2)),
    *((age, 4) for age in range(33, 60, 4)),
    *((age, 8) for age in range(65, 128, 8)),
    *((age, 16) for age in range(137, HISTORY_DAYS, 16)),
)
"""Days since a change that are tried, each with how many days it stands for: how long ago it was matters less, the longer it is ago."""
Ranges = tuple[Floats, Floats]


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
    """The changes that the looks of some days try, a row each."""

    look_day: Ints
    begun: Ints
    """The first cell of the change."""
    start: Ints
    """First day that the looks see."""
    stands_for: Floats


def looks_of(series: Series, days: Iterable[int]) -> Looks:
    """The looks of some days, in order."""
    tried = _tried(series, days)
    look_days, firsts, counts = np.unique(tried.look_day, return_index=True, return_counts=True)
    cells = [np.arange(series.starts[day], series.starts[day + 1]) for day in look_days]
    pairs = [
        (np.repeat(some, count), np.tile(np.arange(first, first + count), len(some)))
        for some, first, count in zip(cells, firsts, counts, strict=True)
    ]
    if not sum(map(len, cells)):
        return Looks(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    cell, row = (np.concatenate(part) for part in zip(*pairs, strict=True))
    found = _contrasts(series, tried, cell, row)
    terms = log_evidence(found, *_ranges(series, tried, cell, row)) + np.log(tried.stands_for[row])
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    chance = np.log(np.add.reduceat(tried.stands_for[row], starts))
    likeliest = np.lexsort((terms, cell))[np.append(starts[1:], len(cell)) - 1]
    return Looks(cell[starts], np.maximum(0.0, np.logaddexp.reduceat(terms, starts)), chance, found.size[likeliest])


def contrasts_at(series: Series, cell: int, begun: Ints) -> tuple[Contrast, Floats]:
    """What a look says to a change from each of some cells on: the contrasts, and the logarithms of their evidence."""
    day = np.full(len(begun), series.day[cell])
    tried = _Tried(day, begun, np.full(len(begun), first_seen(int(series.day[cell]))), np.ones(len(begun)))
    cells, rows = np.full(len(begun), cell), np.arange(len(begun))
    found = _contrasts(series, tried, cells, rows)
    return found, log_evidence(found, *_ranges(series, tried, cells, rows))


def first_seen(day: int) -> int:
    """The first day that the looks of a day see."""
    return max(0, day - HISTORY_DAYS + 1)


def _tried(series: Series, days: Iterable[int]) -> _Tried:
    rows = [
        (day, series.starts[day - age], first_seen(day), stands)
        for day in days
        for age, stands in _AGES
        if day - age >= first_seen(day) + REFERENCE_DAYS and series.starts[day - age] > series.starts[first_seen(day)]
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return _Tried(columns[0], columns[1], columns[2], columns[3].astype(np.float64))


def _contrasts(series: Series, tried: _Tried, cell: Ints, row: Ints) -> Contrast:
    """What came before each change beside what came from it on, up to each cell."""
    first, day = series.starts[tried.start], series.day[np.minimum(tried.begun, len(series.day) - 1)]
    before = Stretch(series.sums[tried.begun] - series.sums[first], series.daily[day] - series.daily[tried.start])
    lately = series.starts[np.maximum(tried.start, day - RECENT_DAYS)]
    settled = Stretch(
        series.sums[series.starts[tried.look_day]] - series.sums[tried.begun], series.daily[tried.look_day] - series.daily[day]
    )
    whole = (tried.begun == series.starts[day])[:, None, None]
    so_far = np.where(whole, series.daily[day][..., [BLOCK_SQUARES, DAY_SQUARES]], series.partial[tried.begun - 1])
    later = Later(series.sums[cell + 1] - series.sums[tried.begun[row]], series.partial[cell] - so_far[row], row)
    return contrast(before, series.sums[tried.begun] - series.sums[lately], settled, later)


def _ranges(series: Series, tried: _Tried, cell: Ints, row: Ints) -> tuple[Ranges, Ranges]:
    """The least and the greatest mean of a unit before each change, and from it on up to each cell."""
    first = series.starts[int(tried.start.min())]
    low, high = np.minimum.accumulate(series.low[first:]), np.maximum.accumulate(series.high[first:])
    since = tried.begun[row]
    after_low, after_high = np.empty(len(row)), np.empty(len(row))
    for one in np.unique(since):
        here = np.flatnonzero(since == one)
        stretch = slice(one, cell[here].max() + 1)
        after_low[here] = np.minimum.accumulate(series.low[stretch])[cell[here] - one]
        after_high[here] = np.maximum.accumulate(series.high[stretch])[cell[here] - one]
    return (low[since - first - 1], high[since - first - 1]), (after_low, after_high)
