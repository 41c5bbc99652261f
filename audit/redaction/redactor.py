"""Redaction: secrets are taken out of texts before they are stored or judged, and replaced by `[SECRET:kind:hmac8]`.

`hmac8` is 8 hexadecimal digits of an HMAC of the secret, so that one secret can be followed through the records without being
known. Redacting a redacted text changes nothing. Markers that are already there are left alone.
"""

from __future__ import annotations

import copy
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from audit.first_looks import FirstLook
from audit.patterns import Pattern, compile_pattern, decode, encode
from audit.policy.policy_fields import RedactionSettings
from audit.redaction.secret_kinds import BUILT_IN, RANDOM_RUN, TELLING, TRIGGER, SecretKind, has_random_run, is_one_run
from audit.redaction.secret_names import TELLING_NAME, is_sensitive
from schemas.bounds.limits import MAX_DEPTH
from schemas.errors import BoundsError

DEFAULT_KEY = b"driftline redaction marker"
"""Key of the markers' HMAC where a deployment sets none. With a public key a *guessed* secret can be confirmed: set your own."""


NAMES_REMEMBERED, LONGEST_NAME = 10_000, 256
"""Names that are remembered, and the characters of the longest of them."""
LABELS_REMEMBERED, LONGEST_LABELS = 1_000, 1_024
"""Sets of labels that are remembered, and the characters of the longest of them."""
_ROUNDS = 16
_MARKER = compile_pattern(r"\[SECRET:[a-z][a-z0-9_]{0,31}:[0-9a-f]{8}\]", where="marker", ignore_case=False)


