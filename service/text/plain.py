"""Plain text: one printable line of a value, a number with its noun, and foreign texts inside Markdown, shown unchanged."""

from __future__ import annotations

import re
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


MAX_SHOWN = 2_000
"""Characters of a text that are shown."""
_LINKED = re.compile(r"[^\s`|]*(?:://|www\.|@)[^\s`|]*", re.IGNORECASE)
"""Words that some renderers turn into links: web addresses and mail addresses."""
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters with a meaning within a line. An underscore between letters has none, and names of tools are full of them."""
_START = re.compile(r"^(\d+(?=[.)])|(?=[#+\-=:]))")
"""Beginnings of a line that would make it a heading, an item or a quotation."""
_TAGS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_RUN = re.compile("`+")


def inline(text: object, limit: int = MAX_SHOWN) -> str:
    """Return the text on one line, safe anywhere in Markdown, table cells included: it renders as it was written.

    White space becomes one space; control and invisible characters become their code points. Addresses become code, because renderers
    would turn them into links.
    """
    line = plain(" ".join(str(text).split()), limit)
    parts, at = [], 0
    for found in _LINKED.finditer(line):
        parts += [_escaped(line[at : found.start()]), f"`{found.group()}`"]
        at = found.end()
    return _START.sub(r"\1\\", "".join([*parts, _escaped(line[at:])]))


def fenced(text: str, language: str = "") -> str:
    """Return the text between two fences that are longer than any run of backticks in it.

    The content between the fences is the text, byte for byte.
    """
    fence = "`" * max(4, 1 + max((len(run) for run in _RUN.findall(text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def _escaped(text: str) -> str:
    marked = _MARKS.sub(lambda found: f"\\{found.group()}", text)
    return "".join(_TAGS.get(character, character) for character in marked)
