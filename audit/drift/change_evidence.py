"""Evidence for a change of the mean between two stretches of scores, computed from sums.

The difference of the two means is compared with its expected variance. Units, the sessions of a day, vary around their mean; so
do blocks of hours, and days; and consecutive days may be correlated. Each component is measured in the stretch before the
change (moments of nested random effects: the variance of blocks beyond what their units explain belongs to the blocks, and so
on), and then applied to both means according to their numbers of units, blocks and days. Weekdays and weekends are compared
separately.

The evidence is a Bayes factor: how much more probable the difference is if the mean changed at a given place than if it did
not. The size of the change is unknown, so it is averaged over normal distributions of `SPREADS` sigma; the variance is unknown,
so Student's t replaces the normal distribution (Gönen, Johnson, Lu and Westfall 2005, "The Bayesian two-sample t test"; with
Satterthwaite's degrees of freedom). For independent normal units without a change its expectation is about 1, so it is an
e-value that accounts for the uncertainty of the reference.

Scores are not normal: they are bounded, come in thirds or fifths, and rare ones are outliers. So three things differ from the
textbook. First, the distance is measured as a difference and as a binomial deviance between the smallest and the largest value
seen, and the smaller one counts, unless all units after the change are outside the range of those before: if a rare value
becomes a little rarer, only the deviance is small enough. Second, units after a change are assumed to vary at least as much as
those before it: among skewed scores, a mean that is high by chance comes with a variance that is low by chance. Third, if
sessions get shorter, they are assumed to vary as much more as independent scores would, until their variance has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

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
    Flags,
    Floats,
    Ints,
)
from schemas.lazy_numpy import np

if TYPE_CHECKING:
    from schemas.lazy_numpy import NDArray

SPREADS = ((0.7, 0.75), (4.0, 0.25))
"""Prior of the size of change: standard deviations in sigma, each with its weight."""
FEWEST_AFTER = 2
"""Fewest units after a change: one session is not a change."""
PSEUDO_UNITS = 5.0
"""The weight, in units, of the assumption that units vary equally before and after a change."""
MOST_COUPLED = 4.0
"""Largest factor of the units' variance that a change of a bounded mean can explain: see `_varied`."""
_FEWEST_FREEDOM = 3.0
_EDGE = 1e-9
Ranges = tuple[Floats, Floats]
"""The least and the greatest mean of a unit."""

FEWEST_BEFORE = 10
"""Fewest units before a change. If weekdays or weekends have fewer, all days are compared together."""
SETTLED_DAYS = 14
"""Days after a change from which on their own variance is measured as well."""
HIGHEST_MEMORY = 0.9
"""Largest correlation of consecutive days that is assumed."""
SMALLEST_VARIANCE = 1e-6
"""Smallest variance of a unit: scores that hardly vary are assumed to vary by a thousandth of a point."""
TINY = 1e-300
"""Numbers below this are too small to divide by."""


class Later(NamedTuple):
    """The sums of stretches after changes, by stratum. Several stretches, with different ends, may follow one change."""

    sums: Floats
    """Sums of the units: (7, STRATA, stretches)."""
    partial: Floats
    """Squares of blocks and of days, including unfinished ones: (2, STRATA, stretches)."""
    of: Ints
    """The index of the stretch before the change."""


class Contrast(NamedTuple):
    """Pairs of a stretch before and a stretch after a change, one element per pair."""

    before: Floats
    """Mean before, relative to the origin; both means weight weekdays and weekends equally."""
    after: Floats
    variance_before: Floats
    """Variance of the mean before, from all sources."""
    variance_after: Floats
    freedom: Floats
    """Degrees of freedom of the two variances together."""
    unit_variance: Floats
    """Variance of the mean of one unit."""
    unit_before: Floats
    """The part of the variance before that comes from units."""
    unit_after: Floats
    excess: Floats
    """The factor by which units vary more after the change, at least 1; included in `unit_after`."""
    units_before: Floats
    units_after: Floats
    is_usable: Flags
    """True if there are enough units on both sides."""

    def where(self, chosen: Flags) -> Contrast:
        """Return some of the pairs."""
        *numbers, is_usable = (column[chosen] for column in self)
        return Contrast(*numbers, is_usable=is_usable)  # type: ignore[arg-type,misc]

    @property
    def size(self) -> Floats:
        """Mean after less mean before."""
        return self.after - self.before

    @property
    def variance(self) -> Floats:
        """Variance of the size."""
        return self.variance_before + self.variance_after


