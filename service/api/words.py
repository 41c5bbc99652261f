"""What is wrong with a value, in plain words: one sentence for each sort of error that the models can find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.surrogates import NOT_UNICODE
from schemas.limits import NAME

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is no field of this call; its fields are in the description at /docs",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_unicode": NOT_UNICODE,
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is far too large",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "too_short": "must hold {min_length} or more",
    "too_long": "must hold {max_length} or fewer",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
}
_FORMS = {
    f"^{NAME}$": "must be 1 to 63 of a-z, 0-9, dot, dash and underscore, and begin with a letter or digit",
    "^[1-9][0-9]{0,2}d$": "must be a number of days from 1d to 999d, such as 14d",
}
"""Patterns in words; another is shown as it is."""


def words_of(error: Mapping[str, Any]) -> str:
    """What an error of pydantic says, without the value it is about."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], f"must be of the form {context['pattern']}")
    if kind in _WORDS:
        return _WORDS[kind].format_map(
            {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
        )
    return str(error["msg"]).removeprefix("Value error, ")
