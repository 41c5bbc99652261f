r"""Quoting of untrusted texts in a prompt: as JSON strings without marks and without invisible characters.

`<`, `>` and `&`, a `[` that could open a control token of a model such as `[INST]`, and every character that is invisible, that changes the display of others, or that no font draws, become
`\uXXXX`. So a text is a single line, cannot close its string, cannot open or close a mark, and hides nothing.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring
from typing import NamedTuple

MAX_TEXT_LENGTH = 24_000
"""Maximum number of characters of a text in one question. Escapes do not count, so no choice of characters hides a part of a text."""
_TAIL_DIVISOR = 3
"""A third of a cut text is from its end, where answers often report what was done."""

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
_REDACTION = r"SECRET:[a-z][a-z0-9_]{0,31}:[0-9a-f]{8}\]"
_ESCAPED = re.compile(rf"[{_MARKUP}{_CONTROLS}{_FORMATS}{_BLANKS}{_UNASSIGNABLE}]|\[(?=[A-Z/])(?!{_REDACTION})")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
    + f"{_FORMATS}{_BLANKS}{_UNASSIGNABLE}]".replace("\ufe00-\ufe0f", "\ufe00-\ufe0e")
    + f"|[{_MARKS}](?<=[{_MARKS}]{{5}})"
)
"""Characters that people do not see, except tabs, line feeds and the selector of colored emoji; also marks that cover nearby lines."""


class Literal(NamedTuple):
    """A quoted text."""

    text: str
    """A JSON string, quotation marks included."""
    omitted: int
    """The number of omitted characters of the original; 0 if the text is complete."""


def literal(text: str, max_length: int = MAX_TEXT_LENGTH) -> Literal:
    """Return the text as a JSON string on one line; a text that is too long keeps its head and tail around an omission.

    If nothing is left out, `json.loads` returns the text. (Two lone surrogates that form a pair become one character, which
    cannot happen to texts from UTF-8 or JSON.)
    """
    hidden = omission(text, max_length)
    if not hidden:
        return Literal(f'"{_escape(text)}"', 0)
    tail_length = max_length // _TAIL_DIVISOR
    head = _escape(text[: max_length - tail_length])
    tail = _escape(text[-tail_length:])
    omitted = len(hidden)
    return Literal(f'"{head} [… {omitted} characters left out …] {tail}"', omitted)


def omission(text: str, max_length: int = MAX_TEXT_LENGTH) -> str:
    """Return the part of the text that `literal` leaves out; empty if it leaves out nothing."""
    tail_length = max_length // _TAIL_DIVISOR
    return text[max_length - tail_length : -tail_length] if len(text) > max_length else ""


def visible(text: str) -> str:
    r"""Return one line of trusted text with marks and invisible characters shown as `\uXXXX`."""
    return _ESCAPED.sub(_escape_match, text)


def hidden_parts(text: str) -> list[tuple[str, str]]:
    """Split a text into visible parts, each followed by one character that must be escaped; nothing follows the last part."""
    if text.isascii() and text.isprintable():
        return [(text, "")]
    parts = []
    start = 0
    for match in _HIDDEN.finditer(text):
        parts.append((text[start : match.start()], match.group()))
        start = match.end()
    return [*parts, (text[start:], "")]


def _escape(text: str) -> str:
    """Return the inside of the JSON string."""
    quoted = encode_basestring(text)[1:-1]
    # Written out, because `any` over these characters would take longer than the rest of the function.
    is_plain = "<" not in quoted and ">" not in quoted and "&" not in quoted and "[" not in quoted and "\x7f" not in quoted
    if is_plain and quoted.isascii():
        return quoted
    return _ESCAPED.sub(_escape_match, quoted)


def _escape_match(match: re.Match[str]) -> str:
    """Return a character as JSON writes it in ASCII; beyond U+FFFF as two surrogates."""
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))
