"""Formats of values for people: one printable line, numbers with their nouns, foreign texts inside Markdown; and rounding of numbers in JSON.

Numbers are rounded to significant digits, so that 3.845 is not 3.8449999999999998. Stored numbers stay exact.

1. A score, a mean, a share: three decimals; below 0.1, four significant digits.
2. Money and sampling probabilities, with which people calculate: nine decimals, the billionths in which costs are stored.
3. Stored documents, and the parameters that reproduce a query: not rounded.
"""

from __future__ import annotations

import math
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
    parts: list[str] = []
    end = 0
    for match in _LINKED.finditer(line):
        parts.append(_escape_markup(line[end : match.start()]))
        parts.append(f"`{match.group()}`")
        end = match.end()
    parts.append(_escape_markup(line[end:]))
    return _START.sub(r"\1\\", "".join(parts))


def fenced(text: str, language: str = "") -> str:
    """Return the text between two fences that are longer than any run of backticks in it.

    The content between the fences is the text, byte for byte.
    """
    fence = "`" * max(4, 1 + max((len(run) for run in _RUN.findall(text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def _escape_markup(text: str) -> str:
    marked = _MARKS.sub(lambda match: f"\\{match.group()}", text)
    return "".join(_TAGS.get(character, character) for character in marked)


DECIMALS = 3
EXACT_DECIMALS = 9
SIGNIFICANT_DIGITS = 4
SMALL = 0.1
"""Below this, three decimals would keep too few digits."""
WHOLE = frozenset({"parameters", "diagnosis", "finalResult", "judgeResult", "final_result", "judge_result", "result"})
"""Fields that hold whole documents."""
_EXACT = re.compile(r"usd|cost|cap$|probability|spent", re.IGNORECASE)


def rounded(value: Any, name: str = "") -> Any:
    """Return the value with all nested numbers rounded; `name` is the field that holds it."""
    if isinstance(value, float):
        return _round_number(value, name)
    if isinstance(value, dict):
        return {key: item if key in WHOLE else rounded(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, name) for item in value]
    return value


def _round_number(value: float, name: str) -> float:
    if not math.isfinite(value):
        return value
    if _EXACT.search(name):
        return round(value, EXACT_DECIMALS)
    return round(value, DECIMALS) if abs(value) >= SMALL else float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def grouped(value: float, digits: int = 0) -> str:
    """Format a number for people, with commas between thousands."""
    return f"{value:,.{digits}f}"


def grouped_count(number: int, thing: str) -> str:
    """Format a number for people with its noun, in the plural unless it is 1."""
    return f"{grouped(number)} {thing}{'' if number == 1 else 's'}"


def signed(value: float, digits: int = 0) -> str:
    """Format a change for people with its sign; 0 has none."""
    change = round(value, digits)
    sign = "+" if change > 0 else "\u2212" if change < 0 else ""
    return f"{sign}{grouped(abs(change), digits)}"
