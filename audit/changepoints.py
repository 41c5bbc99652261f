"""How much the sums of two stretches of scores speak for a change of the mean between them.

The difference of the two means is compared with what it varies by itself. Units, the sessions of a day, vary around their mean; so
do blocks of hours, and days; and days in a row may resemble each other. Each of these is measured in the stretch before the change
(moments of nested random effects: what blocks vary beyond what their units explain is the blocks' own, and so on), and then reckoned
into both means by how many units, blocks and days each of them rests on. Weekdays and weekends are compared with their like.

The evidence is a Bayes factor: how much more probable the difference is if the mean changed at a given place than if it did not. The
size of the change is not known, so it is averaged over normal distributions of `SPREADS` sigma; the variance is not, so Student's t
stands for the normal distribution (Gönen, Johnson, Lu and Westfall 2005, "The Bayesian two-sample t test"; the degrees of freedom are
Satterthwaite's). Under independent normal units its expectation is about 1 when nothing has changed, so that it is an e-value that has
paid for the reference's uncertainty.

Scores are not normal: they are bounded, come in thirds or fifths, and the rare one lies far off. So three things differ from the
textbook. The distance is measured in two ways, as a difference and as a binomial deviance between the smallest and the largest value
seen, and the lesser counts, unless no unit after lies within the range of those before: where what is rare becomes a little less
rare, the deviance knows how little that says. The units after a change are taken to vary no less than those before it: of skewed scores
those with a high mean by chance vary little by the same chance. And where sessions get shorter, each is taken to vary as much more as
independent scores would make it, until they have shown what they do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.cells import Floats, Ints
from audit.series import (
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

SPREADS = ((0.7, 0.75), (4.0, 0.25))
"""Standard deviations of the sizes of change that are reckoned with, in sigma, and how much of the reckoning each has."""
FEWEST_BEFORE = 10
"""So many units stand before a change; and where weekdays or weekends have fewer of them, all days are compared with all."""
FEWEST_AFTER = 2
"""So many stand after it: one session is no change."""
PSEUDO_UNITS = 5.0
"""How many units' worth it counts, after a change, that units vary as they did before it."""
SETTLED_DAYS = 14
"""From so many days after a change on, what they differ by among themselves counts, too."""
HIGHEST_MEMORY = 0.9
"""Days in a row are never taken to resemble each other by more than this, as a correlation."""
MOST_COUPLED = 4.0
"""Of what units vary more after a change, no more than this can come from the change of a bounded mean: see `_varied`."""
SMALLEST_VARIANCE = 1e-6
"""Of a unit: scores that hardly vary are taken to vary by a thousandth of a point."""
_TINY = 1e-300
_FEWEST_FREEDOM = 3.0
_EDGE = 1e-9
Flags = NDArray[np.bool_]
Ranges = tuple[Floats, Floats]
"""The least and the greatest mean of a unit."""


class Stretch(NamedTuple):
    """What stretches of a series come to, each in a place of the last axis, by stratum."""

    sums: Floats
    """Of the units: (7, STRATA, stretches), columns of `audit.series`."""
    days: Floats
    """Of the whole days among them: (12, STRATA, stretches)."""


class Later(NamedTuple):
    """What stretches after a change come to, by stratum; of several that end at other times the change is the same."""

    sums: Floats
    """Of the units: (7, STRATA, stretches)."""
    partial: Floats
    """Squares of blocks and of days, the last ones as far as they have gone: (2, STRATA, stretches)."""
    of: Ints
    """The place of the stretch before the change."""


class Contrast(NamedTuple):
    """Stretches beside each other, an element a pair."""

    before: Floats
    """Mean of the first, from the origin; both means by the same shares of weekdays and weekends."""
    after: Floats
    variance_before: Floats
    """Of the mean before, whatever makes it vary included."""
    variance_after: Floats
    freedom: Floats
    """Degrees of freedom of the two variances together."""
    unit_variance: Floats
    """Of the mean of one unit."""
    unit_before: Floats
    """How much of the variance before comes from units."""
    unit_after: Floats
    excess: Floats
    """How many times as much as before the change units vary after it, at least 1; reckoned with in `unit_after`."""
    units_before: Floats
    units_after: Floats
    is_usable: Flags
    """Whether enough units stand on both sides."""

    def where(self, chosen: Flags) -> Contrast:
        """Some of the pairs."""
        *numbers, is_usable = (column[chosen] for column in self)
        return Contrast(*numbers, is_usable=is_usable)  # type: ignore[arg-type,misc]

    @property
    def size(self) -> Floats:
        """Mean after less mean before."""
        return self.after - self.before

    @property
    def variance(self) -> Floats:
        """Of the size."""
        return self.variance_before + self.variance_after


