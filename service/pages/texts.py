"""Texts of any length on a page: an excerpt, and the address of the whole text."""

from __future__ import annotations

from dataclasses import dataclass

from audit.prompt_quoting import hidden_parts

MAX_SHOWN = 20_000
"""Characters of a text that a page shows. The judge sees no more than 24 000."""
_CODE = 40
"""Characters that a code takes on a page."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text."""

    text: str
    left_out: int
    """The number of remaining characters; 0 if the excerpt is the whole text."""
    whole: str
    """Address of the whole text."""

    @property
    def length(self) -> int:
        """Return the number of characters of the whole text."""
        return len(self.text) + self.left_out


def excerpt(text: str, whole: str) -> Excerpt:
    """Return the part of a text that fits on a page, which is less if many characters are shown as codes."""
    head = text[:MAX_SHOWN]
    room, kept = MAX_SHOWN, 0
    for seen, hidden in hidden_parts(head):
        kept += min(len(seen), room)
        room -= len(seen) + (_CODE if hidden else 0)
        if room < 0:
            break
        kept += len(hidden)
    return Excerpt(head[:kept], len(text) - kept, whole)
