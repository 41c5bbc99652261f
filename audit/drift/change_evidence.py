"""Evidence for a change of the mean between two stretches of scores, from their sums.

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
from typing import NamedTuple

from audit.drift.cells import Flags, Floats, Ints
from audit.drift.series import MIXED, SQUARES, TOTALS, UNITS, WEIGHT
from audit.drift.variation import FEWEST_BEFORE, TINY, Components, Normal, as_one, centred, means, ratio, total, variances
from schemas.lazy.numpy import np

SPREADS = ((0.7, 0.75), (4.0, 0.25))
"""Standard deviations of the sizes of change that are reckoned with, in sigma, and how much of the reckoning each has."""
FEWEST_AFTER = 2
"""So many stand after it: one session is no change."""
PSEUDO_UNITS = 5.0
"""The weight, in units, of the assumption that units vary after a change as they did before it."""
MOST_COUPLED = 4.0
"""Of what units vary more after a change, no more than this can come from the change of a bounded mean: see `_varied`."""
_FEWEST_FREEDOM = 3.0
_EDGE = 1e-9
Ranges = tuple[Floats, Floats]
"""The least and the greatest mean of a unit."""


class Later(NamedTuple):
    """The sums of stretches after a change, by stratum. Several stretches that end at different times may follow one change."""

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
    """The part of the variance before that comes from units."""
    unit_after: Floats
    excess: Floats
    """The factor by which units vary more after the change than before it, at least 1; reckoned with in `unit_after`."""
    units_before: Floats
    units_after: Floats
    is_usable: Flags
    """True where enough units stand on both sides."""

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


def contrast(normal: Normal, later: Later, reference: int | None = None) -> Contrast:
    """Compare what is normal with the stretches that follow.

    With `reference`, the index of one of the stretches, units vary after each change as they do in that one, and what is known of the
    variance is what is known there.
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


def most_log_evidence(normal: Normal, sums: Floats, of: Ints) -> Floats:
    """No less than `log_evidence` can be, at a fraction of the price; `sums` are those of `Later`, as far as SQUARES.

    The strata's shares in the size s are not known, but whatever they are, s^2 by its variance is no more than the sum over the strata
    of each one's own (Cauchy and Schwarz), and units after a change vary no less than those before it. Of a squared distance q with n
    degrees of freedom the logarithm of the Bayes factor is below q (1 + 1/n) / 2, and n is no less than the least of the three sources'.
    """
    sums = as_one(sums, normal.few[of])
    apart = np.where(sums[UNITS] > 0, means(sums) - normal.mean[:, of], 0.0)
    variance = total(normal.varies)[:, of] + normal.parts.unit[of] * ratio(sums[SQUARES], sums[WEIGHT] ** 2)
    units = total(normal.sums[UNITS]) - normal.strata
    freedom = np.maximum(_FEWEST_FREEDOM, np.minimum(units, np.minimum(normal.parts.blocks, normal.parts.days)))
    return total(ratio(apart**2, variance)) * ((1 + 1 / freedom) / 2)[of]


def log_evidence(found: Contrast, before: Ranges, after: Ranges) -> Floats:
    """Natural logarithm of the Bayes factors; minus infinity where there is nothing to compare.

    `before` and `after` are the ranges of the units on either side, from the origin.
    """
    low, high = np.minimum(before[0], after[0]), np.maximum(before[1], after[1])
    room = (high - found.after) * (found.after - low), (high - found.before) * (found.before - low)
    share = np.where(room[0] < MOST_COUPLED * room[1], ratio(*room), MOST_COUPLED)
    coupled = _varied(found, 1.0, found.excess / np.clip(share, 1.0, np.minimum(found.excess, MOST_COUPLED)))
    squared = ratio(coupled.size**2, coupled.variance)
    apart = (after[1] < before[0]) | (after[0] > before[1])
    together = _together(found)
    counted = np.where(apart, squared, np.minimum(squared, _deviance(_varied(found, together, together), low, high)))
    relative = ratio(coupled.unit_variance, coupled.variance)
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
    """Return the factor by which all units vary more around their common mean than before, as if nothing had changed."""
    both = found.units_before + found.units_after
    apart = found.units_before * found.units_after / np.maximum(both, 1.0) * ratio(found.size**2, found.unit_variance)
    return ratio(found.units_before + found.excess * found.units_after + apart, both)


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


def _later_by_strata(later: Later, few: Flags) -> Later:
    return Later(as_one(later.sums, few), as_one(later.partial, few), later.of)


def _spread_after(later: Later, unit: Floats, by_score: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """The variance of the units' sum after a change that is to be expected, by stratum, and how many times as large it is."""
    squares, weight, units = later.sums[SQUARES], later.sums[WEIGHT], later.sums[UNITS]
    expected = np.maximum(unit * squares, by_score * weight)
    count = total(units)
    seen = centred(later.sums, (SQUARES, MIXED, TOTALS), mean) * count
    freedom = np.maximum(0.0, count - total(units > 0))
    share = (PSEUDO_UNITS + ratio(seen, total(expected))) / (PSEUDO_UNITS + freedom)
    return expected, np.maximum(1.0, share)


def _at_least_its_error(sources: Floats, freedoms: Floats) -> Floats:
    """Return the variances by source, those of blocks and days no less than the standard error that the units alone give them.

    A variance between few days may be estimated as nothing; that is no reason to take it for known.
    """
    least = np.sqrt(2 / freedoms) * sources[0]
    return np.stack((sources[0], *np.maximum(sources[1:], least[1:])))


def _freedom(sources: Floats, freedoms: Floats) -> Floats:
    """Satterthwaite's degrees of freedom of a sum of variances."""
    return np.maximum(_FEWEST_FREEDOM, ratio(total(sources) ** 2, total(sources**2 / freedoms)))


def _deviance(found: Contrast, low: Floats, high: Floats) -> Floats:
    """The distance as that of two shares of the width between the smallest and the largest value, in the same measure."""
    width = np.maximum(high - low, TINY)
    many, later = ratio(1.0, found.variance_before), ratio(1.0, found.variance_after)
    p, q = (found.before - low) / width, (found.after - low) / width
    common = np.clip(ratio(many * p + later * q, many + later), _EDGE, 1 - _EDGE)
    return 2 * (many * _divergence(p, common) + later * _divergence(q, common)) * common * (1 - common) * width * width


def _divergence(p: Floats, q: Floats) -> Floats:
    """Kullback-Leibler divergence of two Bernoulli distributions."""
    p = np.clip(p, 0.0, 1.0)
    return p * np.log(np.maximum(p, TINY) / q) + (1 - p) * np.log(np.maximum(1 - p, TINY) / (1 - q))
