"""Variation of means when nothing changes, measured in the time before a change.

Units, the sessions of a day, vary around their mean; so do blocks of hours, and days; and days in a row may resemble each other. Each of
these is measured by moments (nested random effects: what blocks vary beyond what their units explain is the blocks' own, and so on).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.drift.cells import Flags, Floats
from audit.drift.series import (
    BLOCK_MIXED,
    BLOCK_SQUARES,
    BLOCK_TOTALS,
    BLOCKS,
    DAY_MIXED,
    DAY_SQUARES,
    DAY_TOTALS,
    DAYS,
    MIXED,
    PAIR_MIXED,
    PAIR_SQUARES,
    PAIR_TOTALS,
    SQUARES,
    TOTAL,
    TOTALS,
    UNITS,
    WEIGHT,
)
from schemas.lazy.numpy import np

if TYPE_CHECKING:
    from schemas.lazy.numpy import NDArray


FEWEST_BEFORE = 10
"""So many units stand before a change; and where weekdays or weekends have fewer of them, all days are compared with all."""
SETTLED_DAYS = 14
"""From so many days after a change on, what they differ by among themselves counts, too."""
HIGHEST_MEMORY = 0.9
"""Days in a row are never taken to resemble each other by more than this, as a correlation."""
SMALLEST_VARIANCE = 1e-6
"""Of a unit: scores that hardly vary are taken to vary by a thousandth of a point."""
TINY = 1e-300
"""The bound below which a number is too small to divide by."""


class Stretch(NamedTuple):
    """The sums of stretches of a series, each in a place of the last axis, by stratum."""

    sums: Floats
    """Of the units: (7, STRATA, stretches), columns of `audit.drift.series`."""
    days: Floats
    """Of the whole days among them: (12, STRATA, stretches)."""


class Components(NamedTuple):
    """The components of the variance of a stretch's means, one element per pair."""

    unit: Floats
    """Variance of a unit for each squared weight."""
    block: Floats
    """Covariance of the units of a block."""
    day: Floats
    """Covariance of the blocks of a day."""
    memory: Floats
    """Correlation of days in a row."""
    blocks: Floats
    """The number of blocks, less one per stratum, that these rest on."""
    days: Floats


class Normal(NamedTuple):
    """The normal state before each of some changes; an element, or a place of the last axis, is a change."""

    few: Flags
    """True where all days are one stratum, for there are few units in one of them."""
    sums: Floats
    """Of the units: (7, STRATA, changes)."""
    strata: Floats
    """The number of them that have units."""
    mean: Floats
    """By stratum."""
    parts: Components
    by_score: Floats
    """Variance of a unit for each weight."""
    varies: Floats
    """Variance of the means by source: (3, STRATA, changes)."""


def normal_before(before: Stretch, recent: Floats, settled: Stretch, reference: int | None = None) -> Normal:
    """Return the normal state in stretches of whole days before a change.

    For each stretch of `before`, `recent` has the sums of the last days of it, and `settled` the whole days after the change that every
    one of its later stretches holds. With `reference`, all changes take the variance components measured for that one.
    """
    few = np.any(before.sums[UNITS] < FEWEST_BEFORE, axis=0)
    before, settled, recent = _by_strata(before, few), _by_strata(settled, few), as_one(recent, few)
    strata = np.maximum(1.0, total(before.sums[UNITS] > 0))
    mean = means(before.sums)
    parts = _components(before, recent, settled, mean, strata)
    if reference is not None:
        parts = Components(*(np.full_like(part, part[reference]) for part in parts))
    own = parts.unit * before.sums[SQUARES]
    by_score = ratio(total(own), total(before.sums[WEIGHT]))
    varies = variances(before.sums, before.days[[BLOCK_SQUARES, DAY_SQUARES]], own, parts)
    return Normal(few, before.sums, strata, mean, parts, by_score, varies)


def variances(sums: Floats, clusters: Floats, units: Floats, parts: Components) -> Floats:
    """The variance of a stretch's means by source, units, blocks and days: (3, STRATA, stretches)."""
    weight, squares, blocks, days = sums[WEIGHT], sums[SQUARES], clusters[0], clusters[1]
    length, memory = np.maximum(1.0, ratio(weight**2, days)), parts.memory
    longer = (1 + memory) / (1 - memory) - 2 * memory * (1 - memory**length) / (length * (1 - memory) ** 2)
    by_block = parts.block * np.maximum(0.0, blocks - squares)
    by_day = parts.day * (np.maximum(0.0, days - blocks) + (np.maximum(1.0, longer) - 1) * days)
    return ratio(np.stack((units, by_block, by_day)), weight**2)


