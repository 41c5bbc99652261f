"""Texts of any length on a page: a readable part, and the address of the whole."""

from __future__ import annotations

from dataclasses import dataclass

from audit.prompts.prompt_quoting import hidden_parts

MAX_SHOWN = 20_000
"""Characters of a text that a page shows. The judge sees no more than 24 000."""
_CODE = 40
"""Characters of a page that one shown as its code takes."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text."""

    text: str
    left_out: int
    """Characters that follow; 0 if it is whole."""
    whole: str
    """Address of the whole text."""

    @property
    def length(self) -> int:
        """Return the number of characters of the whole text."""
        return len(self.text) + self.left_out


def excerpt(text: str, whole: str) -> Excerpt:
    """Return as much of a text as a page has room for: less if many characters are shown as codes."""
    head = text[:MAX_SHOWN]
    room, kept = MAX_SHOWN, 0
    for seen, hidden in hidden_parts(head):
        kept += min(len(seen), room)
        room -= len(seen) + (_CODE if hidden else 0)
        if room < 0:
            break
        kept += len(hidden)
    return Excerpt(head[:kept], len(text) - kept, whole)
