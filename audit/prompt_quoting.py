r"""Quoting of untrusted texts in a prompt: as JSON strings without marks and without anything invisible.

`<`, `>` and `&`, and every character that is invisible, that changes how others are shown, or that no font draws, become
`\uXXXX`. So a text stays on one line, cannot close its string, cannot open or close a mark, and hides nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from json.encoder import encode_basestring
from typing import NamedTuple

MAX_SHOWN = 24_000
"""Most characters of a text that the judge sees, counted in the literal."""
_HEAD = 16_000
"""Number of these that come from the start; the rest comes from the end, where an answer says what was done."""

# Ranges, not Unicode categories: categories grow with Python's versions, but the prompt and its fingerprint must not change.
_MARKUP = "&<>"
_CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029"
_FORMATS = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bcaf\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BLANKS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\u2800"
"""Letters, marks and symbols that are invisible, including variation selectors."""
_UNASSIGNABLE = "\ud800-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000f0000-\U0010ffff"
"""Surrogates, private use, and code points that are not characters."""
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u0f71-\u0f87\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Marks above and below a letter, stacked outwards; no writing system has more than four on one letter."""
_ESCAPED = re.compile(f"[{_MARKUP}{_CONTROLS}{_FORMATS}{_BLANKS}{_UNASSIGNABLE}]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
    + f"{_FORMATS}{_BLANKS}{_UNASSIGNABLE}]".replace("\ufe00-\ufe0f", "\ufe00-\ufe0e")
    + f"|[{_MARKS}](?<=[{_MARKS}]{{5}})"
)
"""Characters that people do not see, except tabs, line feeds and the selector that makes an emoji colourful; also marks that
cover nearby lines."""


class Literal(NamedTuple):
    """A quoted text."""

    text: str
    """A JSON string, quotation marks included."""
    left_out: int
    """Characters of the original that are left out; 0 if the text is complete."""


def literal(text: str) -> Literal:
    """Return the text as a JSON string on one line; a text that is too long keeps its head and tail around an omission.

    If nothing is left out, `json.loads` returns the text. (Two lone surrogates that form a pair become one character, which
    cannot happen to texts from UTF-8 or JSON.)
    """
    shown = _escape(text) if len(text) <= MAX_SHOWN else ""
    if len(text) <= MAX_SHOWN and len(shown) <= MAX_SHOWN:
        return Literal(f'"{shown}"', 0)
    head = _fitting(text[:_HEAD], _HEAD)
    tail = _fitting(text[: -(MAX_SHOWN - _HEAD) - 1 : -1], MAX_SHOWN - _HEAD)
    left_out = len(text) - head - tail
    return Literal(
        f'"{_escape(text[:head])} [… {left_out} characters left out …] {_escape(text[len(text) - tail :])}"', left_out
    )


def visible(text: str) -> str:
    r"""Return one line of trusted text with marks and invisible characters shown as `\uXXXX`."""
    return _ESCAPED.sub(_escape_match, text)


def hidden_parts(text: str) -> list[tuple[str, str]]:
    """Split a text into visible parts, each followed by one character that must be escaped; nothing follows the last part."""
    if text.isascii() and text.isprintable():
        return [(text, "")]
    ends = [found.span() for found in _HIDDEN.finditer(text)]
    starts = [0, *(end for _, end in ends)]
    stops = [*ends, (len(text), len(text))]
    return [(text[start:stop], text[stop:end]) for start, (stop, end) in zip(starts, stops, strict=True)]


def _escape(text: str) -> str:
    """Return the inside of the JSON string."""
    quoted = encode_basestring(text)[1:-1]
    # Written out, because `any` over these four takes longer than everything else here.
    if quoted.isascii() and "<" not in quoted and ">" not in quoted and "&" not in quoted and "\x7f" not in quoted:
        return quoted
    return _ESCAPED.sub(_escape_match, quoted)


def _escape_match(match: re.Match[str]) -> str:
    """Return a character as JSON writes it in ASCII; beyond U+FFFF as two surrogates."""
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _fitting(characters: str, room: int) -> int:
    """Return how many of the first characters fit into this room once they are escaped."""
    return bisect_right(list(accumulate(len(_escape(one)) for one in characters)), room)