class _Components(NamedTuple):
    """What makes the means of a stretch vary, an element a pair."""

    unit: Floats
    """Variance of a unit for each squared weight."""
    block: Floats
    """Covariance of the units of a block."""
    day: Floats
    """Covariance of the blocks of a day."""
    memory: Floats
    """Correlation of days in a row."""
    blocks: Floats
    """How many blocks, less one a stratum, these rest on."""
    days: Floats


def contrast(before: Stretch, recent: Floats, settled: Stretch, later: Later) -> Contrast:
    """Compare stretches of whole days with stretches that follow them.

    For each stretch of `before`, `recent` has the sums of the last days of it, and `settled` the whole days after the change that every one
    of its later stretches holds.
    """
    few = np.any(before.sums[UNITS] < FEWEST_BEFORE, axis=0)
    before, settled = _by_strata(before, few), _by_strata(settled, few)
    recent, later = _as_one(recent, few), _later_by_strata(later, few[later.of])
    strata = np.maximum(1.0, _total(before.sums[UNITS] > 0))
    mean_before, mean_after = _means(before.sums), _means(later.sums)
    units, units_after = _total(before.sums[UNITS]), _total(later.sums[UNITS])
    parts = _components(before, recent, settled, mean_before, strata)
    own = parts.unit * before.sums[SQUARES]
    varies_before = _variances(before.sums, before.days[[BLOCK_SQUARES, DAY_SQUARES]], own, parts)[..., later.of]
    by_score = _ratio(_total(own), _total(before.sums[WEIGHT]))[later.of]
    parts_later = _Components(*(part[later.of] for part in parts))
    expected, excess = _spread_after(later, parts_later.unit, by_score, mean_after)
    varies_after = _variances(later.sums, later.partial, excess * expected, parts_later)
    each = _total(varies_before) + _total(varies_after)
    shares = np.where(later.sums[UNITS] > 0, 1 / np.maximum(each, _TINY), 0.0)
    shares = shares / np.maximum(_total(shares), _TINY)
    squared = shares * shares
    by_source_before, by_source_after = ((squared * varies).sum(axis=1) for varies in (varies_before, varies_after))
    freedom = np.maximum(1.0, units - strata)[later.of]
    return Contrast(
        _total(shares * mean_before[:, later.of]),
        _total(shares * mean_after),
        _total(by_source_before),
        _total(by_source_after),
        _freedom(by_source_before + by_source_after, np.stack((freedom, parts_later.blocks, parts_later.days))),
        parts_later.unit,
        by_source_before[0],
        by_source_after[0],
        excess,
        units[later.of],
        units_after,
        (units[later.of] >= FEWEST_BEFORE) & (units_after >= FEWEST_AFTER),
    )


def log_evidence(found: Contrast, before: Ranges, after: Ranges) -> Floats:
    """Natural logarithm of the Bayes factors; minus infinity where there is nothing to compare.

    `before` and `after` are the ranges of the units on either side, from the origin.
    """
    low, high = np.minimum(before[0], after[0]), np.maximum(before[1], after[1])
    room = (high - found.after) * (found.after - low), (high - found.before) * (found.before - low)
    share = np.where(room[0] < MOST_COUPLED * room[1], _ratio(*room), MOST_COUPLED)
    coupled = _varied(found, 1.0, found.excess / np.clip(share, 1.0, np.minimum(found.excess, MOST_COUPLED)))
    squared = _ratio(coupled.size**2, coupled.variance)
    apart = (after[1] < before[0]) | (after[0] > before[1])
    together = _together(found)
    counted = np.where(apart, squared, np.minimum(squared, _deviance(_varied(found, together, together), low, high)))
    relative = _ratio(coupled.unit_variance, coupled.variance)
    evidence = log_bayes_factor(counted, coupled.freedom, [(spread * spread * relative, share) for spread, share in SPREADS])
    return np.where(found.is_usable, evidence, -math.inf)


