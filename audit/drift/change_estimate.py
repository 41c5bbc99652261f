"""Estimates of a change: its first day and its size, with intervals.

Every hour at which it may have begun counts with how probable it makes the scores. The interval of the first day spans the fewest hours
that hold 95 % of the probability together; the interval of the size mixes what each hour says of the size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from audit.comparison import t_quantile
from audit.drift.cells import Floats, Ints
from audit.drift.change_evidence import Contrast
from schemas.lazy.numpy import np

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95 % probability, ends included."""

    low: float
    high: float


class Estimate(NamedTuple):
    """The estimate of a change."""

    best: int
    """The most probable place, as an index."""
    places: Ints
    """The places of the interval of when it began, as indexes, in order."""
    size: Interval
    """The interval of the difference of the means."""


def estimate(found: Contrast, log_evidence: Floats) -> Estimate:
    """Estimate when the change began and how large it is, from places in order, at least one of them usable.

    Of two equally probable places the later one is best.
    """
    weights = np.exp(log_evidence - log_evidence.max())
    shares = weights / weights.sum()
    ranked = np.lexsort((-np.arange(len(shares)), -shares))
    held = np.searchsorted(np.cumsum(shares[ranked]), CONFIDENCE) + 1
    return Estimate(int(ranked[0]), np.sort(ranked[:held]), _size(found, shares, int(ranked[0])))


def _size(found: Contrast, shares: Floats, best: int) -> Interval:
    """The interval of a mixture of t distributions, by its first two moments."""
    centre = float((shares * found.size).sum())
    spread = float((shares * (found.variance + (found.size - centre) ** 2)).sum())
    half = t_quantile((1 + CONFIDENCE) / 2, float(found.freedom[best])) * float(np.sqrt(spread))
    return Interval(centre - half, centre + half)
