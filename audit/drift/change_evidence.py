"""Evidence for a change of the mean between two stretches of scores, computed from sums.

The difference of the two means is compared with its expected variance. Units, which are the sessions of a day, vary around their
mean. So do blocks of hours, and so do days, and consecutive days may be correlated. Each component of variance is measured in
the stretch before the change (moments of nested random effects: the variance of blocks beyond what their units explain belongs
to the blocks, and so on). It is then applied to both means according to their numbers of units, blocks and days. Weekdays and
weekends are compared separately.

The evidence is a Bayes factor: how much more probable the difference is if the mean changed at a given cell than if it did not.
The size of the change is unknown, so it is averaged over the normal distributions of `EFFECT_SIZES`. The variance is unknown, so
Student's t replaces the normal distribution (Gönen, Johnson, Lu and Westfall 2005, "The Bayesian two-sample t test"; with
Satterthwaite's degrees of freedom). For independent normal units without a change its expectation is about 1, so it is an
e-value that accounts for the uncertainty of the reference.

Scores are not normal: they are bounded, come in thirds or fifths, and rare ones are outliers. So three things differ from the
textbook. First, the distance is measured both as a difference and as a binomial deviance between the smallest and the largest
observed value. The smaller distance counts, unless all units after the change are outside the range of those before: if a rare
value becomes a little rarer, only the deviance is small enough. Second, units after a change are assumed to vary at least as
much as those before it: among skewed scores, a mean that is high by chance comes with a variance that is low by chance. Third,
shorter sessions are assumed to vary more, as independent scores would, until their variance has been measured.
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

EFFECT_SIZES = ((0.7, 0.75), (4.0, 0.25))
"""Prior of the size of a change: standard deviations in sigma, each with its weight."""
MIN_UNITS_BEFORE = 10
"""Minimum number of units before a change. If weekdays or weekends have fewer, all days are compared together."""
MIN_UNITS_AFTER = 2
"""Minimum number of units after a change: one session is not a change."""
PSEUDO_UNITS = 5.0
"""The weight, in units, of the assumption that units vary equally before and after a change."""
MAX_MEAN_EFFECT = 4.0
"""Maximum factor of the units' variance that the change of a bounded mean itself can explain."""
SETTLED_DAYS = 14
"""Days after a change from which on their own variance is measured as well."""
MAX_AUTOCORRELATION = 0.9
"""Maximum correlation of consecutive days that is assumed."""
MIN_VARIANCE = 1e-6
"""Minimum variance of a unit: scores that hardly vary are assumed to vary by a thousandth of a point."""
TINY = 1e-300
"""Numbers below this are too small to divide by."""
MIN_FREEDOM = 3.0
_MIN_SHARE = 1e-9
Ranges = tuple[Floats, Floats]
"""The lowest and the highest mean of a unit."""


class Stretch(NamedTuple):
    """The sums of stretches of a series by stratum; the last axis is the stretch."""

    sums: Floats
    """Sums of the units: (7, STRATA, stretches), rows of `audit.drift.series`."""
    days: Floats
    """Sums of the whole days: (12, STRATA, stretches)."""


class LaterStretch(NamedTuple):
    """The sums of stretches after changes, by stratum. Several stretches, with different ends, may follow one change."""

    sums: Floats
    """Sums of the units: (7, STRATA, stretches)."""
    squares: Floats
    """Sums of the squares of blocks and of days, including unfinished ones: (2, STRATA, stretches)."""
    change: Ints
    """The index of the change that each stretch follows."""


class Components(NamedTuple):
    """The components of variance, one element per change."""

    unit: Floats
    """Variance of a unit for each squared weight."""
    block: Floats
    """Covariance of the units of a block."""
    day: Floats
    """Covariance of the blocks of a day."""
    autocorrelation: Floats
    """Correlation of consecutive days."""
    block_freedom: Floats
    """The number of blocks behind the estimates, less one per stratum."""
    day_freedom: Floats
    """The number of days behind the estimates, less one per stratum."""


class NormalState(NamedTuple):
    """The normal state before each of several changes; the last axis is the change."""

    is_pooled: Flags
    """True if all days are one stratum, because a stratum has few units."""
    sums: Floats
    """Sums of the units: (7, STRATA, changes)."""
    strata: Floats
    """The number of strata with units."""
    mean: Floats
    """Mean by stratum."""
    components: Components
    variance_per_weight: Floats
    """Variance of a unit divided by its weight; it grows as sessions get shorter."""
    mean_variances: Floats
    """Variance of the means by source: (3, STRATA, changes)."""


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

    def where(self, mask: Flags) -> Contrast:
        """Return the pairs for which the mask is true."""
        *numbers, is_usable = (column[mask] for column in self)
        return Contrast(*numbers, is_usable=is_usable)  # type: ignore[arg-type,misc]

    @property
    def size(self) -> Floats:
        """Mean after less mean before."""
        return self.after - self.before

    @property
    def variance(self) -> Floats:
        """Variance of the size."""
        return self.variance_before + self.variance_after


