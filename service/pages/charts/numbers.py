"""Numbers and names for charts: finite, short, and without invisible characters."""

from __future__ import annotations

import math

from audit.prompt_quoting import hidden_parts

_LARGEST, _SMALLEST = 1e300, 1e-300
_DIGITS = 7
"""Significant digits of a drawn number: a screen shows four."""


def known(value: float | None) -> float | None:
    """Return a number that can be drawn; None for one that is not finite or far too large."""
    if value is None or not math.isfinite(value) or abs(value) > _LARGEST:
        return None
    return float(value) if abs(value) > _SMALLEST else 0.0


def short(value: float | None) -> float | None:
    """Round a number to the digits that a chart can show, the same on every machine."""
    found = known(value)
    return None if found is None else float(f"{found:.{_DIGITS}g}")


def visible(text: str) -> str:
    """Return a text without markup; invisible characters become their codes."""
    parts = ((seen, f"U+{ord(hidden):04X}" if hidden else "") for seen, hidden in hidden_parts(text))
    return " ".join("".join(part for pair in parts for part in pair).split())
