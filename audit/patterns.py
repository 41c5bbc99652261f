"""Patterns that run on hostile text: RE2, whose search is linear in the length of the text whatever the pattern is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import re2

from schemas.errors import PolicyError

MAX_PATTERN_LENGTH = 1000
"""Characters a pattern of a file may have; a longer one is a list that should be several patterns."""

WINDOW = 8192
"""Bytes that `Pattern.spans` looks at in one search, so that many matches do not make the whole quadratic."""
MAX_MATCH = WINDOW // 2
"""Bytes of a match that `Pattern.spans` finds for certain; longer ones may be found in part."""

_APOSTROPHES = "\u2018\u2019\u02bc\uff07\u0060\u00b4"
_ASCII_APOSTROPHES = "".join(filter(str.isascii, _APOSTROPHES))
_HINT = "Patterns are RE2: no look-around and no back-references, because matching must stay linear in time on hostile text."


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. Two patterns are equal when their text and case rule are."""

    text: str
    ignore_case: bool
    _regexp: Any = field(repr=False, compare=False)

    def found_in(self, data: bytes) -> bool:
        """Tell whether the pattern matches anywhere in the text, which is given as `encode` makes it."""
        return self._regexp.search(data) is not None

    def matches(self, text: str) -> bool:
        """Tell whether the pattern matches anywhere in the text; lone surrogates match nothing."""
        return self.found_in(encode(text))

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Places (start, end), in bytes, of the non-empty matches from left to right; they do not overlap.

        RE2 bounds one search, not the sum of them: a search that fails late and falls back on an early match would scan
        the rest again for every match. So each search sees a window of `WINDOW` bytes.
        """
        if not self.found_in(data):
            return
        position = 0
        while position < len(data):
            limit = min(position + WINDOW, len(data))
            found = self._regexp.search(data, position, limit)
            if found is None:
                position = limit if limit == len(data) else limit - MAX_MATCH
                continue
            start, end = found.span()
            if start > position and end == limit < len(data):
                position = start  # the window cut it short: look again from where it starts
                continue
            if end > start:
                yield start, end
            position = max(end, start + 1)

    def groups(self, data: bytes, groups: Iterable[int] = (0,)) -> Iterator[tuple[int, int]]:
        """Places (start, end), in bytes, of the first of these groups that took part in each match, however long it is.

        Without a window, so only for patterns that are known to give up soon: then the sum of the searches is linear as well.
        """
        wanted = tuple(groups)
        for found in self._regexp.finditer(data):
            yield next(span for group in wanted if (span := found.span(group)) != (-1, -1))


def encode(text: str) -> bytes:
    """The text as the bytes the patterns run on; lone surrogates, which UTF-8 forbids, are let through."""
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """The inverse of `encode`."""
    return data.decode("utf-8", "surrogatepass")


def straighten(text: str) -> str:
    """The text with every kind of apostrophe made a straight one, so that a pattern needs to know only that one."""
    for apostrophe in _ASCII_APOSTROPHES if text.isascii() else _APOSTROPHES:
        text = text.replace(apostrophe, "'")
    return text


def compile_pattern(text: str, *, where: str, ignore_case: bool = True) -> Pattern:
    """Compile a pattern; PolicyError, which starts with `where`, says why it cannot be used."""
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        regexp = re2.compile(encode(text), options)
    except re2.error as error:
        reason = error.args[0] if error.args else "not RE2"
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise PolicyError(f"{where}: pattern {text!r} does not compile: {reason}", hint=_HINT) from None
    return Pattern(text=text, ignore_case=ignore_case, _regexp=regexp)
