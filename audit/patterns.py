r"""Patterns for hostile text: RE2, whose search is linear in the length of the text for any pattern.

A prefilter is one cheap search that finds which of many texts a rule may match; the rule then runs only on those.

1. It is built from the patterns of the rules, so no rule is written twice. It matches whenever one of them does, and perhaps
   more often: it never misses.
2. Many texts are searched as one, joined by line feeds. So `\A` and `^` match at the start of a line and `\z` and `$` at its
   end, `\b` does not see letters of other texts, and every text that a match touches is a hit.
3. A pattern that cannot be searched this way, because it changes these meanings itself, is searched text by text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import re2

from schemas.errors import PolicyError

MAX_PATTERN_LENGTH = 1000
"""Maximum length of a pattern in a file. A longer pattern should be split."""
WINDOW = 8192
"""Bytes that `Pattern.spans` passes to one search, so that many matches do not take quadratic time."""
MAX_MATCH = WINDOW // 2
"""Longest match, in bytes, that `Pattern.spans` finds reliably; longer ones may be found in part."""
_APOSTROPHES = "\u2018\u2019\u02bc\uff07\u0060\u00b4"
_ASCII_APOSTROPHES = "".join(filter(str.isascii, _APOSTROPHES))
_HINT = "Patterns are RE2: no look-around and no back-references, because matching must stay linear in time on hostile text."

_CHUNK_BYTES = 16 * 1024
"""Maximum bytes of texts that are searched as one. It is small because a search may read all of them for each match."""
_MAX_UNION_BYTES = 32 * 1024 * 1024
"""Maximum memory of the union of the patterns. Without a union, the patterns are searched one by one."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_LINE_ANCHORS = {"A": "(?m:^)", "z": "(?m:$)"}
_NO_SPAN = (-1, -1)
"""The span of a group that did not match."""
_SWITCHES = re.compile(r"\\Q|\(\?[a-zA-Z]*-")
"""A literal section in which nothing is an escape, or a flag that is switched off."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. Patterns are equal if their text and case rule are."""

    text: str
    ignore_case: bool
    _regexp: Any = field(repr=False, compare=False)

    def found_in(self, data: bytes) -> bool:
        """Return whether the pattern matches anywhere in the text, given in the form of `encode`."""
        return self._regexp.search(data) is not None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text; lone surrogates match nothing."""
        return self.found_in(encode(text))

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the spans (start, end), in bytes, of the non-empty, non-overlapping matches from left to right.

        RE2 bounds each search but not their sum: a search that fails late and falls back on an early match would scan the rest
        again for every match. So each search sees a window of `WINDOW` bytes.
        """
        if not self.found_in(data):
            return
        offset = 0
        while offset < len(data):
            limit = min(offset + WINDOW, len(data))
            match = self._regexp.search(data, offset, limit)
            if match is None:
                offset = limit if limit == len(data) else limit - MAX_MATCH
                continue
            start, end = match.span()
            may_be_cut = end == limit < len(data)
            if may_be_cut and start > offset:
                offset = start  # search again from its start, in a full window
                continue
            if end > start:
                yield start, end
            offset = max(end, start + 1)

    def groups(self, data: bytes, groups: Iterable[int] = (0,)) -> Iterator[tuple[int, int]]:
        """Yield the spans (start, end), in bytes, of the first of these groups that matched, in each match of any length.

        There is no window, so this is only for patterns that fail early, for which the sum of the searches is linear as well.
        """
        group_numbers = tuple(groups)
        for match in self._regexp.finditer(data):
            spans = [match.span(number) for number in group_numbers]
            yield next(span for span in spans if span != _NO_SPAN)


def encode(text: str) -> bytes:
    """Encode a text for patterns; lone surrogates, which UTF-8 forbids, are allowed."""
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """The inverse of `encode`."""
    return data.decode("utf-8", "surrogatepass")


def straighten(text: str) -> str:
    """Replace every kind of apostrophe by a straight one, so that patterns need only that."""
    for apostrophe in _ASCII_APOSTROPHES if text.isascii() else _APOSTROPHES:
        text = text.replace(apostrophe, "'")
    return text


def compile_pattern(text: str, *, where: str, ignore_case: bool = True) -> Pattern:
    """Compile a pattern; raises PolicyError, starting with `where`, if it is invalid."""
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


class Prefilter:
    """A prefilter for some patterns, on texts in the form of `audit.patterns.encode`."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        all_patterns = tuple(patterns)
        separate = tuple(pattern for pattern in all_patterns if _SWITCHES.search(pattern.text))
        self._union = _compile_union([pattern for pattern in all_patterns if pattern not in separate])
        self._separate = all_patterns if self._union is None else separate
        """Patterns that are not in the union, and are searched text by text."""

    def found_in(self, data: bytes) -> bool:
        """Return whether one of the patterns may match anywhere in the text."""
        if self._union is not None and self._union.search(data) is not None:
            return True
        return any(pattern.found_in(data) for pattern in self._separate)

    def is_clean(self, texts: Sequence[bytes]) -> bool:
        """Return whether none of the patterns can match in a few texts, by one search."""
        if any(pattern.found_in(text) for pattern in self._separate for text in texts):
            return False
        return self._union is None or self._union.search(b"\n".join(texts)) is None

    def find_suspects(self, texts: Sequence[bytes]) -> list[int]:
        """Return the indexes of the texts in which one of the patterns may match, ascending."""
        matching = {index for pattern in self._separate for index, text in enumerate(texts) if pattern.found_in(text)}
        if self._union is not None:
            for start, end in _split_into_chunks(texts):
                matching.update(start + index for index in _find_touched(self._union, texts[start:end]))
        return sorted(matching)


def _compile_union(patterns: Sequence[Pattern]) -> Any:
    """Return one expression for all patterns; None without patterns, or if it would be too large."""
    if not patterns:
        return None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_UNION_BYTES
    flags = {True: "im", False: "m"}
    alternatives = (f"(?{flags[pattern.ignore_case]}:{_ESCAPE.sub(_anchor_to_line, pattern.text)})" for pattern in patterns)
    try:
        return re2.compile(encode("|".join(alternatives)), options)
    except re2.error:
        return None


def _anchor_to_line(escape: re.Match[str]) -> str:
    r"""Return an escape with `\A` and `\z` replaced by the start and the end of a line."""
    return _LINE_ANCHORS.get(escape[1], escape[0])


def _split_into_chunks(texts: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield ranges (start, end) of texts that are searched as one: each has at most _CHUNK_BYTES bytes, or one text."""
    start = 0
    size = 0
    for index, text in enumerate(texts):
        if size + len(text) > _CHUNK_BYTES and index > start:
            yield start, index
            start = index
            size = 0
        size += len(text) + 1
    if texts:
        yield start, len(texts)


def _find_touched(union: Any, texts: Sequence[bytes]) -> Iterator[int]:
    """Yield the indexes of the texts that a match touches, in a chunk that is searched as one."""
    chunk = b"\n".join(texts)
    offsets = [0, *accumulate(len(text) + 1 for text in texts)]
    offset = 0
    while offset < offsets[-1]:
        match = union.search(chunk, offset)
        if match is None:
            return
        start, end = match.span()
        first_index = bisect_right(offsets, start) - 1
        last_index = bisect_right(offsets, max(start, end - 1)) - 1
        yield from range(first_index, last_index + 1)
        offset = offsets[last_index + 1]