def log_bayes_factor(squared: Floats, freedom: Floats, sizes: Iterable[tuple[Floats, float]]) -> Floats:
    """Natural logarithm of the Bayes factor of Student's t, averaged over the sizes of change that are reckoned with.

    `squared` is the squared distance in standard errors, with so many degrees of `freedom`; each of `sizes` is the variance of a normal
    distribution of sizes, in squared standard errors, and its share of the reckoning; the shares sum to 1.
    """
    terms = []
    for wider, share in sizes:
        gain = np.log1p(squared / freedom) - np.log1p(squared / ((1 + wider) * freedom))
        terms.append(math.log(share) - 0.5 * np.log1p(wider) + (freedom + 1) / 2 * gain)
    return np.logaddexp.reduce(terms)  # type: ignore[no-any-return]


def _together(found: Contrast) -> Floats:
    """How many times as much as before the change all units vary around their common mean, as if nothing had changed."""
    both = found.units_before + found.units_after
    apart = found.units_before * found.units_after / np.maximum(both, 1.0) * _ratio(found.size**2, found.unit_variance)
    return _ratio(found.units_before + found.excess * found.units_after + apart, both)


def _varied(found: Contrast, before: Floats | float, after: Floats) -> Contrast:
    """The contrast if units varied so many times as much as they do before the change.

    The nearer a share is to one half, the more it varies: of scores that are bounded, a part of what units vary more comes from the
    change of their mean, and says nothing against it.
    """
    return found._replace(
        unit_variance=found.unit_variance * np.maximum(1.0, after),
        variance_before=found.variance_before + found.unit_before * (before - 1),
        variance_after=found.variance_after + found.unit_after * (after / found.excess - 1),
    )


def _by_strata(one: Stretch, few: Flags) -> Stretch:
    """A stretch with all days as one stratum where there are few units in one of them."""
    return Stretch(*(_as_one(part, few) for part in one))


def _later_by_strata(later: Later, few: Flags) -> Later:
    return Later(_as_one(later.sums, few), _as_one(later.partial, few), later.of)


def _as_one(part: Floats, where: Flags) -> Floats:
    if not where.any():
        return part
    whole = np.zeros_like(part)
    whole[:, 0] = part.sum(axis=1)
    return np.where(where, whole, part)


def _components(before: Stretch, recent: Floats, after: Stretch, mean_before: Floats, strata: Floats) -> _Components:
    """What makes means vary, measured before the change; of days also after it, as soon as there are enough of them."""
    squares, units = _total(before.sums[SQUARES]), _total(before.sums[UNITS])
    spread = _centred(before.sums, (SQUARES, MIXED, TOTALS), mean_before) * _inflated(units, strata)
    blocks, days = _total(before.days[BLOCKS]), _total(before.days[DAYS])
    by_block = _centred(before.days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean_before) * _inflated(blocks, strata)
    day = _between_days(before.days, mean_before, strata)
    in_a_row = _centred(before.days, (PAIR_SQUARES, PAIR_MIXED, PAIR_TOTALS), mean_before, least=-math.inf)
    shared = _ratio(in_a_row, _total(before.days[PAIR_SQUARES]))
    settled = _between_days(after.days, _means(after.sums), strata)
    day = np.where(_total(after.days[DAYS]) >= SETTLED_DAYS, np.maximum(day, settled), day)
    return _Components(
        np.maximum(np.maximum(SMALLEST_VARIANCE, _ratio(spread, squares)), _at_least(recent)),
        _ratio(np.maximum(0.0, by_block - spread), _total(before.days[BLOCK_SQUARES]) - squares),
        *_remembered(day, shared, days, strata),
        np.maximum(1.0, blocks - strata),
        np.maximum(1.0, days - strata),
    )


def _at_least(recent: Floats) -> Floats:
    """What the variance of units was lately, less its standard error: of a spread that has grown, all of the past says too little."""
    units = _total(recent[UNITS])
    spread = _ratio(_centred(recent, (SQUARES, MIXED, TOTALS), _means(recent)), _total(recent[SQUARES]))
    least: Floats = spread * np.maximum(0.0, 1 - np.sqrt(2 / np.maximum(units, 1.0)))
    return least


def _between_days(days: Floats, mean: Floats, strata: Floats) -> Floats:
    """Covariance of the blocks of a day."""
    blocks, count = _total(days[BLOCKS]), _total(days[DAYS])
    by_block = _centred(days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean) * _inflated(blocks, strata)
    by_day = _centred(days, (DAY_SQUARES, DAY_MIXED, DAY_TOTALS), mean) * _inflated(count, strata)
    squares = _total(days[DAY_SQUARES]) - _total(days[BLOCK_SQUARES])
    return _ratio(np.maximum(0.0, by_day - by_block), squares)


