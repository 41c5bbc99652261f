"""Shares of counts, such as of unsafe runs: the interval of a share, and of the difference of two.

Both are Wilson's and Newcombe's (R. Newcombe 1998, "Interval estimation for the difference between independent proportions", Statistics in
Medicine 17): they hold where a count is 0 or all of them, which is what shares of failures are most of the time.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_WIDTH = NormalDist().inv_cdf(0.975)
Pair = tuple[float, float]
"""The lower and the upper end of a 95 % interval."""


def share_interval(count: int, of: int) -> Pair:
    """Return the interval of a share; `of` is at least 1."""
    share, squared = count / of, _WIDTH**2
    middle = (share + squared / (2 * of)) / (1 + squared / of)
    half = _WIDTH * math.sqrt(share * (1 - share) / of + squared / (4 * of**2)) / (1 + squared / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def share_difference(before: tuple[int, int], after: tuple[int, int]) -> Pair | None:
    """Return the interval of the share after less the one before, each a count and what it is of; None where either is of nothing."""
    if not before[1] or not after[1]:
        return None
    first, second = before[0] / before[1], after[0] / after[1]
    (low0, high0), (low1, high1) = share_interval(*before), share_interval(*after)
    change = second - first
    return change - math.hypot(second - low1, high0 - first), change + math.hypot(high1 - second, first - low0)