def normal_before(before: Stretch, recent: Floats, settled: Stretch, reference: int | None = None) -> NormalState:
    """Return the normal state in stretches of whole days before a change.

    For each stretch of `before`, `recent` has the sums of its last days, and `settled` those of the whole days after the change
    that all of its later stretches contain. With `reference`, all changes use the components measured for that one.
    """
    is_pooled = np.any(before.sums[UNITS] < MIN_UNITS_BEFORE, axis=0)
    before = _pool_stretch(before, is_pooled)
    settled = _pool_stretch(settled, is_pooled)
    recent = _pool_strata(recent, is_pooled)
    strata = np.maximum(1.0, total(before.sums[UNITS] > 0))
    mean = means(before.sums)
    components = _measure_components(before, recent, settled, mean, strata)
    if reference is not None:
        components = Components(*(np.full_like(column, column[reference]) for column in components))
    unit_variances = components.unit * before.sums[SQUARES]
    variance_per_weight = ratio(total(unit_variances), total(before.sums[WEIGHT]))
    mean_variances = _mean_variances(before.sums, before.days[[BLOCK_SQUARES, DAY_SQUARES]], unit_variances, components)
    return NormalState(is_pooled, before.sums, strata, mean, components, variance_per_weight, mean_variances)


def compare_means(normal: NormalState, later: LaterStretch, reference: int | None = None) -> Contrast:
    """Compare the normal state with the stretches that follow.

    With `reference`, the index of one of the stretches, all stretches use the excess variance and the degrees of freedom measured
    for that one.
    """
    change = later.change
    later = _pool_later(later, normal.is_pooled[change])
    components = Components(*(column[change] for column in normal.components))
    mean = means(later.sums)
    variances_before = normal.mean_variances[..., change]
    units_before = total(normal.sums[UNITS])[change]
    units_after = total(later.sums[UNITS])
    expected, excess = _estimate_excess(later, components.unit, normal.variance_per_weight[change], mean)
    if reference is not None:
        excess = np.full_like(excess, excess[reference])
    variances_after = _mean_variances(later.sums, later.squares, excess * expected, components)
    shares = _stratum_shares(later, total(variances_before) + total(variances_after))
    sources_before = (shares**2 * variances_before).sum(axis=1)
    sources_after = (shares**2 * variances_after).sum(axis=1)
    freedoms = np.stack(
        (np.maximum(1.0, units_before - normal.strata[change]), components.block_freedom, components.day_freedom)
    )
    freedom = _satterthwaite_freedom(_floor_at_standard_error(sources_before + sources_after, freedoms), freedoms)
    if reference is not None:
        freedom = np.full_like(freedom, freedom[reference])
    return Contrast(
        before=total(shares * normal.mean[:, change]),
        after=total(shares * mean),
        variance_before=total(sources_before),
        variance_after=total(sources_after),
        freedom=freedom,
        unit_variance=components.unit,
        unit_before=sources_before[0],
        unit_after=sources_after[0],
        excess=excess,
        units_before=units_before,
        units_after=units_after,
        is_usable=(units_before >= MIN_UNITS_BEFORE) & (units_after >= MIN_UNITS_AFTER),
    )


def log_evidence(contrast: Contrast, before: Ranges, after: Ranges) -> Floats:
    """Return the log Bayes factors; minus infinity for pairs that are not usable.

    `before` and `after` are the ranges of the units on each side, relative to the origin.
    """
    low = np.minimum(before[0], after[0])
    high = np.maximum(before[1], after[1])
    by_difference = _scale_unit_variance(contrast, 1.0, contrast.excess / _mean_effect(contrast, low, high))
    squared_difference = ratio(by_difference.size**2, by_difference.variance)
    common_factor = _common_variance_factor(contrast)
    squared_deviance = _binomial_deviance(_scale_unit_variance(contrast, common_factor, common_factor), low, high)
    is_disjoint = (after[1] < before[0]) | (after[0] > before[1])
    squared = np.where(is_disjoint, squared_difference, np.minimum(squared_difference, squared_deviance))
    relative = ratio(by_difference.unit_variance, by_difference.variance)
    sizes = [(deviation * deviation * relative, weight) for deviation, weight in EFFECT_SIZES]
    return np.where(contrast.is_usable, log_bayes_factor(squared, by_difference.freedom, sizes), -math.inf)


