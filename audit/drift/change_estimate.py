"""Estimates of a change: its first day and its size, with intervals.

Every hour at which it may have begun counts with how probable it makes the scores. The interval of the first day spans the fewest hours
that hold 95 % of the probability together; the interval of the size mixes what each hour says of the size. Of scores on a scale that
ends it lies within what the scale allows, without being cut off: its means are taken for shares of as many counts as would vary as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from audit.comparison import t_quantile
from audit.drift.cells import Floats, Ints
from audit.drift.change_evidence import Contrast
from audit.drift.count_evidence import Counts
from audit.drift.variation import ratio
from audit.shares import apart, wilson
from schemas.lazy.numpy import np

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_NORMAL = NormalDist()
_NEGLIGIBLE = 1e-3
"""Hours so much less probable than the most probable one do not count in the interval of the size."""
_HALVINGS = 40
Bounds = tuple[float, float]
"""The least and the greatest score there can be."""
_PRIOR = 0.5
"""Of a unit at the middle of the scale: a mean at its end is taken to be so much less certain than its units say."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95 % probability, ends included."""

    low: float
    high: float


class Side(NamedTuple):
    """The means on one side of a change, one element per place, on a scale from 0 to 1."""

    mean: Floats
    of: Floats
    """The number of independent counts whose share would vary as much."""


class Scale(NamedTuple):
    """Both sides of a change on a scale, and how wide it is in points."""

    before: Side
    after: Side
    width: float = 1.0


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


def of_counts(found: Contrast, before: Counts, after: Counts) -> tuple[Contrast, Scale]:
    """Return the contrasts of shares with the plain shares for means, and their scale.

    Where hours and days differ by more than their runs explain, all runs count for less by as much.
    """
    first, later = (
        Side(counts.having / counts.of, counts.of / np.maximum(1.0, ratio(variance, units)))
        for counts, variance, units in (
            (before, found.variance_before, found.unit_before),
            (after, found.variance_after, found.unit_after),
        )
    )
    return found._replace(before=first.mean, after=later.mean), Scale(first, later)


def on_scale(found: Contrast, bounds: Bounds, origin: float) -> Scale:
    """Return the scale of bounded scores, whose means are measured from `origin`.

    A share p of n counts varies by p (1 - p) / n, so a mean that varies by v is worth p (1 - p) / v of them.
    """
    low, width = bounds[0], bounds[1] - bounds[0]

    def side(mean: Floats, variance: Floats, units: Floats) -> Side:
        place = np.clip((mean + origin - low) / width, 0.0, 1.0)  # scores lie on the scale; their sums are rounded
        inner = (place * units + _PRIOR) / (units + 2 * _PRIOR)
        return Side(place, inner * (1 - inner) * width**2 / variance)

    return Scale(
        side(found.before, found.variance_before, found.units_before),
        side(found.after, found.variance_after, found.units_after),
        width,
    )


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
