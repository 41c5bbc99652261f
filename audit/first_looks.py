r"""First looks: one cheap search that says in which of many texts a rule may find something. The rule itself then looks at those alone.

1. A first look is made from the patterns of the rules, so that no rule is written twice. It finds whatever one of them finds, and
   perhaps more: it never misses.
2. Many texts are searched as one, a line feed between two of them. So `\A` and `^` count as the start of a line and `\z` and `$` as
   its end, `\b` sees no letter beyond a text, and every text that a match touches counts as found.
3. What cannot be searched so, because it switches these meanings itself, is searched text by text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import re2

from audit.patterns import Pattern, encode

_TOGETHER = 16 * 1024
"""Bytes of texts that are searched as one. A search may read all of them for each text that it finds, so they are few."""
_MEMORY = 32 * 1024 * 1024
"""Bytes that the union of the patterns may take; one that takes more is searched pattern by pattern."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_LINES = {"A": "(?m:^)", "z": "(?m:$)"}
_SWITCHES = re.compile(r"\\Q|\(\?[a-zA-Z]*-")
"""A quotation in which nothing is an escape, or a flag that is switched off."""


class FirstLook:
    """A first look for some patterns, in texts as `audit.patterns.encode` makes them."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        listed = tuple(patterns)
        self._alone = tuple(one for one in listed if _SWITCHES.search(one.text))
        joined = [one for one in listed if one not in self._alone]
        self._union = _union(joined)
        if self._union is None:
            self._alone = listed

    def found_in(self, data: bytes) -> bool:
        """Tell whether one of the patterns may match anywhere in the text."""
        return (self._union is not None and self._union.search(data) is not None) or any(
            pattern.found_in(data) for pattern in self._alone
        )

    def is_clean(self, texts: Sequence[bytes]) -> bool:
        """Tell whether none of the patterns may match in any of a few texts: `rows` names none of them. One search."""
        if any(pattern.found_in(text) for pattern in self._alone for text in texts):
            return False
        return self._union is None or self._union.search(b"\n".join(texts)) is None

    def rows(self, texts: Sequence[bytes]) -> list[int]:
        """The places of the texts in which one of the patterns may match, ascending."""
        found = {row for pattern in self._alone for row, text in enumerate(texts) if pattern.found_in(text)}
        for start, end in _chunks(texts) if self._union is not None else ():
            found.update(start + row for row in _touched(self._union, texts[start:end]))
        return sorted(found)


def _touched(union: Any, texts: Sequence[bytes]) -> Iterator[int]:
    """The places of the texts that a match touches, of texts that are searched as one."""
    whole = b"\n".join(texts)
    begins = [0, *accumulate(len(text) + 1 for text in texts)]
    position = 0
    while position < begins[-1] and (match := union.search(whole, position)) is not None:
        start, end = match.span()
        last = bisect_right(begins, max(start, end - 1)) - 1
        yield from range(bisect_right(begins, start) - 1, last + 1)
        position = begins[last + 1]


def _union(patterns: Sequence[Pattern]) -> Any:
    """One expression for all of the patterns; None where there are none, or where it would be too large."""
    if not patterns:
        return None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    flags = {True: "im", False: "m"}
    parts = (f"(?{flags[one.ignore_case]}:{_ESCAPE.sub(_line_wise, one.text)})" for one in patterns)
    try:
        return re2.compile(encode("|".join(parts)), options)
    except re2.error:
        return None


def _line_wise(escape: re.Match[str]) -> str:
    return _LINES.get(escape[1], escape[0])


def _chunks(texts: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Stretches of the texts that are searched as one: each has few bytes, or one text."""
    start, size = 0, 0
    for place, text in enumerate(texts):
        if size + len(text) > _TOGETHER and place > start:
            yield start, place
            start, size = place, 0
        size += len(text) + 1
    if texts:
        yield start, len(texts)