def _remembered(day: Floats, shared: Floats, days: Floats, strata: Floats) -> tuple[Floats, Floats]:
    """Covariance within a day and the correlation of days in a row, less small by what the estimated mean takes from both.

    A correlation is estimated low from few days, so one and a half standard errors are added to it. It counts by the days' covariance only: where
    days do not differ, there is nothing to remember.
    """
    error = 1.5 / np.sqrt(np.maximum(days, 1.0))
    memory = np.clip(_ratio(shared, day) + error, 0.0, HIGHEST_MEMORY)
    taken = np.where(shared > 0, day * (1 + memory) / (1 - memory) * _ratio(strata, days), 0.0)
    day, shared = day + taken, shared + taken
    return day, np.clip(_ratio(shared, day) + error, 0.0, HIGHEST_MEMORY)


def _spread_after(later: Later, unit: Floats, by_score: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """The variance of the units' sum after a change that is to be expected, by stratum, and how many times as large it is."""
    squares, weight, units = later.sums[SQUARES], later.sums[WEIGHT], later.sums[UNITS]
    expected = np.maximum(unit * squares, by_score * weight)
    count = _total(units)
    seen = _centred(later.sums, (SQUARES, MIXED, TOTALS), mean) * count
    freedom = np.maximum(0.0, count - _total(units > 0))
    share = (PSEUDO_UNITS + _ratio(seen, _total(expected))) / (PSEUDO_UNITS + freedom)
    return expected, np.maximum(1.0, share)


def _variances(sums: Floats, clusters: Floats, units: Floats, parts: _Components) -> Floats:
    """The variance of a stretch's means by source, units, blocks and days: (3, STRATA, stretches)."""
    weight, squares, blocks, days = sums[WEIGHT], sums[SQUARES], clusters[0], clusters[1]
    length, memory = np.maximum(1.0, _ratio(weight**2, days)), parts.memory
    longer = (1 + memory) / (1 - memory) - 2 * memory * (1 - memory**length) / (length * (1 - memory) ** 2)
    by_block = parts.block * np.maximum(0.0, blocks - squares)
    by_day = parts.day * (np.maximum(0.0, days - blocks) + (np.maximum(1.0, longer) - 1) * days)
    return _ratio(np.stack((units, by_block, by_day)), weight**2)


def _freedom(sources: Floats, freedoms: Floats) -> Floats:
    """Satterthwaite's degrees of freedom of a sum of variances."""
    return np.maximum(_FEWEST_FREEDOM, _ratio(_total(sources) ** 2, _total(sources**2 / freedoms)))


def _deviance(found: Contrast, low: Floats, high: Floats) -> Floats:
    """The distance as that of two shares of the width between the smallest and the largest value, in the same measure."""
    width = np.maximum(high - low, _TINY)
    many, later = _ratio(1.0, found.variance_before), _ratio(1.0, found.variance_after)
    p, q = (found.before - low) / width, (found.after - low) / width
    common = np.clip(_ratio(many * p + later * q, many + later), _EDGE, 1 - _EDGE)
    return 2 * (many * _divergence(p, common) + later * _divergence(q, common)) * common * (1 - common) * width * width


def _divergence(p: Floats, q: Floats) -> Floats:
    """Kullback-Leibler divergence of two Bernoulli distributions."""
    p = np.clip(p, 0.0, 1.0)
    return p * np.log(np.maximum(p, _TINY) / q) + (1 - p) * np.log(np.maximum(1 - p, _TINY) / (1 - q))


def _means(sums: Floats) -> Floats:
    return _ratio(sums[TOTAL], sums[WEIGHT])


def _centred(sums: Floats, columns: tuple[int, int, int], mean: Floats, least: float = 0.0) -> Floats:
    """Sum of the squares (or products) of totals less what the mean would give them."""
    squares, mixed, totals = (sums[column] for column in columns)
    return _total(np.maximum(least, totals - 2 * mean * mixed + mean * mean * squares))


def _inflated(count: Floats, strata: Floats) -> Floats:
    """By how much a spread around an estimated mean is too small."""
    return count / np.maximum(1.0, count - strata)


def _total(parts: NDArray[Any]) -> Floats:
    """The sum over the first axis: of strata, or of sources of variance."""
    return np.add.reduce(parts, dtype=np.float64)  # type: ignore[no-any-return]


def _ratio(part: Floats | float, whole: Floats) -> Floats:
    """Part by whole; 0 where the whole is nothing."""
    return part / np.where(whole > _TINY, whole, math.inf)