def bound_log_evidence(normal: NormalState, sums: Floats, change: Ints) -> Floats:
    """Return an upper bound of `log_evidence` that is much cheaper to compute.

    `sums` are those of `LaterStretch` up to SQUARES, and `change` its index of the change.

    The strata's shares in the size s are unknown, but by Cauchy and Schwarz s² / variance is at most the sum of that ratio over
    the strata, and units vary at least as much after a change as before it. For a squared distance q with n degrees of freedom,
    the log Bayes factor is below q (1 + 1/n) / 2, and n is at least the smallest of the three sources' degrees of freedom.
    """
    sums = _pool_strata(sums, normal.is_pooled[change])
    difference = np.where(sums[UNITS] > 0, means(sums) - normal.mean[:, change], 0.0)
    unit_variance_after = normal.components.unit[change] * ratio(sums[SQUARES], sums[WEIGHT] ** 2)
    variance = total(normal.mean_variances)[:, change] + unit_variance_after
    unit_freedom = total(normal.sums[UNITS]) - normal.strata
    cluster_freedom = np.minimum(normal.components.block_freedom, normal.components.day_freedom)
    freedom = np.maximum(MIN_FREEDOM, np.minimum(unit_freedom, cluster_freedom))
    return total(ratio(difference**2, variance)) * ((1 + 1 / freedom) / 2)[change]


def log_bayes_factor(squared: Floats, freedom: Floats, sizes: Iterable[tuple[Floats, float]]) -> Floats:
    """Return the log Bayes factor of Student's t, averaged over a prior of the size of change.

    `squared` is the squared distance in standard errors, with its degrees of `freedom`. Each of `sizes` is the variance of a
    normal distribution of sizes, in squared standard errors, and its weight; the weights sum to 1.
    """
    terms = []
    for size_variance, weight in sizes:
        gain = np.log1p(squared / freedom) - np.log1p(squared / ((1 + size_variance) * freedom))
        terms.append(math.log(weight) - 0.5 * np.log1p(size_variance) + (freedom + 1) / 2 * gain)
    return np.logaddexp.reduce(terms)  # type: ignore[no-any-return]


def means(sums: Floats) -> Floats:
    """Return the means of units by stratum."""
    return ratio(sums[TOTAL], sums[WEIGHT])


def ratio(numerator: Floats | float, denominator: Floats) -> Floats:
    """Return the quotient; 0 where the denominator is 0."""
    return numerator / np.where(denominator > TINY, denominator, math.inf)


def total(values: NDArray[Any]) -> Floats:
    """Return the sum over the first axis, which is that of strata or of sources of variance."""
    return np.add.reduce(values, dtype=np.float64)  # type: ignore[no-any-return]


def _pool_stretch(stretch: Stretch, is_pooled: Flags) -> Stretch:
    return Stretch(_pool_strata(stretch.sums, is_pooled), _pool_strata(stretch.days, is_pooled))


def _pool_later(later: LaterStretch, is_pooled: Flags) -> LaterStretch:
    return LaterStretch(_pool_strata(later.sums, is_pooled), _pool_strata(later.squares, is_pooled), later.change)


def _pool_strata(sums: Floats, is_pooled: Flags) -> Floats:
    """Return the sums by stratum, with all days in the first stratum where `is_pooled` is true."""
    if not is_pooled.any():
        return sums
    pooled = np.zeros_like(sums)
    pooled[:, 0] = sums.sum(axis=1)
    return np.where(is_pooled, pooled, sums)


def _stratum_shares(later: LaterStretch, variances: Floats) -> Floats:
    """Return the share of each stratum in the means, by the inverse of its variance; 0 for strata without later units."""
    precisions = np.where(later.sums[UNITS] > 0, 1 / np.maximum(variances, TINY), 0.0)
    return precisions / np.maximum(total(precisions), TINY)


