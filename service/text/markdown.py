"""Foreign texts inside Markdown: the words of agents and judges are shown unchanged, and never as heading, row, link or tag."""

from __future__ import annotations

import re

from service.text.plain import plain

MAX_SHOWN = 2_000
"""Characters of a text that are shown."""
_LINKED = re.compile(r"[^\s`|]*(?:://|www\.|@)[^\s`|]*", re.IGNORECASE)
"""Words that some renderers turn into links by themselves: addresses of pages and of people."""
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters with a meaning within a line. An underscore between letters has none, and names of tools are full of them."""
_START = re.compile(r"^(\d+(?=[.)])|(?=[#+\-=:]))")
"""Beginnings of a line that would make it a heading, an item or a quotation."""
_TAGS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_RUN = re.compile("`+")


def inline(text: object, limit: int = MAX_SHOWN) -> str:
    """Return the text on one line, safe anywhere in Markdown, table cells included: rendered it reads as it was written.

    White space becomes one space; characters that control a terminal or cannot be seen become their code points. Addresses become
    code, because they would be links otherwise.
    """
    line = plain(" ".join(str(text).split()), limit)
    parts, at = [], 0
    for found in _LINKED.finditer(line):
        parts += [_escaped(line[at : found.start()]), f"`{found.group()}`"]
        at = found.end()
    return _START.sub(r"\1\\", "".join([*parts, _escaped(line[at:])]))


def fenced(text: str, language: str = "") -> str:
    """Return the text between two fences that are longer than any run of backticks in it.

    What stands between the line of the first fence and the line break before the second is the text, byte for byte.
    """
    fence = "`" * max(4, 1 + max((len(run) for run in _RUN.findall(text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def _escaped(text: str) -> str:
    marked = _MARKS.sub(lambda found: f"\\{found.group()}", text)
    return "".join(_TAGS.get(character, character) for character in marked)
