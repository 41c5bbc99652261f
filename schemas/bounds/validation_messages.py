"""Validation messages in plain words: one sentence for each sort of error of pydantic and msgspec.

A sentence follows the name of a field (`exchange.turn_number: must be a whole number`), says what the value must be, and never
repeats the value, which may be a secret in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.bounds.limits import NAME, NOT_UNICODE

_OBJECT, _LIST, _STRING, _WHOLE, _NUMBER = (
    "must be an object",
    "must be a list",
    "must be a string",
    "must be a whole number",
    "must be a number",
)
_FLAG, _BYTES, _DAY, _TIME, _MOMENT = (
    "must be true or false",
    "must be bytes",
    "must be a day such as 2026-11-01",
    "must be a time such as 12:00:00",
    "must be a time in ISO 8601 such as 2026-11-01T12:00:00Z",
)
_SPAN, _ADDRESS, _UUID, _COMPLEX = (
    "must be a length of time such as PT15M",
    "must be an address such as https://host/path",
    "must be a UUID",
    "must be a complex number",
)
_MISSING, _NO_FIELD, _DEEP, _CODE = "is missing", "is not known here", "refers to itself", "cannot be given from outside"
WORDS = {
    "missing": _MISSING,
    "missing_argument": _MISSING,
    "missing_keyword_only_argument": _MISSING,
    "missing_positional_only_argument": _MISSING,
    "extra_forbidden": _NO_FIELD,
    "unexpected_keyword_argument": _NO_FIELD,
    "unexpected_positional_argument": _NO_FIELD,
    "multiple_argument_values": "is given twice",
    "no_such_attribute": _NO_FIELD,
    "invalid_key": "must have strings as names of fields",
    "frozen_field": "cannot be changed",
    "frozen_instance": "cannot be changed",
    "get_attribute_error": "cannot be read",
    "iteration_error": "cannot be read",
    "default_factory_not_called": "needs other fields, which are wrong",
    "recursion_loop": _DEEP,
    "recursion_depth_exceeded": "nests too deep",
    "json_invalid": "is not JSON",
    "json_type": "must be a string of JSON",
    "needs_python_object": _CODE,
    "is_instance_of": _CODE,
    "is_subclass_of": _CODE,
    "callable_type": _CODE,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dataclass_type": _OBJECT,
    "dataclass_exact_type": _OBJECT,
    "named_tuple_type": _LIST,
    "arguments_type": _OBJECT,
    "dict_type": _OBJECT,
    "frozen_dict_type": _OBJECT,
    "ordered_dict_type": _OBJECT,
    "counter_type": _OBJECT,
    "mapping_type": _OBJECT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "deque_type": _LIST,
    "iterable_type": _LIST,
    "set_item_not_hashable": "must be a string, a number, true, false or null",
    "none_required": "must be null",
    "missing_sentinel_error": "must be left out",
    "ellipsis_error": _CODE,
    "string_type": _STRING,
    "string_unicode": NOT_UNICODE,
    "string_not_ascii": "must have ASCII characters only",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "is far too large",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "decimal_type": _NUMBER,
    "decimal_parsing": _NUMBER,
    "decimal_max_digits": "must have {max_digits} or fewer digits",
    "decimal_max_places": "must have {decimal_places} or fewer decimals",
    "decimal_whole_digits": "must have {whole_digits} or fewer digits before the point",
    "fraction_type": "must be a fraction such as 1/3",
    "fraction_parsing": "must be a fraction such as 1/3",
    "complex_type": _COMPLEX,
    "complex_str_parsing": _COMPLEX,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_short": "must hold {min_length} or more",
    "too_long": "must hold {max_length} or fewer",
    "bytes_type": _BYTES,
    "bytes_too_short": "must have {min_length} or more bytes",
    "bytes_too_long": "must have {max_length} or fewer bytes",
    "bytes_invalid_encoding": "must be {encoding}",
    "date_type": _DAY,
    "date_parsing": _DAY,
    "date_from_datetime_parsing": _DAY,
    "date_from_datetime_inexact": "must be a day, without a time",
    "date_past": "must be a day that is over",
    "date_future": "must be a day to come",
    "time_type": _TIME,
    "time_parsing": _TIME,
    "datetime_type": _MOMENT,
    "datetime_parsing": _MOMENT,
    "datetime_object_invalid": _MOMENT,
    "datetime_from_date_parsing": _MOMENT,
    "datetime_past": "must be a time that is over",
    "datetime_future": "must be a time to come",
    "timezone_naive": "must be a time without an offset",
    "timezone_aware": "must be a time with an offset, such as Z",
    "timezone_offset": "must be a time with the offset {tz_expected} s",
    "time_delta_type": _SPAN,
    "time_delta_parsing": _SPAN,
    "union_tag_invalid": "must have a {discriminator} that is one of {expected_tags}",
    "union_tag_not_found": "must say its {discriminator}",
    "url_type": _ADDRESS,
    "url_parsing": _ADDRESS,
    "url_syntax_violation": _ADDRESS,
    "url_too_long": "must have {max_length} or fewer characters",
    "url_scheme": "must be an address that begins with {expected_schemes}",
    "uuid_type": _UUID,
    "uuid_parsing": _UUID,
    "uuid_version": "must be a UUID of version {expected_version}",
}
"""The words for each sort of pydantic error. `words_of` adds three more, with the words of a rule or a pattern."""
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
    (re.compile(r"Expected `(?:\w+)` >= (\S+)"), "must be {0} or more"),
    (re.compile(r"Expected `(?:\w+)` <= (\S+)"), "must be {0} or less"),
    (re.compile(r"Input data was truncated"), "it ends too early"),
    (re.compile(r"JSON is malformed: (.+)"), "{0}"),
)
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `([^`]+)`)?")
_AT = re.compile(r" - at `\$\.?([^`]*)`$")


def words_of(error: Mapping[str, Any]) -> str:
    """Return the words of a pydantic error, without the value it is about."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], f"must be of the form {context['pattern']}")
    if context.get("field_type") == _TEXT_TYPE:
        kind = f"string_{kind}"
    if kind not in WORDS:
        return _without(str(error["msg"]))
    return WORDS[kind].format_map(
        {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    )


def _without(message: str) -> str:
    for prefix in _OWN:
        message = message.removeprefix(prefix)
    return message


def decoding_words(error: msgspec.MsgspecError) -> str:
    """Return the words of a msgspec error: the field where it names one, and what the field must be."""
    said = str(error)
    place = _AT.search(said)
    at = f"{place[1]}: " if place and place[1] else ""
    said = _AT.sub("", said)
    for pattern, words in _MSGSPEC:
        if found := pattern.match(said):
            return at + words.format(*found.groups())
    if found := _EXPECTED.match(said):
        return f"{at}must be {_kinds(found[1])}" + (f", not {_kinds(found[2])}" if found[2] else "")
    return at + said


def _kinds(names: str) -> str:
    """The types of msgspec's `str | null` in words."""
    return " or ".join(_KINDS.get(name.strip(), name.strip()) for name in names.split("|"))
