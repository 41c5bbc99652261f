"""A figure beside the same figure of the preceding period."""

from __future__ import annotations

from collections.abc import Callable

from service.pages.rendering import NOTHING, number
from service.text.rounding import signed


def compared(value: float | None, before: float | None, written: Callable[[float | None], str]) -> str:
    """Describe a figure's previous value and its change: in percent for a count, in points for a mean.

    From 0 there is no percentage, only a change.
    """
    if before is None:
        return f"before {NOTHING}"
    if value is None:
        return f"before {written(before)}"
    return f"before {written(before)}, {_percent(value, before)}"


def compared_means(value: float | None, before: float | None, digits: int = 2) -> str:
    """Describe the previous value and the change of a mean, in points."""
    if value is None or before is None:
        return f"before {number(before, digits)}"
    return f"before {number(before, digits)}, {_signed(value - before, digits)}"


def _percent(value: float, before: float) -> str:
    if value == before:
        return "no change"
    if not before:
        return "new"
    return f"{_signed(100 * (value - before) / before, 0)} %"


def _signed(value: float, digits: int) -> str:
    if not round(value, digits):
        return "no change" if digits else "±0"
    return signed(value, digits)
