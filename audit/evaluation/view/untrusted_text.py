"""Texts in the view, as JSON: those of the run under a mark that no author of a text can have known, and cut where room is short.

A text of the run is `{"untrusted-<16 hex>": "text"}`, a text of the case a plain string. Of one that is too long there are head and
tail with a member of ours between them, which no text can imitate: `[head, {"left_out": {"characters": 1234}}, tail]`.

The mark is a digest over the whole view, so it is written last: until then a control character holds its place, which no text has
once it is written as JSON.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from audit.fingerprints import digest
from audit.prompts.prompt_quoting import visible

UNMARKED = "\x00"
MARK_LENGTH = 16
LEAST = 64
"""Room in which every text can at least be said to be left out."""
_GROWS = MARK_LENGTH - len(UNMARKED)
_MARGIN = 1_024
"""Characters in which a cut looks for a place between words, so that it does not leave half an id."""
_HEAD_SHARE = 2 / 3
_WORTH = 40
"""Characters below which head and tail say nothing."""
_BETWEEN = " \t\r\n,;\"'()<>{}"
_quote = json.JSONEncoder(ensure_ascii=False).encode


def marked(document: str) -> str:
    """The document with its mark in every place that is kept for it."""
    return document.replace(UNMARKED, digest(document))


def size(fragment: str) -> int:
    """Characters the fragment has once its marks are written."""
    return len(fragment) + _GROWS * fragment.count(UNMARKED)


def quoted(text: str) -> str:
    """The text as a JSON string without marks of markup and without anything invisible."""
    return visible(_quote(text))


def left_out(**counts: int) -> str:
    """Return the mark that something is left out, with the number of each kind; kinds with none are not named."""
    return json.dumps({"left_out": {name: count for name, count in counts.items() if count}}, separators=(",", ":"))


@dataclass(frozen=True)
class Text:
    """A text to be shown, as far as there is room for it."""

    raw: str
    clean: Callable[[str], str] | None = None
    """Makes a text of the run fit to be shown; None for texts of the case, which are shown as they are."""
    cleaned: Callable[[], str] | None = None
    """The whole text cleaned, where that takes more than its characters."""

    @cached_property
    def wanted(self) -> int:
        """About how much room it takes."""
        return len(self.raw) + len(self._shown(""))

    def render(self, room: int) -> str:
        """The text as JSON of at most `room` characters, of which there are at least `LEAST`."""
        head, tail = _windows(self.raw, room)
        if tail:
            return self._cut(self._clean(head), self._clean(tail), len(self.raw) - len(head) - len(tail), room)
        whole = self.cleaned() if self.cleaned else self._clean(head)
        shown = self._shown(whole) if len(whole) <= room else ""
        return shown if shown and size(shown) <= room else self._cut(whole, whole, -len(whole), room)

    def _cut(self, head: str, tail: str, skipped: int, room: int) -> str:
        """Head and tail; `skipped` characters between these two are left out in any case."""
        most = skipped + len(head) + len(tail)
        free = room - size(f"[{self._shown('')},{left_out(characters=most)},{self._shown('')}]")
        if free < _WORTH:
            return left_out(characters=most)
        first = _fitting(head, int(free * _HEAD_SHARE))
        last = _fitting(tail[::-1], free - _length(head[:first]))
        gap = left_out(characters=most - first - last)
        return f"[{self._shown(head[:first])},{gap},{self._shown(tail[len(tail) - last :])}]"

    def _clean(self, text: str) -> str:
        return self.clean(text) if self.clean else text

    def _shown(self, text: str) -> str:
        return f'{{"untrusted-{UNMARKED}":{quoted(text)}}}' if self.clean else quoted(text)


def _windows(text: str, room: int) -> tuple[str, str]:
    """Head and tail of a text that are large enough for any cut; the whole and nothing where these would meet."""
    reach = room + _MARGIN
    if len(text) <= 2 * reach:
        return text, ""
    return text[: _gap_before(text, reach)], text[_gap_after(text, len(text) - reach) :]


def _gap_before(text: str, end: int) -> int:
    """The last place between words within the margin before `end`; `end` where there is none."""
    return next((at for at in range(end, end - _MARGIN, -1) if text[at - 1] in _BETWEEN), end)


def _gap_after(text: str, start: int) -> int:
    """The first place between words within the margin after `start`; `start` where there is none."""
    return next((at for at in range(start, start + _MARGIN) if text[at] in _BETWEEN), start)


def _length(text: str) -> int:
    return len(quoted(text)) - 2


def _fitting(text: str, room: int) -> int:
    """Return how many characters of the text, from the first, fit into the room once they are written as JSON."""
    most = min(len(text), room)
    return (
        most if _length(text[:most]) <= room else max(0, bisect_right(range(most), room, key=lambda n: _length(text[:n])) - 1)
    )
