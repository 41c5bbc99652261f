"""The fields of an answer, one by one: each is taken as what it must be, or what is wrong with it is noted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from audit.exchanges.questions import Invalid, Material
from audit.prompts.answer_json import shown
from audit.prompts.quotes import Quotable
from schemas.bounds.limits import has_surrogates

MAX_WORDS = 2000
"""Characters that are kept of a reasoning, and of a quote."""
MAX_PROBLEMS = 12
"""Problems that are told; each is short, so that a turn of repair costs little."""


class Fields:
    """Takes an answer apart and collects its problems. Where something is wrong a neutral value stands in for it."""

    def __init__(self, materials: Sequence[Material]) -> None:
        self.dropped_quotes = 0
        """Quotes that are in none of the texts: the words that they stood for are kept without them."""
        self._quotable = Quotable(materials)
        self._problems: list[str] = []

    @property
    def invalid(self) -> Invalid | None:
        """The faults of the fields taken so far; None where there are none."""
        more = len(self._problems) - MAX_PROBLEMS
        told = self._problems[:MAX_PROBLEMS] + ([f"{more} more problems"] if more > 0 else [])
        return Invalid(tuple(told)) if told else None

    def members(self, value: Any, names: Sequence[str], at: str) -> dict[str, Any]:
        """The object's members: exactly these names. An object that is none counts as empty."""
        if type(value) is dict and len(value) == len(names) and all(map(value.__contains__, names)):
            return value
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
        """A reasoning with its quote after it, both cut to `MAX_WORDS`; empty only where no words are wanted.

        A quote that is in none of the texts is dropped and counted: it proves nothing, and takes nothing from the score.
        """
        words, quoted = self._text(members, name, at), self._text(members, quote, at)
        if wanted and name in members and not words:
            self._problems.append(f"{at}{name} must not be empty")
        if wanted and not self._quotable.holds(quoted):
            self.dropped_quotes += 1
            quoted = ""
        return with_quote(words, quoted)

    def _text(self, members: dict[str, Any], name: str, at: str) -> str:
        value = members.get(name, "")
        if type(value) is str and value.isascii():
            return value.strip()
        if type(value) is not str:
            self._problems.append(f"{at}{name} must be a text")
            return ""
        if has_surrogates(value):
            self._problems.append(f"{at}{name} holds a lone surrogate")
            return ""
        return value.strip()


def with_quote(words: str, quote: str) -> str:
    """A reasoning with its quote after it, where it has one, both cut to `MAX_WORDS`."""
    if len(words) > MAX_WORDS or len(quote) > MAX_WORDS:
        words, quote = _cut(words), _cut(quote)
    return f"{words} [\u201c{quote}\u201d]".lstrip() if quote else words


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 1]}…"
