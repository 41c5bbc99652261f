"""Comparisons with 95 % confidence intervals: paired means with sessions as clusters, and shares.

Exchanges of one session are not independent: one odd session changes all of its exchanges. So the interval of a paired
difference uses the variance between sessions: cluster-robust variance with the small-sample correction of Bell and McCaffrey
(2002, "Bias reduction in standard errors for linear regression with multi-stage samples"), and Student's t with their degrees
of freedom, which are fewer if a few sessions have most of the exchanges. For a mean both have a closed form over sums, which a
database can compute.

The intervals of a share of counts, such as unsafe runs, and of the difference of two shares are Wilson's and Newcombe's (R.
Newcombe 1998, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17). They are
valid for shares of 0 and 1, which shares of failures often are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from audit.drift.series import Floats

CONFIDENCE = 0.95
ROUGH_FREEDOM = 5.0
"""Below this many degrees of freedom an interval is shown but not trusted: its width depends on a handful of sessions."""
_NOISE = 1e-12
"""Largest mean that rounding of sums can produce from zero; steps of scores are far larger."""
_TINY = 1e-300
_PRECISE = 1e-15

_WIDTH = NormalDist().inv_cdf(0.975)
Pair = tuple[float, float]
"""The lower and the upper end of a 95 % interval."""
Number = TypeVar("Number", float, "Floats")
"""A number, or an array of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSums:
    """Sums over the clusters of paired differences, from which an interval is computed.

    The share of a cluster is its fraction of the pairs; its residual is the sum of its differences less what the mean predicts.
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
    def of(cls, clusters: Sequence[Sequence[float]]) -> Self:
        """Compute the sums from differences by cluster, none of them empty."""
        pairs = sum(map(len, clusters))
        mean = math.fsum(one for cluster in clusters for one in cluster) / pairs
        shares = [len(cluster) / pairs for cluster in clusters]
        rests = [1 - share for share in shares] if len(clusters) > 1 else [math.inf]
        levers = [share**2 / rest for share, rest in zip(shares, rests, strict=True)]
        residuals = [math.fsum(cluster) - len(cluster) * mean for cluster in clusters]
        return cls(
            pairs=pairs,
            clusters=len(clusters),
            mean=mean,
            squared_shares=math.fsum(share**2 for share in shares),
            leverage=math.fsum(levers),
            squared_leverage=math.fsum(lever**2 for lever in levers),
            spread=math.fsum(residual**2 / rest for residual, rest in zip(residuals, rests, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, ends included, with its degrees of freedom."""

    low: float
    high: float
    freedom: float

    @property
    def excludes_zero(self) -> bool:
        """True if zero is outside by more than a rounding error."""
        return self.low > _NOISE or self.high < -_NOISE

    @property
    def is_rough(self) -> bool:
        """True if the interval has too few sessions to be trusted."""
        return self.freedom < ROUGH_FREEDOM


def paired_interval(sums: PairedSums, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of the mean of paired differences; None for fewer than two clusters."""
    if sums.clusters < 2:
        return None
    freedom = 1 / (sums.squared_shares + sums.leverage**2 - sums.squared_leverage)
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(max(sums.spread, 0.0)) / sums.pairs
    return Interval(sums.mean - half, sums.mean + half, freedom)


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t for a probability from 0.5 to below 1, and any degrees of freedom above 0.

    The distribution function is an incomplete beta function, which is inverted by bisection: exact to ten digits, while the
    usual approximations are poor for one or two degrees of freedom, which few sessions give.
    """
    if not 0.5 <= probability < 1 or not freedom > 0:
        raise ValueError(f"no quantile for probability {probability} and {freedom} degrees of freedom")
    tail = 2 * (1 - probability)
    # The share x = freedom / (freedom + t²) falls from 1 to 0 as t grows; both tails together have the probability I_x(freedom
    # / 2, 1 / 2).
    share = _halving(lambda x: _incomplete_beta(freedom / 2, 0.5, x) < tail)
    return math.sqrt(max(freedom * (1 - share) / share, 0.0))


def _halving(is_below: Callable[[float], bool]) -> float:
    """Return the number between 0 and 1 up to which a condition holds."""
    low, high = 0.0, 1.0
    while high - low > _PRECISE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 + d1 / (1 + d2 / (1 + …)), by Lentz's method."""
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1, 1000):
        half, is_odd = divmod(step, 2)
        if is_odd:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / ((1 + term * lower) or _TINY)
        upper = (1 + term / upper) or _TINY
        value *= upper * lower
        if abs(upper * lower - 1) < _PRECISE:
            break
    return value


def by_chance(intervals: int, confidence: float = CONFIDENCE) -> float:
    """Return how many of these intervals are expected to exclude zero if nothing has changed."""
    return intervals * (1 - confidence)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of a beta distribution, for exact intervals of a share."""
    return _halving(lambda x: _incomplete_beta(a, b, x) < probability)


def wilson(share: Number, of: Number, width: float) -> tuple[Number, Number]:
    """Return the ends of Wilson's interval of a share, `width` standard errors wide on each side; `of` is above 0.

    It is within 0 and 1. `of` need not be whole: for a mean of scores between 0 and 1 it is the number of independent counts
    with the same variance (N. Dean and M. Pagano 2015, "Evaluating confidence interval methods for binomial proportions in
    clustered surveys", Journal of Survey Statistics and Methodology 3).
    """
    squared = width**2
    middle = (share + squared / (2 * of)) / (1 + squared / of)
    half = width * (share * (1 - share) / of + squared / (4 * of**2)) ** 0.5 / (1 + squared / of)
    return middle - half, middle + half


def apart(before: tuple[Number, Number, Number], after: tuple[Number, Number, Number]) -> tuple[Number, Number]:
    """Return how far Newcombe's interval of a difference extends below and above it; each side is a share with its interval."""
    (first, low0, high0), (second, low1, high1) = before, after
    return ((second - low1) ** 2 + (high0 - first) ** 2) ** 0.5, ((high1 - second) ** 2 + (first - low0) ** 2) ** 0.5


def share_interval(count: int, of: int) -> Pair:
    """Return the interval of a share; `of` is at least 1."""
    low, high = wilson(count / of, float(of), _WIDTH)
    return max(0.0, low), min(1.0, high)


def share_difference(before: tuple[int, int], after: tuple[int, int]) -> Pair | None:
    """Return the interval of the share after less the share before, each given as two counts; None if a total is 0."""
    if not before[1] or not after[1]:
        return None
    first, second = before[0] / before[1], after[0] / after[1]
    below, above = apart((first, *share_interval(*before)), (second, *share_interval(*after)))
    return second - first - below, second - first + above
