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

from schemas.bounds import NAME, NOT_UNICODE

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
    table = resources.files("schemas").joinpath("validation_messages.yaml").read_bytes()
    kinds = {kind: words for words, kinds in msgspec.yaml.decode(table, type=dict[str, list[str]]).items() for kind in kinds}
    return kinds | {"string_unicode": NOT_UNICODE}


def words_of(error: Mapping[str, Any]) -> str:
    """Return the words of a pydantic error, without the value it is about."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _form(context["pattern"])
    if context.get("field_type") == _TEXT_TYPE:
        kind = f"string_{kind}"
    template = words_by_kind().get(kind)
    if template is None:
        return _without(str(error["msg"]))
    return template.format_map({name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()})


def _without(message: str) -> str:
    for prefix in _OWN:
        message = message.removeprefix(prefix)
    return message


def decoding_words(error: msgspec.MsgspecError) -> str:
    """Return the words of a msgspec error: the field where it names one, and what the field must be."""
    location, reason = place_and_words(error)
    return f"{location}: {reason}" if location else reason


def place_and_words(error: msgspec.MsgspecError) -> tuple[str, str]:
    """Return the place of a msgspec error, such as `exchange.id`, empty where it names none, and what is to be there."""
    message = str(error)
    location = _AT.search(message)
    return location[1] if location else "", _msgspec_words(_AT.sub("", message))


def _msgspec_words(message: str) -> str:
    if match := _PATTERN.fullmatch(message):
        return _form(match[1].encode().decode("unicode_escape"))
    for pattern, template in _MSGSPEC:
        if match := pattern.match(message):
            return template.format(*match.groups())
    if match := _EXPECTED.match(message):
        return f"must be {_kinds(match[1])}" + (f", not {_kinds(match[2])}" if match[2] else "")
    return message


def _kinds(names: str) -> str:
    """Return the types of msgspec's `str | null` in words."""
    return " or ".join(_KINDS.get(name.strip(), name.strip()) for name in names.split("|"))


def _form(pattern: str) -> str:
    return _FORMS.get(pattern, f"must be of the form {pattern}")