def contrast(normal: Normal, later: Later, reference: int | None = None) -> Contrast:
    """Compare the normal state with the stretches that follow.

    With `reference`, the index of one of the stretches, the excess variance and the degrees of freedom measured for that one
    are used for all.
    """
    of, later = later.of, _later_by_strata(later, normal.few[later.of])
    parts = Components(*(part[of] for part in normal.parts))
    mean, varies_before = means(later.sums), normal.varies[..., of]
    units, units_after = total(normal.sums[UNITS])[of], total(later.sums[UNITS])
    expected, excess = _spread_after(later, parts.unit, normal.by_score[of], mean)
    if reference is not None:
        excess = np.full_like(excess, excess[reference])
    varies_after = variances(later.sums, later.partial, excess * expected, parts)
    each = total(varies_before) + total(varies_after)
    shares = np.where(later.sums[UNITS] > 0, 1 / np.maximum(each, TINY), 0.0)
    shares = shares / np.maximum(total(shares), TINY)
    squared = shares * shares
    by_source_before, by_source_after = ((squared * varies).sum(axis=1) for varies in (varies_before, varies_after))
    freedoms = np.stack((np.maximum(1.0, units - normal.strata[of]), parts.blocks, parts.days))
    freedom = _freedom(_at_least_its_error(by_source_before + by_source_after, freedoms), freedoms)
    if reference is not None:
        freedom = np.full_like(freedom, freedom[reference])
    return Contrast(
        total(shares * normal.mean[:, of]),
        total(shares * mean),
        total(by_source_before),
        total(by_source_after),
        freedom,
        parts.unit,
        by_source_before[0],
        by_source_after[0],
        excess,
        units,
        units_after,
        (units >= FEWEST_BEFORE) & (units_after >= FEWEST_AFTER),
    )


def _later_by_strata(later: Later, few: Flags) -> Later:
    return Later(as_one(later.sums, few), as_one(later.partial, few), later.of)


def as_one(part: Floats, where: Flags) -> Floats:
    """Return the sums by stratum, with all days in the first stratum where `where` is true."""
    if not where.any():
        return part
    whole = np.zeros_like(part)
    whole[:, 0] = part.sum(axis=1)
    return np.where(where, whole, part)


def means(sums: Floats) -> Floats:
    """Return the means of units by stratum."""
    return ratio(sums[TOTAL], sums[WEIGHT])


def ratio(part: Floats | float, whole: Floats) -> Floats:
    """Return part / whole; 0 if the whole is 0."""
    return part / np.where(whole > TINY, whole, math.inf)


def total(parts: NDArray[Any]) -> Floats:
    """Return the sum over the first axis, of strata or of sources of variance."""
    return np.add.reduce(parts, dtype=np.float64)  # type: ignore[no-any-return]


