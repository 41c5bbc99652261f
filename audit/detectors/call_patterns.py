"""Patterns of calls that a policy can enable: alternating calls and near-duplicates.

1. Calls **alternate** if two different calls, each with unchanged arguments, follow each other in turn without another call in
   between: A, B, A, B (also known as ping-pong). Nothing happened in between that could change their results.
2. A call is a **near-duplicate** if one of the last WINDOW calls names the same tool with nearly the same arguments: equal keys
   and numbers in any order, and nearly the same words; their order, case and spacing do not matter. Different numbers mean
   progress: another page, line or id.
3. Polling is neither: calls that `audit.diagnosis.events` exempts have no key, and a policy can name further tools. In a
   transcript, both patterns are found within one exchange.

A call is compared with WINDOW others, by words that are folded into BITS bits, so time is linear in the calls and memory is
constant.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from audit.detectors.thresholds import Thresholds
from audit.diagnosis.events import call_arguments
from audit.fingerprints import canonical_json, digest

WINDOW = 10
"""Number of previous calls that a call is compared with."""
BITS = 1024
"""Bits that the words of a call are folded into."""
MAX_COMPARED_CHARACTERS = 1_000
"""Maximum length of arguments that are compared. Longer ones are texts being written, and similar versions of a text are normal."""
_TOKENS = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")

Reference = tuple[int, str]


class Sketch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The parts of a call's arguments that are compared."""

    exact: str
    """Digest of the keys, of every value that is not text, and of the numbers in the texts."""
    words: bytes
    """One bit per word, by hash."""

    def similarity(self, other: Sketch) -> float:
        """Return the share of words, 0 to 1, that two calls have in common; 0 if keys or numbers differ."""
        if self.exact != other.exact:
            return 0.0
        own_bits = int.from_bytes(self.words, "big")
        other_bits = int.from_bytes(other.words, "big")
        return (own_bits & other_bits).bit_count() / max(1, (own_bits | other_bits).bit_count())


