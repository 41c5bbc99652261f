"""When a change began and how large it is, with what is not known of both.

Every day on which it may have begun counts with how probable it makes the scores. The interval of the first day spans the fewest days
that hold 95 % of the probability together; the interval of the size mixes what each day says of the size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from audit.changepoints import Contrast

CONFIDENCE = 0.95
_WIDTH = 1.96
"""Half the width of a normal interval of that confidence, in standard errors."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds a quantity with about 95 % probability, ends included."""

    low: float
    high: float


class Place(NamedTuple):
    """A day on which the change may have begun, and the contrast of what came before it with what came from it on."""

    day: int
    contrast: Contrast


class Estimate(NamedTuple):
    """What is known of a change."""

    best: Place
    """The most probable day."""
    days: tuple[int, int]
    """The interval of the day, ends included."""
    size: Interval
    """The interval of the difference of the means."""


def estimate(places: Sequence[Place]) -> Estimate:
    """When it began and how large it is; at least one place is given. Of two equally probable days the later one is the best."""
    top = max(place.contrast.log_evidence for place in places)
    weights = [math.exp(place.contrast.log_evidence - top) for place in places]
    whole = math.fsum(weights)
    ranked = sorted(zip(weights, places, strict=True), key=lambda one: (one[0], one[1].day), reverse=True)
    days, held = [], 0.0
    for weight, place in ranked:
        if held >= CONFIDENCE * whole:
            break
        days.append(place.day)
        held += weight
    return Estimate(ranked[0][1], (min(days), max(days)), _size(places, [weight / whole for weight in weights]))


def _size(places: Sequence[Place], shares: Sequence[float]) -> Interval:
    """The interval of a mixture of normal distributions, by its first two moments."""
    sizes = [place.contrast.after - place.contrast.before for place in places]
    centre = math.fsum(share * size for share, size in zip(shares, sizes, strict=True))
    spread = math.fsum(
        share * (place.contrast.variance_within / place.contrast.precision + (size - centre) ** 2)
        for share, size, place in zip(shares, sizes, places, strict=True)
    )
    half = _WIDTH * math.sqrt(spread)
    return Interval(centre - half, centre + half)
