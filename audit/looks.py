"""Looks at a series of scores: after each hour with sessions, what came before it says to a change of the mean on each day.

A look depends on what ended up to it and on nothing later, so a check that comes late finds what an earlier one would have found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from audit.cells import Floats, Ints
from audit.changepoints import Contrast, Later, Stretch, contrast, log_evidence
from audit.series import BLOCK_SQUARES, DAY_SQUARES, Series

REFERENCE_DAYS = 14
"""A change has at least so many days before it, to be compared with."""
HISTORY_DAYS = 400
"""A look sees so many UTC days, its own included: a change that nobody decided on is seen for a year, then what is new is normal."""
RECENT_DAYS = 7
"""So many days before a change say how much units vary of late."""
_AGES = np.array(
    (
        *((age, 1) for age in range(14)),
        *((age, 2) for age in range(15, 31, 2)),
        *((age, 4) for age in range(33, 60, 4)),
        *((age, 8) for age in range(65, 128, 8)),
        *((age, 16) for age in range(137, HISTORY_DAYS, 16)),
    )
).T
"""Days since a change that are tried, each with how many days it stands for: how long ago it was matters less, the longer it is ago."""


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


def looks_of(series: Series, days: Iterable[int]) -> Looks:
    """The looks of some days, in order."""
    tried = _tried(series, np.array(list(days), dtype=np.int64))
    cell, row = _placed(series, tried)
    if not cell.size:
        return Looks(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    found, evidence = _weighed(series, tried, cell, row)
    stands_for = tried.stands_for[row]
    terms = evidence + np.log(stands_for)
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    chance = np.log(np.add.reduceat(stands_for, starts))
    best = np.repeat(np.maximum.reduceat(terms, starts), np.diff(starts, append=len(cell)))
    likeliest = np.maximum.reduceat(np.where(terms == best, np.arange(len(cell)), 0), starts)
    return Looks(cell[starts], np.maximum(0.0, np.logaddexp.reduceat(terms, starts)), chance, found.size[likeliest])


def contrasts_at(series: Series, cell: int, begun: Ints) -> tuple[Contrast, Floats]:
    """What a look says to a change from each of some cells on: the contrasts, and the logarithms of their evidence."""
    day = np.full(len(begun), series.day[cell])
    tried = _Tried(day, begun, first_seen(day), np.ones(len(begun)))
    return _weighed(series, tried, np.full(len(begun), cell), np.arange(len(begun)))


def first_seen(day: Ints) -> Ints:
    """The first day that the looks of a day see."""
    return np.maximum(0, day - HISTORY_DAYS + 1)


def _tried(series: Series, days: Ints) -> _Tried:
    ages, stands_for = _AGES
    look_day, age = np.repeat(days, len(ages)), np.tile(ages, len(days))
    start = first_seen(look_day)
    begun = series.starts[np.maximum(0, look_day - age)]
    kept = (look_day - age >= start + REFERENCE_DAYS) & (begun > series.starts[start])
    return _Tried(look_day[kept], begun[kept], start[kept], np.tile(stands_for, len(days))[kept])


def _placed(series: Series, tried: _Tried) -> tuple[Ints, Ints]:
    """Each cell of the days of looks with each change that is tried on its day: the cells, in order, and the places of the changes."""
    days = np.unique(tried.look_day)
    cells = np.flatnonzero(np.isin(series.day, days))
    first, end = (np.searchsorted(tried.look_day, series.day[cells], side=side) for side in ("left", "right"))
    counts = end - first
    return np.repeat(cells, counts), np.arange(counts.sum()) + np.repeat(end - np.cumsum(counts), counts)


def _weighed(series: Series, tried: _Tried, cell: Ints, row: Ints) -> tuple[Contrast, Floats]:
    """What came before each change beside what came from it on, up to each cell, and the logarithms of the evidence."""
    begun, day = tried.begun, series.day[np.minimum(tried.begun, len(series.day) - 1)]
    first, lately = series.starts[tried.start], series.starts[np.maximum(tried.start, day - RECENT_DAYS)]
    until, daily = series.sums[..., begun], series.daily[..., day]
    before = Stretch(until - series.sums[..., first], daily - series.daily[..., tried.start])
    settled = Stretch(series.sums[..., series.starts[tried.look_day]] - until, series.daily[..., tried.look_day] - daily)
    so_far = np.where(begun == series.starts[day], daily[[BLOCK_SQUARES, DAY_SQUARES]], series.partial[..., begun - 1])
    sums = np.take(series.sums, cell + 1, axis=-1) - np.take(until, row, axis=-1)
    later = Later(sums, np.take(series.partial, cell, axis=-1) - np.take(so_far, row, axis=-1), row)
    found = contrast(before, until - series.sums[..., lately], settled, later)
    low, high = series.range(first, begun - 1)
    return found, log_evidence(found, (low[row], high[row]), series.range(begun[row], cell))