def _by_strata(one: Stretch, few: Flags) -> Stretch:
    """A stretch with all days as one stratum where there are few units in one of them."""
    return Stretch(*(as_one(part, few) for part in one))


def as_one(part: Floats, where: Flags) -> Floats:
    """Sums by stratum, with all days as one stratum where they are to be."""
    if not where.any():
        return part
    whole = np.zeros_like(part)
    whole[:, 0] = part.sum(axis=1)
    return np.where(where, whole, part)


def _components(before: Stretch, recent: Floats, after: Stretch, mean_before: Floats, strata: Floats) -> Components:
    """Measure the components before the change; those of days also after it, as soon as there are enough of them."""
    squares, units = total(before.sums[SQUARES]), total(before.sums[UNITS])
    spread = centred(before.sums, (SQUARES, MIXED, TOTALS), mean_before) * _inflated(units, strata)
    blocks, days = total(before.days[BLOCKS]), total(before.days[DAYS])
    by_block = centred(before.days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean_before) * _inflated(blocks, strata)
    day = _between_days(before.days, mean_before, strata)
    in_a_row = centred(before.days, (PAIR_SQUARES, PAIR_MIXED, PAIR_TOTALS), mean_before, least=-math.inf)
    shared = ratio(in_a_row, total(before.days[PAIR_SQUARES]))
    settled = _between_days(after.days, means(after.sums), strata)
    day = np.where(total(after.days[DAYS]) >= SETTLED_DAYS, np.maximum(day, settled), day)
    return Components(
        np.maximum(np.maximum(SMALLEST_VARIANCE, ratio(spread, squares)), _at_least(recent)),
        ratio(np.maximum(0.0, by_block - spread), total(before.days[BLOCK_SQUARES]) - squares),
        *_remembered(day, shared, days, strata),
        np.maximum(1.0, blocks - strata),
        np.maximum(1.0, days - strata),
    )


def _at_least(recent: Floats) -> Floats:
    """Return the recent variance of units, less its standard error.

    If the spread has grown, the whole past understates it.
    """
    units = total(recent[UNITS])
    spread = ratio(centred(recent, (SQUARES, MIXED, TOTALS), means(recent)), total(recent[SQUARES]))
    least: Floats = spread * np.maximum(0.0, 1 - np.sqrt(2 / np.maximum(units, 1.0)))
    return least


def _between_days(days: Floats, mean: Floats, strata: Floats) -> Floats:
    """Covariance of the blocks of a day."""
    blocks, count = total(days[BLOCKS]), total(days[DAYS])
    by_block = centred(days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean) * _inflated(blocks, strata)
    by_day = centred(days, (DAY_SQUARES, DAY_MIXED, DAY_TOTALS), mean) * _inflated(count, strata)
    squares = total(days[DAY_SQUARES]) - total(days[BLOCK_SQUARES])
    return ratio(np.maximum(0.0, by_day - by_block), squares)


def _remembered(day: Floats, shared: Floats, days: Floats, strata: Floats) -> tuple[Floats, Floats]:
    """Covariance within a day and the correlation of days in a row, less small by what the estimated mean takes from both.

    A correlation is estimated low from few days, so one and a half standard errors are added to it. It counts by the days' covariance only: where
    days do not differ, there is nothing to remember.
    """
    error = 1.5 / np.sqrt(np.maximum(days, 1.0))
    memory = np.clip(ratio(shared, day) + error, 0.0, HIGHEST_MEMORY)
    taken = np.where(shared > 0, day * (1 + memory) / (1 - memory) * ratio(strata, days), 0.0)
    day, shared = day + taken, shared + taken
    return day, np.clip(ratio(shared, day) + error, 0.0, HIGHEST_MEMORY)


def means(sums: Floats) -> Floats:
    """The means of units, by stratum."""
    return ratio(sums[TOTAL], sums[WEIGHT])


def centred(sums: Floats, columns: tuple[int, int, int], mean: Floats, least: float = 0.0) -> Floats:
    """Sum of the squares (or products) of totals less what the mean would give them."""
    squares, mixed, totals = (sums[column] for column in columns)
    return total(np.maximum(least, totals - 2 * mean * mixed + mean * mean * squares))


def _inflated(count: Floats, strata: Floats) -> Floats:
    """By how much a spread around an estimated mean is too small."""
    return count / np.maximum(1.0, count - strata)


def total(parts: NDArray[Any]) -> Floats:
    """The sum over the first axis: of strata, or of sources of variance."""
    return np.add.reduce(parts, dtype=np.float64)  # type: ignore[no-any-return]


def ratio(part: Floats | float, whole: Floats) -> Floats:
    """Part by whole; 0 where the whole is nothing."""
    return part / np.where(whole > TINY, whole, math.inf)
