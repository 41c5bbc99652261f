"""Means on a scale that ends, as if they were shares of independent counts: what an interval needs that stays on the scale."""

from __future__ import annotations

from typing import NamedTuple

from audit.drift.cells import Floats
from audit.drift.change_evidence import Contrast
from audit.drift.count_evidence import Counts
from audit.drift.variation import ratio
from schemas.lazy.numpy import np

Bounds = tuple[float, float]
"""The least and the greatest score there can be."""
_PRIOR = 0.5
"""Of a unit at the middle of the scale: a mean at its end is taken to be so much less certain than its units say."""


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
