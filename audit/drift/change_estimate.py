"""Estimates of a change: its first day and its size, with intervals.

Every hour at which it may have begun counts with how probable it makes the scores. The interval of the first day spans the fewest hours
that hold 95 % of the probability together; the interval of the size mixes what each hour says of the size. Of scores on a scale that
ends it lies within what the scale allows, without being cut off: see `audit.drift.scales`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from audit.comparison import t_quantile
from audit.drift.cells import Floats, Ints
from audit.drift.change_evidence import Contrast
from audit.drift.scales import Scale, Side
from audit.shares import apart, wilson
from schemas.lazy.numpy import np

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL = NormalDist()
_NEGLIGIBLE = 1e-3
"""Hours so much less probable than the most probable one do not count in the interval of the size."""
_HALVINGS = 40


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


def estimate(found: Contrast, log_evidence: Floats, scale: Scale | None = None) -> Estimate:
    """Estimate when the change began and how large it is, from places in order, at least one of them usable.

    Of two equally probable places the later one is best. Without a `scale`, scores may be any numbers.
    """
    weights = np.exp(log_evidence - log_evidence.max())
    shares = weights / weights.sum()
    ranked = np.lexsort((-np.arange(len(shares)), -shares))
    held = np.searchsorted(np.cumsum(shares[ranked]), CONFIDENCE) + 1
    best = int(ranked[0])
    width = t_quantile(1 - _TAIL, float(found.freedom[best]))
    size = _size(found, shares, width) if scale is None else _size_on(scale, shares, width)
    return Estimate(best, np.sort(ranked[:held]), size)


def _size(found: Contrast, shares: Floats, width: float) -> Interval:
    """The interval of a mixture of t distributions, by its first two moments."""
    centre = float((shares * found.size).sum())
    spread = float((shares * (found.variance + (found.size - centre) ** 2)).sum())
    half = width * float(np.sqrt(spread))
    return Interval(centre - half, centre + half)


def _size_on(scale: Scale, shares: Floats, width: float) -> Interval:
    """The interval of a mixture of Newcombe's intervals: each end is where 2.5 % of the mixture lie beyond.

    A mixture has no more beyond an end than the component that reaches farthest, so it stays on the scale as they do. Within each one,
    either side of the estimate is taken for half of a normal distribution.
    """
    kept = shares > _NEGLIGIBLE * shares.max()
    shares = shares[kept] / shares[kept].sum()
    before, after = (Side(side.mean[kept], side.of[kept]) for side in scale[:2])
    below, above = apart(*((side.mean, *wilson(side.mean, side.of, width)) for side in (before, after)))
    size, errors = after.mean - before.mean, _NORMAL.inv_cdf(1 - _TAIL)

    def beneath(value: float) -> float:
        off = value - size
        far = errors * off / np.maximum(np.where(off < 0, below, above), np.finfo(np.float64).tiny)
        return sum(float(share) * _NORMAL.cdf(float(one)) for share, one in zip(shares, far, strict=True))

    lowest, highest = float((size - below).min()), float((size + above).max())
    low = _halved(lowest, highest, lambda value: beneath(value) < _TAIL)
    high = _halved(lowest, highest, lambda value: beneath(value) < 1 - _TAIL)
    return Interval(low * scale.width, high * scale.width)


def _halved(low: float, high: float, is_below: Callable[[float], bool]) -> float:
    """The place in a range up to which a condition holds."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2
