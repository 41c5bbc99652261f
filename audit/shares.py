"""Shares of counts, such as of unsafe runs, and other means between 0 and 1: the interval of one, and of the difference of two.

Both are Wilson's and Newcombe's (R. Newcombe 1998, "Interval estimation for the difference between independent proportions", Statistics in
Medicine 17): they hold where a count is 0 or all of them, which is what shares of failures are most of the time.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from audit.drift.cells import Floats

_WIDTH = NormalDist().inv_cdf(0.975)
Pair = tuple[float, float]
"""The lower and the upper end of a 95 % interval."""
Number = TypeVar("Number", float, "Floats")
"""A number, or an array of them."""


def wilson(share: Number, of: Number, width: float) -> tuple[Number, Number]:
    """Return the ends of the interval of a share, `width` standard errors wide on either side; `of` is above 0.

    It lies within 0 and 1. The number that the share is of need not be whole: of a mean of scores between 0 and 1 it is how many
    independent counts would vary as much (N. Dean and M. Pagano 2015, "Evaluating confidence interval methods for binomial
    proportions in clustered surveys", Journal of Survey Statistics and Methodology 3).
    """
    squared = width**2
    middle = (share + squared / (2 * of)) / (1 + squared / of)
    half = width * (share * (1 - share) / of + squared / (4 * of**2)) ** 0.5 / (1 + squared / of)
    return middle - half, middle + half


def apart(before: tuple[Number, Number, Number], after: tuple[Number, Number, Number]) -> tuple[Number, Number]:
    """Return how far the interval of a difference reaches below and above it; both sides are a share and the ends of its interval."""
    (first, low0, high0), (second, low1, high1) = before, after
    return ((second - low1) ** 2 + (high0 - first) ** 2) ** 0.5, ((high1 - second) ** 2 + (first - low0) ** 2) ** 0.5


def share_interval(count: int, of: int) -> Pair:
    """Return the interval of a share; `of` is at least 1."""
    low, high = wilson(count / of, float(of), _WIDTH)
    return max(0.0, low), min(1.0, high)


def share_difference(before: tuple[int, int], after: tuple[int, int]) -> Pair | None:
    """Return the interval of the share after less the one before, each a count and what it is of; None where either is of nothing."""
    if not before[1] or not after[1]:
        return None
    first, second = before[0] / before[1], after[0] / after[1]
    below, above = apart((first, *share_interval(*before)), (second, *share_interval(*after)))
    return second - first - below, second - first + above