class Redactor:
    """Takes secrets out of texts, by built-in kinds and those of a policy. Immutable, so it can be shared."""

    def __init__(self, settings: RedactionSettings, key: bytes = DEFAULT_KEY) -> None:
        """PolicyError when a pattern of the settings does not compile."""
        self._key = key
        self._enabled = settings.enabled
        patterns = [
            compile_pattern(secret.pattern, where=f"redaction.patterns[{index}].pattern", ignore_case=False)
            for index, secret in enumerate(settings.patterns)
        ]
        self._custom = tuple(
            SecretKind(secret.kind, pattern.spans, pattern.found_in)
            for secret, pattern in zip(settings.patterns, patterns, strict=True)
        )
        self._first_look = _first_look((TRIGGER, *patterns))
        self._telling = (TELLING, *patterns)
        self._remembered = lru_cache(NAMES_REMEMBERED)(self.redact)
        self._remembered_labels = lru_cache(LABELS_REMEMBERED)(self._redacted_labels)
        self._clean: frozenset[str] = frozenset()
        self._nameless: frozenset[str] = frozenset()
        """Those of the clean texts that are no name of a secret."""

    def having_looked(self, texts: Iterable[str], *, named: Iterable[str] = ()) -> Redactor:
        """The same redactor after one first look at all of these texts: those that hold nothing are not searched again.

        Most of what is suspected are ids, which hold nothing but a random run at most: they are not searched for anything else.
        `named` are those of the texts of which `is_clean_json` will be asked.
        """
        if not self._enabled:
            return self
        distinct = list(dict.fromkeys(texts))
        found = {distinct[row] for row in self._holding(list(map(encode, distinct)))}
        names = list(dict.fromkeys(named))
        telling = [names[row] for row in _first_look((TELLING_NAME,)).rows(list(map(encode, names)))] if names else ()
        looked = copy.copy(self)
        looked._clean = frozenset(distinct).difference(found) if found else frozenset(distinct)  # noqa: SLF001 - its own kind
        looked._nameless = looked._clean.intersection(names).difference(telling)  # noqa: SLF001 - its own kind
        return looked

    def _holding(self, data: Sequence[bytes]) -> Iterator[int]:
        """The places of the texts that may hold a secret."""
        ids, others = list[int](), list[int]()
        for row, one in enumerate(data):
            (ids if is_one_run(one) else others).append(row)
        suspects = ids + [others[place] for place in self._first_look.rows([data[row] for row in others])]
        # Made by who suspects anything, and not at every start.
        telling = (
            {suspects[place] for place in _first_look(self._telling).rows([data[row] for row in suspects])} if suspects else ()
        )
        for row in suspects:
            if row in telling or b"[SECRET:" in data[row] or has_random_run(data[row]):
                yield row

    def are_clean(self, texts: Iterable[str]) -> bool:
        """Tell whether a first look has found nothing in any of the texts, or nothing is to be taken out; False if that is not known."""
        return not self._enabled or self._clean.issuperset(texts)

    def is_clean_json(self, texts: Iterable[str]) -> bool:
        """Tell whether `redact_json` leaves a value as it is that has these texts, keys too; False if that is not known."""
        return not self._enabled or self._nameless.issuperset(texts)

    def is_clean(self, text: str) -> bool:
        """Tell whether a first look has found nothing in the text, or nothing is to be taken out of any; False if that is not known."""
        return not text or text in self._clean or not self._enabled

    def redacting(self, texts: Sequence[str]) -> Callable[[str], tuple[str, Counter[str]]]:
        """Return the function that redacts each of these texts, after one first look at all of them: most hold nothing."""
        return _as_it_is if not self._enabled or self._first_look.is_clean(list(map(encode, texts))) else self.redact

    def redact(self, text: str) -> tuple[str, Counter[str]]:
        """The text without its secrets, and how many of each kind were taken out."""
        if not self._enabled or not text or text in self._clean:
            return text, Counter()
        data = encode(text)
        if not self._first_look.found_in(data):
            return text, Counter()
        counts: Counter[str] = Counter()
        for _ in range(_ROUNDS):  # taking one secret out can lay another one bare
            data, found = self._one_round(data)
            counts.update(found)
            if not found:
                break
        return (decode(data), counts) if counts else (text, counts)

    def redact_text(self, text: str) -> str:
        """The text without its secrets."""
        return text if text in self._clean else self.redact(text)[0]

    def redact_labels(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """`redact_json` of labels; of those that come again and again, what became of them is remembered."""
        pairs = tuple(labels.items())
        if sum(len(name) + len(value) for name, value in pairs) > LONGEST_LABELS:
            return self._redacted_labels(pairs)
        return self._remembered_labels(pairs)

    def _redacted_labels(self, pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
        redacted: dict[str, str] = self.redact_json(dict(pairs))[0]
        return redacted

    def redact_name(self, name: str) -> str:
        """The name or id without its secrets; of those that come again and again, what became of them is remembered."""
        if name in self._clean:
            return name
        return (self.redact if len(name) > LONGEST_NAME else self._remembered)(name)[0]

    def redact_json(self, value: Any) -> tuple[Any, Counter[str]]:
        """The JSON value without its secrets, in keys too.

        Below a key such as `password` every text and number is taken out as a whole, and so are the value of
        `{"name": "Authorization", "value": ...}`, of the header `["Authorization", ...]` and of the option `["--password", ...]`.

        BoundsError for a value nested deeper than `MAX_DEPTH`.
        """
        counts: Counter[str] = Counter()
        return (self._walk(value, counts, 0) if self._enabled else value), counts

    def _one_round(self, data: bytes) -> tuple[bytes, Counter[str]]:
        counts: Counter[str] = Counter()
        if TELLING.found_in(data):
            for kind in BUILT_IN:
                if kind.occurs(data):
                    data = self._replace(data, kind, counts)
        else:
            data = self._replace(data, RANDOM_RUN, counts)
        for kind in self._custom:
            data = self._replace(data, kind, counts)
        return data, counts

    def _replace(self, data: bytes, kind: SecretKind, counts: Counter[str]) -> bytes:
        """The text with what the kind finds between markers replaced."""
        pieces: list[bytes] = []
        position = 0
        for marker_start, marker_end in [*_markers(data), (len(data), len(data))]:
            free = data[position:marker_start]
            done = 0
            for start, end in kind.spans(free):
                first, last = _whole_characters(free, start, end)
                if (first := max(first, done)) < last:
                    pieces += [free[done:first], self._marker(kind.name, free[first:last])]
                    counts[kind.name] += 1
                    done = last
            pieces += [free[done:], data[marker_start:marker_end]]
            position = marker_end
        return b"".join(pieces)

    def _marker(self, kind: str, secret: bytes) -> bytes:
        return f"[SECRET:{kind}:{hmac.digest(self._key, secret, 'sha256')[:4].hex()}]".encode()

    def _walk(self, value: Any, counts: Counter[str], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BoundsError(f"a value is nested deeper than {MAX_DEPTH} levels", hint="Flatten the value or send it as text.")
        if isinstance(value, str):
            if value in self._clean:
                return value
            redacted, found = self.redact(value)
            counts.update(found)
            return redacted
        if isinstance(value, dict):
            named = _is_named_secret(value)
            return {
                self._walk(key, counts, depth + 1): self._child(
                    item, counts, depth + 1, whole=_is_secret_key(key) or (named and key in _VALUE_KEYS)
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            secrets = _secret_positions(value)
            return [self._child(item, counts, depth + 1, whole=index in secrets) for index, item in enumerate(value)]
        return value

    def _child(self, value: Any, counts: Counter[str], depth: int, *, whole: bool) -> Any:
        return self._blank(value, counts, depth) if whole else self._walk(value, counts, depth)

    def _blank(self, value: Any, counts: Counter[str], depth: int) -> Any:
        """The value with every text and number in it replaced; booleans, null and empty texts say nothing and stay."""
        if depth > MAX_DEPTH:
            return self._walk(value, counts, depth)
        if isinstance(value, dict):
            return {self._walk(k, counts, depth + 1): self._blank(v, counts, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._blank(item, counts, depth + 1) for item in value]
        if value is None or isinstance(value, bool) or value == "":
            return value
        data = encode(str(value))
        if _is_marker(data):
            return value
        counts["secret_field"] += 1
        return decode(self._marker("secret_field", data))


_NAME_KEYS = ("name", "key", "header", "Name", "Key", "Header")
_VALUE_KEYS = frozenset(["value", "values", "Value", "Values"])


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a JSON value, keys too, for a first look; level by level, so that no depth can exhaust the stack."""
    left = [value]
    while left:
        node = left.pop()
        if type(node) is str:
            yield node
        elif type(node) is dict:
            left += node
            left += node.values()
        elif type(node) is list or type(node) is tuple:
            left += node


_NOTHING: Counter[str] = Counter()


def _as_it_is(text: str) -> tuple[str, Counter[str]]:
    return text, _NOTHING


def _is_secret_key(key: Any) -> bool:
    return isinstance(key, str) and is_sensitive(key)


def _is_named_secret(value: dict[Any, Any]) -> bool:
    """Tell whether this object is a pair of a telling name and a value: `{"name": "Cookie", "value": ...}`."""
    return not _VALUE_KEYS.isdisjoint(value) and any(_is_secret_key(value.get(key)) for key in _NAME_KEYS)


def _secret_positions(items: list[Any] | tuple[Any, ...]) -> set[int]:
    """Positions of secrets that what stands before them gives away: in a header of two texts, after an option."""
    if len(items) == 2 and _is_secret_key(items[0]) and isinstance(items[1], str) and _is_header(*items):
        return {1}
    options = (
        index
        for index, item in enumerate(items[:-1], start=1)
        if isinstance(item, str) and item.startswith("-") and "=" not in item and is_sensitive(item)
    )
    return {index for index in options if not (isinstance(items[index], str) and items[index].startswith("--"))}


def _is_header(name: str, value: str) -> bool:
    """Tell whether two texts are a name with its value, and not two names, such as the required fields of a form."""
    return name[:1].isupper() or "-" in name or not value.replace("_", "").isalpha()


@lru_cache(64)
def _first_look(patterns: tuple[Pattern, ...]) -> FirstLook:
    return FirstLook(patterns)


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    return _MARKER.spans(data) if b"[SECRET:" in data else iter(())


def _is_marker(data: bytes) -> bool:
    return list(_markers(data)) == [(0, len(data))]


def _whole_characters(data: bytes, start: int, end: int) -> tuple[int, int]:
    r"""The span widened to whole characters: a pattern with `\C` may cut one in two."""
    while start > 0 and data[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return start, end
