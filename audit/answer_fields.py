"""The fields of an answer, one by one: each is taken as what it must be, or what is wrong with it is noted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from audit.answer_json import shown
from audit.patterns import straighten
from audit.questions import Invalid, Material
from audit.surrogates import has_surrogates

MAX_WORDS = 2000
"""Characters that are kept of a reasoning, and of a quote."""
MAX_PROBLEMS = 12
"""Problems that are told; each is short, so that a turn of repair costs little."""

_QUOTATION_MARKS = str.maketrans("\u201c\u201d\u201e\u00ab\u00bb", '"""""')
_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|(["\\/bfnrt]))')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Fields:
    """Takes an answer apart and collects its problems. Where something is wrong a neutral value stands in for it."""

    def __init__(self, materials: Sequence[Material]) -> None:
        # The judge may copy what it sees, codes and all, or what they stand for.
        self._sources = [_folded(text) for one in materials for text in (json.loads(one.literal), one.literal)]
        self._problems: list[str] = []

    @property
    def invalid(self) -> Invalid | None:
        """What is wrong with what was taken so far; None where nothing is."""
        more = len(self._problems) - MAX_PROBLEMS
        told = self._problems[:MAX_PROBLEMS] + ([f"{more} more problems"] if more > 0 else [])
        return Invalid(tuple(told)) if told else None

    def members(self, value: Any, names: Iterable[str], at: str) -> dict[str, Any]:
        """The object's members: exactly these names. An object that is none counts as empty."""
        names = tuple(names)
        if not isinstance(value, dict):
            self._problems.append(f"{at} must be a JSON object with the fields {', '.join(names)}")
            return {}
        inside = "" if at == "the answer" else f" in {at}"
        self._problems += [f"the field {name} is missing{inside}" for name in names if name not in value]
        self._problems += [f"the field {shown(name)} was not asked for{inside}" for name in value if name not in names]
        return value

    def number(self, members: dict[str, Any], name: str, low: int, high: int, at: str = "") -> float:
        """A number within the bounds, both included."""
        value = members.get(name, low)
        is_number = type(value) in (int, float) and low <= value <= high and math.isfinite(value)
        if not is_number:
            self._problems.append(f"{at}{name} must be a JSON number from {low} to {high}")
        return float(value) if is_number else float(low)

    def verdict(self, members: dict[str, Any], name: str) -> bool:
        """True or false."""
        value = members.get(name, False)
        if type(value) is not bool:
            self._problems.append(f"{name} must be true or false")
        return value is True

    def words(self, members: dict[str, Any], name: str, quote: str, at: str = "", *, wanted: bool = True) -> str:
        """A reasoning with its quote after it, both cut to `MAX_WORDS`; empty only where no words are wanted."""
        words, quoted = self._text(members, name, at), self._text(members, quote, at)
        if wanted and name in members and not words:
            self._problems.append(f"{at}{name} must not be empty")
        if not self._is_quoted(quoted):
            self._problems.append(f"{at}{quote} is in none of the texts: copy the words verbatim, or leave it empty")
        return f"{_cut(words)} [\u201c{_cut(quoted)}\u201d]".lstrip() if quoted else _cut(words)

    def _text(self, members: dict[str, Any], name: str, at: str) -> str:
        value = members.get(name, "")
        if type(value) is not str:
            self._problems.append(f"{at}{name} must be a text")
            return ""
        if has_surrogates(value):
            self._problems.append(f"{at}{name} holds a lone surrogate")
            return ""
        return value.strip()

    def _is_quoted(self, quote: str) -> bool:
        """Whether the words are in the materials, but for case, white space, kinds of quotation marks and JSON's escapes."""
        ways = {_folded(quote), _folded(_ESCAPE.sub(_unescaped, quote))}
        return any(way in source for way in ways for source in self._sources)


def _folded(text: str) -> str:
    return " ".join(straighten(text).translate(_QUOTATION_MARKS).casefold().split())


def _unescaped(found: re.Match[str]) -> str:
    code, short = found.groups()
    return chr(int(code, 16)) if code else _ESCAPES.get(short, short)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 1]}…"
