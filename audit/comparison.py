"""Paired comparison: the mean difference with its 95 % confidence interval, sessions as clusters.

Exchanges of one session are not independent: one odd session moves all of its exchanges. So the interval rests on how the sessions
differ, not the exchanges: cluster-robust variance with the small-sample correction of Bell and McCaffrey (2002, "Bias reduction in
standard errors for linear regression with multi-stage samples"), and Student's t with their degrees of freedom, which go down where
a few sessions hold most of the exchanges. For a mean both have a closed form over sums, which a database can make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

CONFIDENCE = 0.95
ROUGH_FREEDOM = 5.0
"""Below so many degrees of freedom an interval is shown and not believed: its width hangs on a handful of sessions."""
_NOISE = 1e-12
"""The most that the rounding of sums can make of a mean that is zero; scores are steps many times as large."""
_TINY = 1e-300
_PRECISE = 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSums:
    """Sums over the clusters of paired differences, from which an interval is made.

    The share of a cluster is its part of the pairs, between 0 and 1; its residual is the sum of its differences less what the mean
    would give them.
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
        """The sums of differences that are given cluster by cluster, none of them empty."""
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
    """A confidence interval, ends included, and the degrees of freedom that it rests on."""

    low: float
    high: float
    freedom: float

    @property
    def excludes_zero(self) -> bool:
        """True if zero lies outside, by more than sums are rounded."""
        return self.low > _NOISE or self.high < -_NOISE

    @property
    def is_rough(self) -> bool:
        """True if the interval rests on too few sessions to be believed."""
        return self.freedom < ROUGH_FREEDOM


def paired_interval(sums: PairedSums, confidence: float = CONFIDENCE) -> Interval | None:
    """The interval of the mean of paired differences; None for fewer than two clusters, which say nothing about each other."""
    if sums.clusters < 2:
        return None
    freedom = 1 / (sums.squared_shares + sums.leverage**2 - sums.squared_leverage)
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(max(sums.spread, 0.0)) / sums.pairs
    return Interval(sums.mean - half, sums.mean + half, freedom)


def by_chance(intervals: int, confidence: float = CONFIDENCE) -> float:
    """Return how many of so many intervals are expected to exclude zero where nothing has changed, independent or not."""
    return intervals * (1 - confidence)


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for a probability from 0.5 to below 1 and any number of degrees of freedom above 0.

    The distribution function is an incomplete beta function, which is inverted by halving: exact to ten digits, where the usual
    approximations are off for the one or two degrees of freedom that few sessions leave.
    """
    if not 0.5 <= probability < 1 or not freedom > 0:
        raise ValueError(f"no quantile for probability {probability} and {freedom} degrees of freedom")
    tail = 2 * (1 - probability)
    # The share x = freedom / (freedom + t²) falls from 1 to 0 as t grows; both tails together hold I_x(freedom / 2, 1 / 2).
    share = _halving(lambda x: _incomplete_beta(freedom / 2, 0.5, x) < tail)
    return math.sqrt(max(freedom * (1 - share) / share, 0.0))


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The quantile of a beta distribution: what exact intervals of a share rest on."""
    return _halving(lambda x: _incomplete_beta(a, b, x) < probability)


def _halving(is_below: Callable[[float], bool]) -> float:
    """The place between 0 and 1 up to which a condition holds."""
    low, high = 0.0, 1.0
    while high - low > _PRECISE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1 + d1 / (1 + d2 / (1 + …)), by Lentz's method."""
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
