"""Validation messages in plain words: one sentence for each sort of error of pydantic and msgspec.

A sentence follows the name of a field (`exchange.turn_number: must be a whole number`), says what the value must be, and never
repeats the value, which may be a secret in the wrong place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from schemas.bounds.limits import NAME, NOT_UNICODE

_WEB = "must be an address such as https://host/path, without a name or a password"
_FORMS = {
    f"^{NAME}$": "must be 1 to 63 of a-z, 0-9, dot, dash and underscore, and begin with a letter or digit",
    "^[1-9][0-9]{0,2}d$": "must be a number of days from 1d to 999d, such as 14d",
    "^[a-z][a-z0-9_]{0,63}$": "must be 1 to 64 of a-z, 0-9 and underscore, and begin with a letter",
    r"^https?://[^\s/@|<>]+(/[^\s|<>]*)?$": _WEB,
    "^https?://[^/@]+(/.*)?$": _WEB,
}
"""Patterns in words; another is shown as it is."""
_OWN = ("Value error, ", "Assertion failed, ")
"""The prefixes that pydantic puts before the words of one of our rules."""
_TEXT_TYPE = "Value"
"""The type that pydantic names for a secret that is too short or too long; others are lists."""
_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "bytes": "bytes",
    "datetime": "a time in ISO 8601",
}
_MSGSPEC = (
    (re.compile(r"Object missing required field `(\w+)`"), "{0} is missing"),
    (re.compile(r"Object contains unknown field `(\w+)`"), "{0} is not known here"),
    (re.compile(r"Expected `\w+` >= (\S+?)(?:\.0)?$"), "must be {0} or more"),
    (re.compile(r"Expected `\w+` <= (\S+?)(?:\.0)?$"), "must be {0} or less"),
    (re.compile(r"Expected `\w+` > (\S+?)(?:\.0)?$"), "must be more than {0}"),
    (re.compile(r"Expected `str` of length >= (\d+)"), "must have {0} or more characters"),
    (re.compile(r"Invalid enum value"), "is none of the values that are known here"),
    (re.compile(r"Input data was truncated"), "it ends too early"),
    (re.compile(r"JSON is malformed: object keys must be strings \((byte \d+)\)"), "expected a name in double quotes ({0})"),
    (re.compile(r"JSON is malformed: (.+)"), "{0}"),
)
_PATTERN = re.compile(r"Expected `str` matching regex '(.+)'")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `([^`]+)`)?")
_AT = re.compile(r" - at `\$\.?([^`]*)`$")


@functools.cache
def words_by_kind() -> Mapping[str, str]:
    """Return the words for each sort of pydantic error. `words_of` adds three more, with the words of a rule or a pattern."""
    said = resources.files("schemas.bounds").joinpath("validation_messages.yaml").read_bytes()
    kinds = {kind: words for words, kinds in msgspec.yaml.decode(said, type=dict[str, list[str]]).items() for kind in kinds}
    return kinds | {"string_unicode": NOT_UNICODE}


def words_of(error: Mapping[str, Any]) -> str:
    """Return the words of a pydantic error, without the value it is about."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _form(context["pattern"])
    if context.get("field_type") == _TEXT_TYPE:
        kind = f"string_{kind}"
    words = words_by_kind().get(kind)
    if words is None:
        return _without(str(error["msg"]))
    return words.format_map({name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()})


def _without(message: str) -> str:
    for prefix in _OWN:
        message = message.removeprefix(prefix)
    return message


def decoding_words(error: msgspec.MsgspecError) -> str:
    """Return the words of a msgspec error: the field where it names one, and what the field must be."""
    place, words = place_and_words(error)
    return f"{place}: {words}" if place else words


def place_and_words(error: msgspec.MsgspecError) -> tuple[str, str]:
    """Return the place of a msgspec error, such as `exchange.id`, empty where it names none, and what is to be there."""
    said = str(error)
    found = _AT.search(said)
    return found[1] if found else "", _msgspec_words(_AT.sub("", said))


def _msgspec_words(said: str) -> str:
    if found := _PATTERN.fullmatch(said):
        return _form(found[1].encode().decode("unicode_escape"))
    for pattern, words in _MSGSPEC:
        if found := pattern.match(said):
            return words.format(*found.groups())
    if found := _EXPECTED.match(said):
        return f"must be {_kinds(found[1])}" + (f", not {_kinds(found[2])}" if found[2] else "")
    return said


def _kinds(names: str) -> str:
    """The types of msgspec's `str | null` in words."""
    return " or ".join(_KINDS.get(name.strip(), name.strip()) for name in names.split("|"))


def _form(pattern: str) -> str:
    return _FORMS.get(pattern, f"must be of the form {pattern}")
