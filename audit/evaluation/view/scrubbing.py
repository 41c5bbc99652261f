"""Texts of a run without what tells where and as what it ran: the judge is to see what was done, and nothing else.

Taken out are known ids of the run, ids that look drawn or counted, absolute paths (the last name stays), images, secrets and lines
of logs; `[id]`, `[path]/name`, `[image]`, `[secret]` and `[3 log lines]` take their place. A text that is JSON is cleaned value by
value as well, so that no code hides anything. Cleaning a clean text changes nothing.

Known ids that are ordinary words or small numbers stay: they tell nothing, and the text would suffer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from audit.evaluation.view.infrastructure import ID, IDS, IMAGE, IMAGES, LOG_LINES, PATHS
from audit.patterns import Pattern, compile_pattern, decode, encode
from audit.policy.policy import RedactionSettings
from audit.redaction.redactor import Redactor
from schemas.bounds.limits import is_too_deep

_ROUNDS = 8
"""Taking one thing out can lay another one bare; no honest text does so this often."""
_UNCLEANED = "[text that could not be cleaned]"
_TOO_DEEP = "[a value that nests too deep]"
_CODED = 3
"""JSON in JSON in JSON is read so deep."""
_CACHED = 256
"""Characters of a text whose clean form is kept: names of tools and keys come again and again."""
_SHORTEST, _SHORTEST_NUMBER, _SHORTEST_WORD, _UNMISTAKABLE = 4, 5, 12, 7
_PER_PATTERN = 1_000
_REDACTOR = Redactor(RedactionSettings())
_MARKER = re.compile(r"\[SECRET:[a-z][a-z0-9_]{0,31}:[0-9a-f]{8}\]")
_KEPT, _SECRET = "[SECRET:kept:00000000]", "[secret]"
_LOGS = re.compile(r"\[(?:log line|([0-9]{1,9}) log lines)\](?:(?:\s|\\[nr])*\[(?:log line|[0-9]{1,9} log lines)\])+")
_LOG = re.compile(r"\[(?:([0-9]{1,9}) log lines|log line)\]")
_write = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_OPENERS = ("{", "[", '"')
_ID_KEY = compile_pattern(
    r"(?:^|[_.-])(?:run|session|container|request|trace|span|correlation|execution|invocation|job|pod|exchange|event)_?-?id$",
    where="id key",
)
_IMAGE_KEY = compile_pattern(r"(?:^|[_.-])image(?:_?(?:id|name|ref|tag))?$", where="image key")
_IMAGE_VALUE = compile_pattern(r"^[\w./-]+(?::[0-9]+/[\w./-]+)?[:@][\w.:-]+$", where="image value")
_PATH_KEY = compile_pattern(r"(?:path|file|filename|dir|directory|folder|cwd)$", where="path key")
_ABSOLUTE = re.compile(r"(?i)\s*(?:file:|[/~]|\\\\|[a-z]:[\\/])")
_LONGEST_PATH, _LONGEST_KEY = 4_096, 128


class Scrubber:
    """Cleans the texts of one run."""

    def __init__(self, identifiers: Iterable[str]) -> None:
        """`identifiers` are the ids that the run is known to have, whatever they look like."""
        self._known = _known_ids(identifiers)
        self._exact = frozenset(identifiers)
        self._clean: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The text, cleaned."""
        return self._text(text, _CODED)

    def value(self, value: Any) -> Any:
        """The JSON value with all its texts cleaned, those of keys, too; what nests too deep becomes a text that says so."""
        if is_too_deep([value]):
            return _TOO_DEEP
        return self._value(value, _CODED)

    def path(self, path: str) -> str:
        """The path of a file, cleaned: of an absolute one no more than the last name, whatever characters it has."""
        if _ABSOLUTE.match(path):
            path = "[path]/" + re.split(r"[\\/]", path.rstrip("\\/ "))[-1]
        return self.text(path)

    def _text(self, text: str, coded: int) -> str:
        if (known := self._clean.get(text)) is not None:
            return known
        clean = text
        for _ in range(_ROUNDS):
            before, clean = clean, self._one_round(clean, coded)
            if clean == before:
                break
        else:
            clean = _UNCLEANED
        if len(text) <= _CACHED:
            self._clean[text] = clean
        return clean

    def _one_round(self, text: str, coded: int) -> str:
        if coded and text.lstrip().startswith(_OPENERS):
            text = self._json(text, coded)
        data = LOG_LINES.removed(encode(text))
        text = _without_secrets(decode(data))
        data = PATHS.removed(encode(text))
        for known in self._known:
            data = _replaced(known, data)
        text = decode(IDS.removed(IMAGES.removed(data)))
        return _LOGS.sub(_counted, text) if "log line" in text else text

    def _json(self, text: str, coded: int) -> str:
        """The text, written again where it is JSON that holds something to clean."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if is_too_deep([value]):
            return text
        clean = self._value(value, coded - 1)
        return text if clean == value else json.dumps(clean, ensure_ascii=False, separators=(",", ":"))

    def _value(self, value: Any, coded: int) -> Any:
        redacted, _ = _REDACTOR.redact_json(value)
        return self._walk(redacted, coded)

    def _walk(self, value: Any, coded: int) -> Any:
        if isinstance(value, str):
            return self._text(value, coded)
        if isinstance(value, dict):
            return self._members(value, coded)
        if isinstance(value, list | tuple):
            return [self._walk(item, coded) for item in value]
        if value is None or isinstance(value, bool):
            return value
        is_known = str(value) in self._exact and len(str(value)) >= _SHORTEST_NUMBER
        return decode(ID) if is_known or value != value or value in {float("inf"), float("-inf")} else value  # noqa: PLR0124 - NaN

    def _members(self, value: dict[str, Any], coded: int) -> dict[str, Any]:
        """The members with clean names; of names that have become the same, all stay."""
        members: dict[str, Any] = {}
        for key, item in value.items():
            name = base = self._text(str(key), coded)
            copies = 1
            while name in members:
                copies += 1
                name = f"{base} ({copies})"
            members[name] = self._member(str(key), item, coded)
        return members

    def _member(self, key: str, item: Any, coded: int) -> Any:
        name = key[-_LONGEST_KEY:]
        is_plain = isinstance(item, str | int | float) and not isinstance(item, bool) and item != ""
        if is_plain and _ID_KEY.matches(name):
            return decode(ID)
        if isinstance(item, str) and _IMAGE_KEY.matches(name) and _IMAGE_VALUE.matches(item[:512]):
            return decode(IMAGE)
        if isinstance(item, str) and len(item) <= _LONGEST_PATH and "\n" not in item and _PATH_KEY.matches(name):
            return self.path(item)
        return self._walk(item, coded)


def json_text(value: Any) -> str:
    """A JSON value of a run as text, with sorted names; a text stays as it is."""
    if isinstance(value, str):
        return value
    return _TOO_DEEP if is_too_deep([value]) else _write(value)


def _known_ids(identifiers: Iterable[str]) -> tuple[Pattern, ...]:
    """Patterns for the ids that are no ordinary words, the longest first."""
    telling = sorted({one for one in identifiers if _is_telling(one)}, key=lambda one: (-len(one), one))
    chunks = (telling[at : at + _PER_PATTERN] for at in range(0, len(telling), _PER_PATTERN))
    return tuple(compile_pattern("|".join(map(_exactly, chunk)), where="known ids") for chunk in chunks)


def _is_telling(one: str) -> bool:
    if one.isdigit():
        return len(one) >= _SHORTEST_NUMBER
    is_word = one.isalpha() and len(one) < _SHORTEST_WORD
    return (
        len(one) >= _SHORTEST and not is_word and one.strip() != "" and not any(one.lower() in known for known in _PLACEHOLDERS)
    )


_PLACEHOLDERS = ("[id]", "[path]/", "[image]", "[secret]", "[log line]", " log lines]", _UNCLEANED, _TOO_DEEP)


def _exactly(one: str) -> str:
    """The id as a pattern; one that is short or has no figure only where no letter or figure goes on."""
    quoted = re.sub(
        r"([^\w\s-]|[\s-])", lambda found: "".join(f"\\x{{{ord(character):x}}}" for character in found.group()), one
    )
    if len(one) >= _UNMISTAKABLE and any(character.isdigit() for character in one):
        return quoted
    left, right = (r"\b" if edge.isascii() and (edge.isalnum() or edge == "_") else "" for edge in (one[0], one[-1]))
    return f"{left}{quoted}{right}"


def _replaced(pattern: Pattern, data: bytes) -> bytes:
    pieces: list[bytes] = []
    done = 0
    for start, end in pattern.spans(data):
        pieces += [data[done:start], ID]
        done = end
    return b"".join([*pieces, data[done:]])


def _without_secrets(text: str) -> str:
    """The text with `[secret]` for secrets and for the markers of those that were taken out before."""
    if _SECRET in text:
        text = text.replace(_SECRET, _KEPT)
    text, _ = _REDACTOR.redact(text)
    return _MARKER.sub(_SECRET, text) if "[SECRET:" in text else text


def _counted(found: re.Match[str]) -> str:
    lines = sum(int(one.group(1) or 1) for one in _LOG.finditer(found.group()))
    return f"[{lines} log lines]"