def _estimate_excess(later: LaterStretch, unit: Floats, variance_per_weight: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """Return the expected variance of the units' sum after a change by stratum, and the factor by which units vary more than that."""
    squares = later.sums[SQUARES]
    weight = later.sums[WEIGHT]
    units = later.sums[UNITS]
    expected = np.maximum(unit * squares, variance_per_weight * weight)
    count = total(units)
    observed = _sum_centred_squares(later.sums, (SQUARES, MIXED, TOTALS), mean) * count
    freedom = np.maximum(0.0, count - total(units > 0))
    factor = (PSEUDO_UNITS + ratio(observed, total(expected))) / (PSEUDO_UNITS + freedom)
    return expected, np.maximum(1.0, factor)


def _sum_centred_squares(sums: Floats, rows: tuple[int, int, int], mean: Floats, lower_bound: float = 0.0) -> Floats:
    """Return the sum of squares (or products) around the mean, from the rows of squares, mixed products and totals."""
    squares, mixed, totals = (sums[row] for row in rows)
    return total(np.maximum(lower_bound, totals - 2 * mean * mixed + mean * mean * squares))


def _mean_variances(sums: Floats, clusters: Floats, unit_variances: Floats, components: Components) -> Floats:
    """Return the variance of a stretch's means by source, which is units, blocks and days: (3, STRATA, stretches)."""
    weight = sums[WEIGHT]
    squares = sums[SQUARES]
    block_squares, day_squares = clusters
    rho = components.autocorrelation
    effective_days = np.maximum(1.0, ratio(weight**2, day_squares))
    # The factor by which the autocorrelation of consecutive days increases the variance of their mean.
    inflation = (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**effective_days) / (effective_days * (1 - rho) ** 2)
    by_block = components.block * np.maximum(0.0, block_squares - squares)
    by_day = components.day * (np.maximum(0.0, day_squares - block_squares) + (np.maximum(1.0, inflation) - 1) * day_squares)
    return ratio(np.stack((unit_variances, by_block, by_day)), weight**2)


def _satterthwaite_freedom(sources: Floats, freedoms: Floats) -> Floats:
    """Return Satterthwaite's degrees of freedom of a sum of variances."""
    return np.maximum(MIN_FREEDOM, ratio(total(sources) ** 2, total(sources**2 / freedoms)))


def _floor_at_standard_error(sources: Floats, freedoms: Floats) -> Floats:
    """Return the variances by source, with those of blocks and days at least the standard error that units cause.

    The variance between a few days may be estimated as 0, which does not mean that it is 0.
    """
    floors = np.sqrt(2 / freedoms) * sources[0]
    return np.stack((sources[0], np.maximum(sources[1], floors[1]), np.maximum(sources[2], floors[2])))


def _mean_effect(contrast: Contrast, low: Floats, high: Floats) -> Floats:
    """Return the factor of the units' variance that comes from the change of the mean itself.

    The variance of bounded scores is largest for means in the middle of the scale. The part of the excess variance that this
    explains is no evidence against the change.
    """
    max_variance_before = (high - contrast.before) * (contrast.before - low)
    max_variance_after = (high - contrast.after) * (contrast.after - low)
    is_below_max = max_variance_after < MAX_MEAN_EFFECT * max_variance_before
    factor = np.where(is_below_max, ratio(max_variance_after, max_variance_before), MAX_MEAN_EFFECT)
    return np.clip(factor, 1.0, np.minimum(contrast.excess, MAX_MEAN_EFFECT))


def _scale_unit_variance(contrast: Contrast, factor_before: Floats | float, factor_after: Floats) -> Contrast:
    """Return the contrast with the units' variance multiplied by factors before and after the change."""
    return contrast._replace(
        unit_variance=contrast.unit_variance * np.maximum(1.0, factor_after),
        variance_before=contrast.variance_before + contrast.unit_before * (factor_before - 1),
        variance_after=contrast.variance_after + contrast.unit_after * (factor_after / contrast.excess - 1),
    )


def _common_variance_factor(contrast: Contrast) -> Floats:
    """Return the factor of the units' variance around the common mean of both sides, as if nothing had changed."""
    count = contrast.units_before + contrast.units_after
    pair_weight = contrast.units_before * contrast.units_after / np.maximum(count, 1.0)
    between_sides = pair_weight * ratio(contrast.size**2, contrast.unit_variance)
    return ratio(contrast.units_before + contrast.excess * contrast.units_after + between_sides, count)


def _binomial_deviance(contrast: Contrast, low: Floats, high: Floats) -> Floats:
    """Return the distance as a binomial deviance between the smallest and the largest value, in squared standard errors."""
    width = np.maximum(high - low, TINY)
    precision_before = ratio(1.0, contrast.variance_before)
    precision_after = ratio(1.0, contrast.variance_after)
    p = (contrast.before - low) / width
    q = (contrast.after - low) / width
    common = ratio(precision_before * p + precision_after * q, precision_before + precision_after)
    common = np.clip(common, _MIN_SHARE, 1 - _MIN_SHARE)
    divergence = precision_before * _divergence(p, common) + precision_after * _divergence(q, common)
    return 2 * divergence * common * (1 - common) * width * width


def _divergence(p: Floats, q: Floats) -> Floats:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    p = np.clip(p, 0.0, 1.0)
    return p * np.log(np.maximum(p, TINY) / q) + (1 - p) * np.log(np.maximum(1 - p, TINY) / (1 - q))


def _measure_components(before: Stretch, recent: Floats, settled: Stretch, mean_before: Floats, strata: Floats) -> Components:
    """Measure the components before the change; that of days also after it, once there are enough days."""
    squares = total(before.sums[SQUARES])
    units = total(before.sums[UNITS])
    blocks = total(before.days[BLOCKS])
    days = total(before.days[DAYS])
    by_unit = _sum_centred_squares(before.sums, (SQUARES, MIXED, TOTALS), mean_before) * _bias_correction(units, strata)
    by_block = _sum_centred_squares(before.days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean_before)
    by_block *= _bias_correction(blocks, strata)
    day = _day_covariance(before.days, mean_before, strata)
    day_after = _day_covariance(settled.days, means(settled.sums), strata)
    day = np.where(total(settled.days[DAYS]) >= SETTLED_DAYS, np.maximum(day, day_after), day)
    pair_rows = (PAIR_SQUARES, PAIR_MIXED, PAIR_TOTALS)
    pair_products = _sum_centred_squares(before.days, pair_rows, mean_before, lower_bound=-math.inf)
    lag_covariance = ratio(pair_products, total(before.days[PAIR_SQUARES]))
    day, autocorrelation = _correct_for_mean(day, lag_covariance, days, strata)
    return Components(
        unit=np.maximum(np.maximum(MIN_VARIANCE, ratio(by_unit, squares)), _recent_variance(recent)),
        block=ratio(np.maximum(0.0, by_block - by_unit), total(before.days[BLOCK_SQUARES]) - squares),
        day=day,
        autocorrelation=autocorrelation,
        block_freedom=np.maximum(1.0, blocks - strata),
        day_freedom=np.maximum(1.0, days - strata),
    )


def _bias_correction(count: Floats, strata: Floats) -> Floats:
    """Return the correction for a variance around an estimated mean."""
    return count / np.maximum(1.0, count - strata)


def _day_covariance(days: Floats, mean: Floats, strata: Floats) -> Floats:
    """Return the covariance of the blocks of a day."""
    blocks = total(days[BLOCKS])
    count = total(days[DAYS])
    by_block = _sum_centred_squares(days, (BLOCK_SQUARES, BLOCK_MIXED, BLOCK_TOTALS), mean) * _bias_correction(blocks, strata)
    by_day = _sum_centred_squares(days, (DAY_SQUARES, DAY_MIXED, DAY_TOTALS), mean) * _bias_correction(count, strata)
    squares = total(days[DAY_SQUARES]) - total(days[BLOCK_SQUARES])
    return ratio(np.maximum(0.0, by_day - by_block), squares)


def _recent_variance(recent: Floats) -> Floats:
    """Return the recent variance of units, less its standard error.

    It is a lower bound: if the variance has grown, the variance of all days would be too small.
    """
    units = total(recent[UNITS])
    variance = ratio(_sum_centred_squares(recent, (SQUARES, MIXED, TOTALS), means(recent)), total(recent[SQUARES]))
    bound: Floats = variance * np.maximum(0.0, 1 - np.sqrt(2 / np.maximum(units, 1.0)))
    return bound


def _correct_for_mean(day: Floats, lag_covariance: Floats, days: Floats, strata: Floats) -> tuple[Floats, Floats]:
    """Return the covariance within a day and the correlation of consecutive days, corrected for the estimated mean.

    The correlation is underestimated from few days, so one and a half standard errors are added. It only matters together with
    the covariance within a day: without that, there is nothing to correlate.
    """
    error = 1.5 / np.sqrt(np.maximum(days, 1.0))
    rho = np.clip(ratio(lag_covariance, day) + error, 0.0, MAX_AUTOCORRELATION)
    bias = np.where(lag_covariance > 0, day * (1 + rho) / (1 - rho) * ratio(strata, days), 0.0)
    corrected = day + bias
    return corrected, np.clip(ratio(lag_covariance + bias, corrected) + error, 0.0, MAX_AUTOCORRELATION)
