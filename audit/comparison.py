"""Comparisons with 95% confidence intervals: paired means with sessions as clusters, and shares.

Exchanges of one session are not independent: one odd session changes all of its exchanges. So the interval of a paired
difference uses the variance between sessions: cluster-robust variance with the small-sample correction of Bell and McCaffrey
(2002, "Bias reduction in standard errors for linear regression with multi-stage samples"), and Student's t with their degrees
of freedom, of which there are fewer if a few sessions have most of the exchanges. For a mean both have a closed form over sums,
which a database can compute.

The intervals of a share of counts, such as unsafe runs, and of the difference of two shares are Wilson's and Newcombe's (R.
Newcombe 1998, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17). They are
valid for shares of 0 and 1, which shares of failures often are.

A gate that may not stop good builds needs tests that hold for any distribution and for a handful of cases: the sign-flip test of paired
differences (R. Fisher 1935, "The Design of Experiments"), Fisher's exact test of two shares, the precedence test of low values (L. Nelson
1963, Technometrics 5), and Holm's correction for testing several things at once (S. Holm 1979, Scandinavian Journal of Statistics 6). All
are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from audit.drift.series import Floats

CONFIDENCE = 0.95
ROUGH_FREEDOM = 5.0
"""An interval with fewer degrees of freedom is shown but marked as rough: its width depends on a handful of sessions."""
_NOISE = 1e-12
"""Maximum absolute mean that rounding of sums can produce from zero; steps of scores are far larger."""
_TINY = 1e-300
_PRECISE = 1e-15

_QUANTILE = NormalDist().inv_cdf(0.975)
Ends = tuple[float, float]
"""The lower and the upper end of a 95% interval."""
Number = TypeVar("Number", float, "Floats")
"""A number, or an array of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSums:
    """Sums over the clusters of paired differences, from which an interval is computed.

    The share of a cluster is its fraction of the pairs. Its residual is the sum of its differences less its number of pairs times
    the mean.
    """

    pairs: int
    clusters: int
    mean: float
    squared_shares: float
    """Sum of share²."""
    leverage: float
    """Sum of share² / (1 - share)."""
    squared_leverage: float
    """Sum of (share² / (1 - share))²."""
    spread: float
    """Sum of residual² / (1 - share)."""

    @classmethod
    def from_clusters(cls, clusters: Sequence[Sequence[float]]) -> Self:
        """Compute the sums from differences by cluster; no cluster may be empty."""
        pairs = sum(map(len, clusters))
        mean = math.fsum(difference for cluster in clusters for difference in cluster) / pairs
        shares = [len(cluster) / pairs for cluster in clusters]
        complements = [1 - share for share in shares] if len(clusters) > 1 else [math.inf]
        leverages = [share**2 / complement for share, complement in zip(shares, complements, strict=True)]
        residuals = [math.fsum(cluster) - len(cluster) * mean for cluster in clusters]
        return cls(
            pairs=pairs,
            clusters=len(clusters),
            mean=mean,
            squared_shares=math.fsum(share**2 for share in shares),
            leverage=math.fsum(leverages),
            squared_leverage=math.fsum(leverage**2 for leverage in leverages),
            spread=math.fsum(residual**2 / complement for residual, complement in zip(residuals, complements, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, ends included, with its degrees of freedom."""

    low: float
    high: float
    freedom: float

    @property
    def excludes_zero(self) -> bool:
        """True if zero is outside the interval by more than a rounding error."""
        return self.low > _NOISE or self.high < -_NOISE

    @property
    def is_rough(self) -> bool:
        """True if the interval comes from too few sessions to be reliable."""
        return self.freedom < ROUGH_FREEDOM


def paired_interval(sums: PairedSums, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of the mean of paired differences; None for fewer than two clusters."""
    if sums.clusters < 2:
        return None
    freedom = 1 / (sums.squared_shares + sums.leverage**2 - sums.squared_leverage)
    half_width = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(max(sums.spread, 0.0)) / sums.pairs
    return Interval(sums.mean - half_width, sums.mean + half_width, freedom)


@lru_cache
def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t for a probability from 0.5 to below 1, and any degrees of freedom above 0.

    The distribution function is an incomplete beta function, which is inverted by bisection, exact to ten digits. The usual
    approximations are poor for one or two degrees of freedom, as a few sessions have.
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"the probability must be from 0.5 to below 1: {probability}")
    if not freedom > 0:
        raise ValueError(f"the degrees of freedom must be above 0: {freedom}")
    tail = 2 * (1 - probability)
    # The share x = freedom / (freedom + t²) falls from 1 to 0 as t grows. Both tails together have the probability
    # I_x(freedom / 2, 1 / 2).
    share = _bisect(lambda x: _incomplete_beta(freedom / 2, 0.5, x) < tail)
    return math.sqrt(max(freedom * (1 - share) / share, 0.0))


def _bisect(is_below: Callable[[float], bool]) -> float:
    """Return the number between 0 and 1 up to which a condition holds."""
    low = 0.0
    high = 1.0
    while high - low > _PRECISE * high:
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    factor = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return factor / _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 + d1 / (1 + d2 / (1 + …)), by Lentz's method."""
    value = 1.0
    upper = 1.0
    lower = 0.0
    for step in range(1, 1000):
        half, is_odd = divmod(step, 2)
        if is_odd:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / _avoid_zero(1 + term * lower)
        upper = _avoid_zero(1 + term / upper)
        value *= upper * lower
        if abs(upper * lower - 1) < _PRECISE:
            break
    return value


def _avoid_zero(number: float) -> float:
    return number or _TINY


def expected_by_chance(intervals: int, confidence: float = CONFIDENCE) -> float:
    """Return the number of intervals that are expected to exclude zero if nothing has changed."""
    return intervals * (1 - confidence)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of a beta distribution, for exact intervals of a share."""
    return _bisect(lambda x: _incomplete_beta(a, b, x) < probability)


def wilson(share: Number, size: Number, quantile: float) -> tuple[Number, Number]:
    """Return the ends of Wilson's interval of a share of `size` counts, which is above 0, for a normal quantile.

    The interval is within 0 and 1. The size need not be a whole number: for a mean of scores between 0 and 1 it is the number of
    independent counts with the same variance (N. Dean and M. Pagano 2015, "Evaluating confidence interval methods for binomial
    proportions in clustered surveys", Journal of Survey Statistics and Methodology 3).
    """
    squared = quantile**2
    centre = (share + squared / (2 * size)) / (1 + squared / size)
    half_width = quantile * (share * (1 - share) / size + squared / (4 * size**2)) ** 0.5 / (1 + squared / size)
    return centre - half_width, centre + half_width


def newcombe_margins(before: tuple[Number, Number, Number], after: tuple[Number, Number, Number]) -> tuple[Number, Number]:
    """Return how far Newcombe's interval of a difference extends below and above it.

    Each side is a share with the lower and the upper end of its interval.
    """
    share_before, low_before, high_before = before
    share_after, low_after, high_after = after
    below = ((share_after - low_after) ** 2 + (high_before - share_before) ** 2) ** 0.5
    above = ((high_after - share_after) ** 2 + (share_before - low_before) ** 2) ** 0.5
    return below, above


def share_interval(count: int, total: int) -> Ends:
    """Return the interval of a share; the total is at least 1."""
    low, high = wilson(count / total, float(total), _QUANTILE)
    return max(0.0, low), min(1.0, high)


def share_difference(before: tuple[int, int], after: tuple[int, int]) -> Ends | None:
    """Return the interval of the share after less the share before.

    Each share is given as a count and a total; None if a total is 0.
    """
    if not before[1] or not after[1]:
        return None
    share_before = before[0] / before[1]
    share_after = after[0] / after[1]
    below, above = newcombe_margins((share_before, *share_interval(*before)), (share_after, *share_interval(*after)))
    difference = share_after - share_before
    return difference - below, difference + above


def sign_flip_p(differences: Sequence[int]) -> float:
    """Return the probability of a sum at most as large as that of these differences, if each could as well have had the other sign.

    The differences are whole numbers, in steps of some size, so that the distribution is counted and not drawn.
    """
    slot = len(differences) + 2
    sums = 1  # a polynomial: the slot of each sum of positive differences has the number of choices of signs that give it
    for difference in differences:
        sums += sums << (abs(difference) * slot)
    reached = sum(difference for difference in differences if difference > 0)
    low_sums = sums & ((1 << (reached + 1) * slot) - 1)
    # The remainder by 2^slot - 1 adds up all slots, as casting out nines adds up digits.
    return (low_sums % ((1 << slot) - 1)) / (1 << len(differences))


def fisher_p(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the probability of a count after at least as large as this one, if both shares are the same (Fisher's exact test).

    Each share is given as a count and a total.
    """
    (count_before, total_before), (count_after, total_after) = before, after
    counted = count_before + count_after
    ways = sum(
        math.comb(total_after, count) * math.comb(total_before, counted - count)
        for count in range(count_after, min(counted, total_after) + 1)
    )
    return ways / math.comb(total_before + total_after, counted)


def precedence_p(below: int, after: int, rank: int, before: int) -> float:
    """Return the probability that at least `below` of `after` values are lower than the `rank`-th lowest of `before` values.

    All values have the same distribution, whatever it is.
    """
    ways = sum(
        math.comb(count + rank - 1, count) * math.comb(after - count + before - rank, after - count)
        for count in range(below, after + 1)
    )
    return ways / math.comb(after + before, after)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities corrected for their number: the chance that any of them is as small without a change."""
    adjusted = [0.0] * len(probabilities)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(probabilities)), key=probabilities.__getitem__)):
        largest = max(largest, min(1.0, probabilities[index] * (len(probabilities) - rank)))
        adjusted[index] = largest
    return adjusted