class RecentCall(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One of the last calls."""

    tool: str
    key: str
    sketch: Sketch


class Alternation(msgspec.Struct, array_like=True, gc=False):
    """Two calls that alternate. `references` may be capped."""

    keys: tuple[str, str] = ("", "")
    """Keys of the last but one and of the last call."""
    tools: tuple[str, str] = ("", "")
    """Tools in the same order."""
    calls: int = 0
    references: list[Reference] = []

    @property
    def rounds(self) -> int:
        """The number of times that both calls were made."""
        return self.calls // 2

    @property
    def pair(self) -> tuple[str, str]:
        """Both tools, that of the first call first."""
        return self.tools if self.calls % 2 == 0 else (self.tools[1], self.tools[0])


class CallPatterns(msgspec.Struct, gc=False):
    """The patterns found in a session's calls, under the thresholds it started with."""

    polling_tools: tuple[str, ...] = ()
    similarity: float | None = None
    """The similarity from which calls are near-duplicates; None disables the comparison."""
    exchange: str | None = None
    last: Reference | None = None
    current: Alternation = msgspec.field(default_factory=Alternation)
    longest: Alternation = msgspec.field(default_factory=Alternation)
    """The longest alternation before the current one."""
    recent: list[RecentCall] = []
    near_duplicates: int = 0
    near_references: list[Reference] = []
    near_tool: str = ""
    """Tool of the first near-duplicate."""

    @classmethod
    def for_thresholds(cls, thresholds: Thresholds) -> CallPatterns | None:
        """Return the patterns to fold calls into; None if the thresholds enable neither pattern."""
        if thresholds.alternating_rounds is None and thresholds.near_duplicate_calls is None:
            return None
        similarity = None if thresholds.near_duplicate_calls is None else thresholds.near_duplicate_similarity
        return cls(thresholds.polling_tools, similarity)

    @property
    def alternation(self) -> Alternation:
        """The longest alternation, the first of equals."""
        return self.current if self.current.calls > self.longest.calls else self.longest

    def add(
        self,
        reference: Reference,
        tool: str | None,
        key: str | None,
        *,
        exchange: str | None,
        payload: str | Mapping[str, Any] | None,
        limit: int | None,
    ) -> None:
        """Fold the session's next call; `exchange` is None except for transcripts, `limit` caps references."""
        if tool is None or key is None or tool in self.polling_tools:
            return
        if exchange != self.exchange:
            self._end_alternation()
            self.current = Alternation()
            self.exchange = exchange
            self.recent = []
        self._alternate(reference, tool, key, limit)
        if self.similarity is not None and payload is not None:
            self._compare(reference, tool, key, payload, limit)
        self.last = reference

    def folded(self, limit: int) -> list[Any]:
        """Return the parts that detectors use, with at most `limit` references."""
        longest = self.alternation
        alternation = [longest.pair, longest.calls, longest.references[:limit]]
        return [alternation, self.near_tool, self.near_duplicates, self.near_references[:limit]]

    def _alternate(self, reference: Reference, tool: str, key: str, limit: int | None) -> None:
        """Extend the current alternation by a call, or end it and start another one."""
        current = self.current
        last_but_one_key, last_key = current.keys
        last_tool = current.tools[1]
        if current.calls >= 2 and key == last_but_one_key:
            current.keys = (last_key, key)
            current.tools = (last_tool, tool)
            current.calls += 1
            if limit is None or len(current.references) < limit:
                current.references.append(reference)
            return
        self._end_alternation()
        if self.last is None or current.calls == 0 or key == last_key:
            self.current = Alternation(("", key), ("", tool), 1, [reference][:limit])
        else:
            self.current = Alternation((last_key, key), (last_tool, tool), 2, [self.last, reference][:limit])

    def _end_alternation(self) -> None:
        self.longest = self.alternation

    def _compare(self, reference: Reference, tool: str, key: str, payload: Any, limit: int | None) -> None:
        sketch = sketch_of(payload)
        if sketch is None:
            return
        comparable = (call.sketch for call in self.recent if call.tool == tool and call.key != key)
        if any(sketch.similarity(earlier) >= (self.similarity or 0) for earlier in comparable):
            self.near_tool = self.near_tool or tool
            self.near_duplicates += 1
            if limit is None or len(self.near_references) < limit:
                self.near_references.append(reference)
        self.recent = [*self.recent[1 - WINDOW :], RecentCall(tool, key, sketch)]


def sketch_of(payload: str | Mapping[str, Any]) -> Sketch | None:
    """Return the compared parts of a call; None if it has no words or too many."""
    event = msgspec.json.decode(payload) if isinstance(payload, str) else payload
    arguments = _parse_arguments(call_arguments(event)) if isinstance(event, Mapping) else None
    if arguments is None or len(canonical_json(arguments)) > MAX_COMPARED_CHARACTERS:
        return None
    keys: list[str] = []
    texts: list[str] = []
    for key, value in _iterate_leaves(arguments):
        keys.append(key if isinstance(value, str) else f"{key}={canonical_json(value)}")
        texts.append(value if isinstance(value, str) else "")
    tokens = _TOKENS.findall(" ".join(texts).casefold())
    terms = {token for token in tokens if not token[0].isdecimal()}
    if not terms:
        return None
    bits = 0
    for word in terms:
        bits |= 1 << zlib.crc32(word.encode("utf-8", "surrogatepass")) % BITS
    numbers = sorted(token for token in tokens if token[0].isdecimal())
    return Sketch(digest(canonical_json([sorted(keys), numbers])), bits.to_bytes(BITS // 8, "big"))


def _parse_arguments(arguments: Any) -> Any:
    """Parse arguments that are a JSON object in a text."""
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(arguments)
    return arguments


def _iterate_leaves(arguments: Any) -> Iterator[tuple[str, Any]]:
    """Yield every leaf value, with its own name or that of the value that contains it."""
    pending = [("", arguments)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, Mapping):
            pending.extend((str(key), item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            pending.extend((name, item) for item in value)
        else:
            yield name, value
