r"""Texts of others inside a prompt: as JSON strings in which no mark can be written and nothing is invisible.

`<`, `>` and `&`, and every character that cannot be seen, that changes how others are shown, or that no font draws, become
`\uXXXX`. So a text stays on one line, cannot close its string, cannot open or close a mark, and hides nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from json.encoder import encode_basestring
from typing import NamedTuple

MAX_SHOWN = 24_000
"""Characters of a text that the judge sees, counted as they are written in the literal."""
_HEAD = 16_000
"""Of these, how many come from the start; the rest comes from the end, where an answer says what was done."""

# Ranges and not Unicode categories: those grow with each version of Python, and the prompt, so its fingerprint, must not.
_MARKUP = "&<>"
_CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029"
_FORMATS = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bcaf\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BLANKS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\u2800"
"""Shown as nothing, although they count as letters, marks or symbols; variation selectors among them."""
_UNASSIGNABLE = "\ud800-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000f0000-\U0010ffff"
"""Surrogates, characters for private use, and code points that are no characters."""
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u0f71-\u0f87\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Drawn above and below a letter, each farther out than the one before; no writing takes more than four on one letter."""
_ESCAPED = re.compile(f"[{_MARKUP}{_CONTROLS}{_FORMATS}{_BLANKS}{_UNASSIGNABLE}]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
    + f"{_FORMATS}{_BLANKS}{_UNASSIGNABLE}]".replace("\ufe00-\ufe0f", "\ufe00-\ufe0e")
    + f"|[{_MARKS}](?<=[{_MARKS}]{{5}})"
)
"""Characters that people do not see, except tabs, line feeds and the selector that makes an emoji colourful; also marks that
cover lines around them.
"""


class Literal(NamedTuple):
    """A text as it is shown to the judge."""

    text: str
    """A JSON string, quotation marks included."""
    left_out: int
    """Characters of the original that are not shown; 0 for a text that is shown as a whole."""


def literal(text: str) -> Literal:
    """The text as a JSON string on one line; of one that is too long, head and tail and between them what was left out.

    Where nothing is left out, `json.loads` gives the text back. (Two lone surrogates that belong together become the one
    character they stand for, which no text that came as UTF-8 or JSON can hold.)
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
    r"""One line of trusted text without marks and without anything invisible; these are shown as `\uXXXX`."""
    return _ESCAPED.sub(_escape_match, text)


def hidden_parts(text: str) -> list[tuple[str, str]]:
    """A text in parts, in order: what can be seen, and after it one character that cannot, or hides others; nothing after the last."""
    if text.isascii() and text.isprintable():
        return [(text, "")]
    ends = [found.span() for found in _HIDDEN.finditer(text)]
    starts = [0, *(end for _, end in ends)]
    stops = [*ends, (len(text), len(text))]
    return [(text[start:stop], text[stop:end]) for start, (stop, end) in zip(starts, stops, strict=True)]


def _escape(text: str) -> str:
    """The inside of the JSON string."""
    quoted = encode_basestring(text)[1:-1]
    # One after the other: `any` over these four takes longer than all else here.
    if quoted.isascii() and "<" not in quoted and ">" not in quoted and "&" not in quoted and "\x7f" not in quoted:
        return quoted
    return _ESCAPED.sub(_escape_match, quoted)


def _escape_match(match: re.Match[str]) -> str:
    """A character as JSON writes it in ASCII: beyond U+FFFF as two surrogates."""
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _fitting(characters: str, room: int) -> int:
    """Return how many of the characters, from the first, fit into this much room once they are escaped."""
    return bisect_right(list(accumulate(len(_escape(one)) for one in characters)), room)
