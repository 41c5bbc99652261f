"""A text as a reader may take it: codes undone, letters in disguise made plain, hidden letters made visible.

Everything is done character by character or with patterns of bounded length, so it is linear in the length of the text.
Normalising by Unicode's own algorithm is not: it sorts runs of combining characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from audit.patterns import straighten

MAX_LEVELS = 3
"""The number of codes inside each other that are undone: JSON in JSON in JSON."""

_CODE = re.compile(
    r"""\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(["'\\/bfnrt]))|&(?:#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6})|(lt|gt|amp|quot|apos|nbsp));"""
)
_SHORT = {"b": " ", "f": "\n", "n": "\n", "r": "\n", "t": "\t"}
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'", "nbsp": " "}
_STYLED = (
    *range(0xC0, 0x250),  # letters with accents
    *range(0x1E00, 0x1F00),
    *range(0x2100, 0x2150),  # letters of mathematics
    *range(0x2460, 0x2500),  # in circles and brackets
    *range(0xFB00, 0xFB07),  # ligatures
    *range(0xFF01, 0xFF5F),  # full width
    *range(0x1D400, 0x1D800),  # bold, italic, script, double-struck
    *range(0x1F110, 0x1F14A),  # in squares
)
_INVISIBLE = (
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0, 0xE0001, 0xE007F),
    *range(0x300, 0x370),  # combining accents
    *range(0x180B, 0x1810),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
)
_SPACES = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_BRACKETS = {0x2039: "<", 0x203A: ">", 0x2329: "<", 0x232A: ">", 0x27E8: "<", 0x27E9: ">", 0x3008: "<", 0x3009: ">"}
_LOOKALIKES = str.maketrans(
    "\u0430\u0432\u0435\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0501\u051b\u051d\u04bb\u0261\u0131"
    "\u03b1\u03b2\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03f2",
    "abeijkmhopctyxsdqwhgiabenikvoptuxc",
)
"""Cyrillic, Greek and other small letters that look like a Latin one."""


def _plain_letters() -> dict[int, str]:
    """Styled letters and digits, each as the ASCII that it is a variant of."""
    table = {}
    for code in _STYLED:
        parts = unicodedata.normalize("NFKD", chr(code))
        base = "".join(part for part in parts if not unicodedata.combining(part))
        if base and base.isascii():
            table[code] = base
    return table


_PLAIN = (
    _plain_letters()
    | dict.fromkeys(_INVISIBLE, "")
    | dict.fromkeys(_SPACES, " ")
    | _BRACKETS
    | dict.fromkeys((0x85, 0x2028, 0x2029), "\n")
    | {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}  # tags: invisible ASCII
)


def levels(text: str) -> Iterator[str]:
    """The text, and the text with the codes of JSON and HTML undone once, twice and so on, as long as there are any."""
    yield text
    for _ in range(MAX_LEVELS):
        undone = _CODE.sub(_undo, text) if has_codes(text) else text
        if undone == text:
            return
        text = _paired(undone)
        yield text


def has_codes(text: str) -> bool:
    """Tell whether a text may have more than one level."""
    return "\\" in text or "&" in text


def folded(text: str) -> Iterator[str]:
    """The text in small plain letters; and once more with letters of other alphabets that look like Latin ones replaced."""
    plain = straighten(text if text.isascii() else text.translate(_PLAIN)).lower()
    yield plain
    if not plain.isascii() and (latin := plain.translate(_LOOKALIKES)) != plain:
        yield latin


def _undo(found: re.Match[str]) -> str:
    four, two, short, decimal, hexadecimal, entity = found.groups()
    if short:
        return _SHORT.get(short, short)
    if entity:
        return _ENTITIES[entity]
    code = int(decimal) if decimal else int(four or two or hexadecimal, 16)
    return chr(code) if code < 0x110000 else ""


def _paired(text: str) -> str:
    """The text with two surrogates that belong together as the one character they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
