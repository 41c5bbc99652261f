"""Every error of the validators has a message of our own."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from pydantic_core import PydanticCustomError, PydanticKnownError
from pydantic_core._pydantic_core import list_all_errors

from schemas.bounds import NAME
from schemas.validation_messages import decoding_words, words_by_kind, words_of

ERRORS = {one["type"]: one for one in list_all_errors()}
OWN = {"value_error", "assertion_error", "string_pattern_mismatch"}
"""Error types whose message comes from one of our rules or from a pattern."""
FOREIGN = re.compile(r"input|valid |unable|dictionary|integer|instance|python|should|tuple|boolean|extra|error", re.IGNORECASE)


def describe_error(kind: str) -> str:
    """Return our message for an error type."""
    context = ERRORS[kind].get("example_context") or {}
    message = PydanticKnownError(kind, context or None).message()  # type: ignore[arg-type]
    return words_of({"type": kind, "msg": message, "ctx": context})


def test_every_error_type_is_in_the_table() -> None:
    """A new error type of pydantic needs a message before users see the original one."""
    assert words_by_kind().keys() | OWN == ERRORS.keys()


@pytest.mark.parametrize("kind", sorted(words_by_kind()))
def test_no_message_uses_the_terms_of_the_validator(kind: str) -> None:
    """`unable to parse string as an integer` only helps the author of the parser."""
    message = describe_error(kind)
    context = map(str, (ERRORS[kind].get("example_context") or {}).values())
    assert message.startswith(("is ", "must ", "cannot ", "needs ", "nests ", "refers "))
    assert "{" not in message
    message_without_values = message
    for value in context:
        message_without_values = message_without_values.replace(value, "")
    assert FOREIGN.search(message_without_values) is None


def test_messages_of_our_rules_have_no_prefix() -> None:
    """Pydantic adds a prefix such as `Value error, `."""
    assert words_of({"type": "value_error", "msg": "Value error, is blank"}) == "is blank"
    assert words_of({"type": "assertion_error", "msg": "Assertion failed, is blank"}) == "is blank"
    assert words_of({"type": "unfit", "msg": PydanticCustomError("unfit", "is odd").message()}) == "is odd"


@pytest.mark.parametrize(
    ("pattern", "expected_start"),
    [(f"^{NAME}$", "must be 1 to 63 of a-z"), ("^a+$", "must be of the form ^a+$")],
)
def test_a_known_pattern_is_described_in_words(pattern: str, expected_start: str) -> None:
    """Few read regular expressions."""
    assert words_of({"type": "string_pattern_mismatch", "msg": "", "ctx": {"pattern": pattern}}).startswith(expected_start)


class Sample(msgspec.Struct, forbid_unknown_fields=True):
    """A struct that is read from JSON."""

    count: int
    name: str | None = None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"count": "x"}', "count: must be a whole number, not a string"),
        (b'{"count": 1, "name": 2}', "name: must be a string or null, not a whole number"),
        (b"{}", "count is missing"),
        (b'{"count": 1, "other": 2}', "other is not known here"),
        (b"[]", "must be an object, not a list"),
        (b'{"count": 1', "it ends too early"),
        (b'{"count": }', "invalid character (byte 10)"),
    ],
)
def test_errors_of_msgspec_have_our_messages(body: bytes, expected: str) -> None:
    """Dead letters and responses of the API contain the message."""
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(body, type=Sample)
    assert decoding_words(caught.value) == expected


def test_a_message_does_not_contain_the_value() -> None:
    """The value may be a secret in the wrong field."""
    error: dict[str, Any] = {"type": "int_parsing", "msg": "…", "input": "sk-secret", "ctx": {}}
    assert "sk-secret" not in words_of(error)