def _spread_after(later: Later, unit: Floats, by_score: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """Return the expected variance of the units' sum after a change by stratum, and the factor of the observed variance."""
    squares, weight, units = later.sums[SQUARES], later.sums[WEIGHT], later.sums[UNITS]
    expected = np.maximum(unit * squares, by_score * weight)
    count = total(units)
    seen = centred(later.sums, (SQUARES, MIXED, TOTALS), mean) * count
    freedom = np.maximum(0.0, count - total(units > 0))
    share = (PSEUDO_UNITS + ratio(seen, total(expected))) / (PSEUDO_UNITS + freedom)
    return expected, np.maximum(1.0, share)


def centred(sums: Floats, columns: tuple[int, int, int], mean: Floats, least: float = 0.0) -> Floats:
    """Return the sum of squares (or products) around the mean."""
    squares, mixed, totals = (sums[column] for column in columns)
    return total(np.maximum(least, totals - 2 * mean * mixed + mean * mean * squares))


def variances(sums: Floats, clusters: Floats, units: Floats, parts: Components) -> Floats:
    """Return the variance of a stretch's means by source, which is units, blocks and days: (3, STRATA, stretches)."""
    weight, squares, blocks, days = sums[WEIGHT], sums[SQUARES], clusters[0], clusters[1]
    length, memory = np.maximum(1.0, ratio(weight**2, days)), parts.memory
    longer = (1 + memory) / (1 - memory) - 2 * memory * (1 - memory**length) / (length * (1 - memory) ** 2)
    by_block = parts.block * np.maximum(0.0, blocks - squares)
    by_day = parts.day * (np.maximum(0.0, days - blocks) + (np.maximum(1.0, longer) - 1) * days)
    return ratio(np.stack((units, by_block, by_day)), weight**2)


def _freedom(sources: Floats, freedoms: Floats) -> Floats:
    """Return Satterthwaite's degrees of freedom of a sum of variances."""
    return np.maximum(_FEWEST_FREEDOM, ratio(total(sources) ** 2, total(sources**2 / freedoms)))


def _at_least_its_error(sources: Floats, freedoms: Floats) -> Floats:
    """Return the variances by source, with those of blocks and days at least the standard error that units cause.

    The variance between a few days may be estimated as 0, which does not mean that it is 0.
    """
    least = np.sqrt(2 / freedoms) * sources[0]
    return np.stack((sources[0], *np.maximum(sources[1:], least[1:])))


def most_log_evidence(normal: Normal, sums: Floats, of: Ints) -> Floats:
    """Return an upper bound of `log_evidence` that is much cheaper; `sums` are those of `Later` up to SQUARES.

    The strata's shares in the size s are unknown, but by Cauchy and Schwarz s² / variance is at most the sum of that ratio over
    the strata, and units vary at least as much after a change as before it. For a squared distance q with n degrees of freedom,
    the log Bayes factor is below q (1 + 1/n) / 2, and n is at least the least of the three sources'.
    """
    sums = as_one(sums, normal.few[of])
    apart = np.where(sums[UNITS] > 0, means(sums) - normal.mean[:, of], 0.0)
    variance = total(normal.varies)[:, of] + normal.parts.unit[of] * ratio(sums[SQUARES], sums[WEIGHT] ** 2)
    units = total(normal.sums[UNITS]) - normal.strata
    freedom = np.maximum(_FEWEST_FREEDOM, np.minimum(units, np.minimum(normal.parts.blocks, normal.parts.days)))
    return total(ratio(apart**2, variance)) * ((1 + 1 / freedom) / 2)[of]


def log_evidence(contrast: Contrast, before: Ranges, after: Ranges) -> Floats:
    """Return the log Bayes factors; minus infinity for pairs that are not usable.

    `before` and `after` are the ranges of the units on each side, relative to the origin.
    """
    low, high = np.minimum(before[0], after[0]), np.maximum(before[1], after[1])
    room = (high - contrast.after) * (contrast.after - low), (high - contrast.before) * (contrast.before - low)
    share = np.where(room[0] < MOST_COUPLED * room[1], ratio(*room), MOST_COUPLED)
    coupled = _varied(contrast, 1.0, contrast.excess / np.clip(share, 1.0, np.minimum(contrast.excess, MOST_COUPLED)))
    squared = ratio(coupled.size**2, coupled.variance)
    apart = (after[1] < before[0]) | (after[0] > before[1])
    together = _together(contrast)
    counted = np.where(apart, squared, np.minimum(squared, _deviance(_varied(contrast, together, together), low, high)))
    relative = ratio(coupled.unit_variance, coupled.variance)
    evidence = log_bayes_factor(counted, coupled.freedom, [(spread * spread * relative, share) for spread, share in SPREADS])
    return np.where(contrast.is_usable, evidence, -math.inf)


def _varied(contrast: Contrast, before: Floats | float, after: Floats) -> Contrast:
    """Return the contrast with the units' variance multiplied by factors before and after the change.

    Shares near one half vary most. So for bounded scores, part of an excess variance comes from the change of the mean itself
    and is no evidence against it.
    """
    return contrast._replace(
        unit_variance=contrast.unit_variance * np.maximum(1.0, after),
        variance_before=contrast.variance_before + contrast.unit_before * (before - 1),
        variance_after=contrast.variance_after + contrast.unit_after * (after / contrast.excess - 1),
    )


def _together(contrast: Contrast) -> Floats:
    """Return the factor of the units' variance around the common mean of both sides, as if nothing had changed."""
    both = contrast.units_before + contrast.units_after
    apart = (
        contrast.units_before * contrast.units_after / np.maximum(both, 1.0) * ratio(contrast.size**2, contrast.unit_variance)
    )
    return ratio(contrast.units_before + contrast.excess * contrast.units_after + apart, both)


def _deviance(contrast: Contrast, low: Floats, high: Floats) -> Floats:
    """Return the distance as a binomial deviance between the smallest and the largest value, on the same scale."""
    width = np.maximum(high - low, TINY)
    many, later = ratio(1.0, contrast.variance_before), ratio(1.0, contrast.variance_after)
    p, q = (contrast.before - low) / width, (contrast.after - low) / width
    common = np.clip(ratio(many * p + later * q, many + later), _EDGE, 1 - _EDGE)
    return 2 * (many * _divergence(p, common) + later * _divergence(q, common)) * common * (1 - common) * width * width


def _divergence(p: Floats, q: Floats) -> Floats:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    p = np.clip(p, 0.0, 1.0)
    return p * np.log(np.maximum(p, TINY) / q) + (1 - p) * np.log(np.maximum(1 - p, TINY) / (1 - q))


def log_bayes_factor(squared: Floats, freedom: Floats, sizes: Iterable[tuple[Floats, float]]) -> Floats:
    """Return the log Bayes factor of Student's t, averaged over a prior of the size of change.

    `squared` is the squared distance in standard errors, with its degrees of `freedom`. Each of `sizes` is the variance of a
    normal distribution of sizes, in squared standard errors, and its weight; the weights sum to 1.
    """
    terms = []
    for wider, share in sizes:
        gain = np.log1p(squared / freedom) - np.log1p(squared / ((1 + wider) * freedom))
        terms.append(math.log(share) - 0.5 * np.log1p(wider) + (freedom + 1) / 2 * gain)
    return np.logaddexp.reduce(terms)  # type: ignore[no-any-return]


class Stretch(NamedTuple):
    """The sums of stretches of a series by stratum; the last axis is the stretch."""

    sums: Floats
    """Sums of the units: (7, STRATA, stretches), rows of `audit.drift.series`."""
    days: Floats
    """Sums of the whole days: (12, STRATA, stretches)."""


class Components(NamedTuple):
    """The components of variance, one element per pair."""

    unit: Floats
    """Variance of a unit for each squared weight."""
    block: Floats
    """Covariance of the units of a block."""
    day: Floats
    """Covariance of the blocks of a day."""
    memory: Floats
    """Correlation of days in a row."""
    blocks: Floats
    """The number of blocks behind the estimates, less one per stratum."""
    days: Floats


class Normal(NamedTuple):
    """The normal state before each of some changes; the last axis is the change."""

    few: Flags
    """True if all days are one stratum, because a stratum has few units."""
    sums: Floats
    """Sums of the units: (7, STRATA, changes)."""
    strata: Floats
    """The number of strata with units."""
    mean: Floats
    """Mean by stratum."""
    parts: Components
    by_score: Floats
    """Variance of a unit for each weight."""
    varies: Floats
    """Variance of the means by source: (3, STRATA, changes)."""


def normal_before(before: Stretch, recent: Floats, settled: Stretch, reference: int | None = None) -> Normal:
    """Return the normal state in stretches of whole days before a change.

    For each stretch of `before`, `recent` has the sums of its last days, and `settled` those of the whole days after the change
    that all of its later stretches contain. With `reference`, all changes use the components measured for that one.
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


def _by_strata(stretch: Stretch, few: Flags) -> Stretch:
    """Return a stretch with all days in one stratum where a stratum has few units."""
    return Stretch(*(as_one(part, few) for part in stretch))


def _components(before: Stretch, recent: Floats, after: Stretch, mean_before: Floats, strata: Floats) -> Components:
    """Measure the components before the change; that of days also after it, once there are enough days."""
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


def _inflated(count: Floats, strata: Floats) -> Floats:
    """Return the correction for a variance around an estimated mean."""
    return count / np.maximum(1.0, count - strata)


def _between_days(days: Floats, mean: Floats, strata: Floats) -> Floats:
    """Return the covariance of the blocks of a day."""
    blocks, count = total(days[BLOCKS]), total(days[DAYS])
    by_block = centred(days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean) * _inflated(blocks, strata)
    by_day = centred(days, (DAY_SQUARES, DAY_MIXED, DAY_TOTALS), mean) * _inflated(count, strata)
    squares = total(days[DAY_SQUARES]) - total(days[BLOCK_SQUARES])
    return ratio(np.maximum(0.0, by_day - by_block), squares)


def _at_least(recent: Floats) -> Floats:
    """Return the recent variance of units, less its standard error.

    If the variance has grown, the whole past would understate it.
    """
    units = total(recent[UNITS])
    spread = ratio(centred(recent, (SQUARES, MIXED, TOTALS), means(recent)), total(recent[SQUARES]))
    least: Floats = spread * np.maximum(0.0, 1 - np.sqrt(2 / np.maximum(units, 1.0)))
    return least


def _remembered(day: Floats, shared: Floats, days: Floats, strata: Floats) -> tuple[Floats, Floats]:
    """Return the covariance within a day and the correlation of consecutive days, corrected for the estimated mean.

    The correlation is underestimated from few days, so one and a half standard errors are added. It only matters together with
    the covariance within a day: without that, there is nothing to correlate.
    """
    error = 1.5 / np.sqrt(np.maximum(days, 1.0))
    memory = np.clip(ratio(shared, day) + error, 0.0, HIGHEST_MEMORY)
    taken = np.where(shared > 0, day * (1 + memory) / (1 - memory) * ratio(strata, days), 0.0)
    day, shared = day + taken, shared + taken
    return day, np.clip(ratio(shared, day) + error, 0.0, HIGHEST_MEMORY)
