"""Wrap quality: the share of expected wrap-up steps that the end of a session shows. Uses patterns only, no judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audit.patterns import compile_pattern, encode, straighten

LAST_EXCHANGES = 5
"""The number of exchanges at the end of a session that are searched."""

PATTERNS = {
    "version_bump": r"\bversion[- ]bump|\bbump(?:ed|ing)?\s+(?:the\s+)?(?:version\s+)?to\s+v?[0-9]|\bversion\.json\b",
    "changelog": r"\bchangelog\b",
    "learnings": r"\blearnings\b|\bwhat\b[^\n]{0,80}\blearn(?:ed|t)\b|\btake-?aways?\b|\bretrospective\b",
    "next_session_prime": r"\bnext\s+session\b|\bsession\s+prime\b|\bpriming\b|\bnext\s+steps\b",
    "commit": r"\bgit\s+commit\b|\bcommitted\b|\bcommit\s+message\b",
}
"""The pattern that shows each step, in RE2 syntax, which DuckDB also uses."""
_STEPS = {name: compile_pattern(text, where=name) for name, text in PATTERNS.items()}

STEPS = tuple(_STEPS)
"""The expected steps, in the order in which they are reported."""


@dataclass(frozen=True, slots=True)
class WrapQuality:
    """The wrap-up steps found at the end of a session, and those missing."""

    steps_found: tuple[str, ...]
    steps_missing: tuple[str, ...]
    score: float
    """Found / expected, 0 to 1."""


def wrap_quality(exchanges: Sequence[str]) -> WrapQuality:
    """Search the last exchanges of a session for the steps; each text has the messages of user and agent, oldest exchange first."""
    texts = [encode(straighten(text)) for text in exchanges[-LAST_EXCHANGES:]]
    steps_found = tuple(step for step, pattern in _STEPS.items() if any(pattern.found_in(text) for text in texts))
    steps_missing = tuple(step for step in STEPS if step not in steps_found)
    return WrapQuality(steps_found, steps_missing, score=len(steps_found) / len(STEPS))
