"""Plain text: one printable line of a value, a number with its noun, and what stands for a missing value."""

from __future__ import annotations

import unicodedata
from typing import Any

MISSING = "-"
"""Shown for a missing value."""


def plain(value: Any, limit: int = 200) -> str:
    """Return the value as one line of printable text: control, format and lone surrogate characters become code points."""
    text = "" if value is None else str(value)
    shown = "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        else f"<U+{ord(character):04X}>"
        for character in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def counted(number: int, thing: str) -> str:
    """Return the number with its noun, in the plural unless it is 1."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
