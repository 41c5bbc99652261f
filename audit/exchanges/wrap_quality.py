"""Wrap quality: whether the end of a session shows the steps of a proper wrap-up. No judge; score = found / expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audit.patterns import compile_pattern, encode, straighten

LAST_EXCHANGES = 5
"""The number of exchanges at the end of a session that are looked at."""

PATTERNS = {
    "version_bump": r"\bversion[- ]bump|\bbump(?:ed|ing)?\s+(?:the\s+)?(?:version\s+)?to\s+v?[0-9]|\bversion\.json\b",
    "changelog": r"\bchangelog\b",
    "learnings": r"\blearnings\b|\bwhat\b[^\n]{0,80}\blearn(?:ed|t)\b|\btake-?aways?\b|\bretrospective\b",
    "next_session_prime": r"\bnext\s+session\b|\bsession\s+prime\b|\bpriming\b|\bnext\s+steps\b",
    "commit": r"\bgit\s+commit\b|\bcommitted\b|\bcommit\s+message\b",
}
"""What shows each step, in the language of RE2, which DuckDB speaks, too."""
_STEPS = {name: compile_pattern(text, where=name) for name, text in PATTERNS.items()}

STEPS = tuple(_STEPS)
"""The expected steps, in the order they are reported."""


@dataclass(frozen=True, slots=True)
class WrapQuality:
    """The steps of a wrap-up that a session's end shows, and those that it lacks."""

    steps_found: tuple[str, ...]
    steps_missing: tuple[str, ...]
    score: float
    """Found / expected, 0 to 1."""


def wrap_quality(exchanges: Sequence[str]) -> WrapQuality:
    """Look for the steps in the last exchanges of a session; each text is what user and agent said, oldest first."""
    texts = [encode(straighten(text)) for text in exchanges[-LAST_EXCHANGES:]]
    steps_found = tuple(name for name, pattern in _STEPS.items() if any(pattern.found_in(text) for text in texts))
    missing = tuple(name for name in STEPS if name not in steps_found)
    return WrapQuality(steps_found, missing, len(steps_found) / len(STEPS))
