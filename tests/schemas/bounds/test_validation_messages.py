"""What validators find is said in words of ours, whatever they find."""

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
"""Sorts whose words are those of a rule of ours, or of a pattern."""
FOREIGN = re.compile(r"input|valid |unable|dictionary|integer|instance|python|should|tuple|boolean|extra|error", re.IGNORECASE)


def told(kind: str) -> str:
    """What is said of an error of this sort."""
    context = ERRORS[kind].get("example_context") or {}
    message = PydanticKnownError(kind, context or None).message()  # type: ignore[arg-type]
    return words_of({"type": kind, "msg": message, "ctx": context})


def test_every_sort_of_error_is_in_the_table() -> None:
    """One that a newer pydantic brings is put into words before anybody reads its own."""
    assert words_by_kind().keys() | OWN == ERRORS.keys()


@pytest.mark.parametrize("kind", sorted(words_by_kind()))
def test_no_sort_of_error_is_told_in_the_words_of_the_validator(kind: str) -> None:
    """`unable to parse string as an integer` is for whoever wrote the parser."""
    words = told(kind)
    context = map(str, (ERRORS[kind].get("example_context") or {}).values())
    assert words.startswith(("is ", "must ", "cannot ", "needs ", "nests ", "refers "))
    assert "{" not in words
    bare = words
    for value in context:
        bare = bare.replace(value, "")
    assert FOREIGN.search(bare) is None


def test_a_rule_of_ours_keeps_its_words() -> None:
    """Without what pydantic puts before them."""
    assert words_of({"type": "value_error", "msg": "Value error, is blank"}) == "is blank"
    assert words_of({"type": "assertion_error", "msg": "Assertion failed, is blank"}) == "is blank"
    assert words_of({"type": "unfit", "msg": PydanticCustomError("unfit", "is odd").message()}) == "is odd"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [(f"^{NAME}$", "must be 1 to 63 of a-z"), ("^a+$", "must be of the form ^a+$")],
)
def test_a_pattern_is_told_in_words_where_there_are_any(pattern: str, words: str) -> None:
    """Few read regular expressions."""
    assert words_of({"type": "string_pattern_mismatch", "msg": "", "ctx": {"pattern": pattern}}).startswith(words)


class Sample(msgspec.Struct, forbid_unknown_fields=True):
    """Something that is read from JSON."""

    count: int
    name: str | None = None


@pytest.mark.parametrize(
    ("body", "words"),
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
def test_what_msgspec_finds_is_told_in_words(body: bytes, words: str) -> None:
    """Dead letters and answers of the API repeat it."""
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(body, type=Sample)
    assert decoding_words(caught.value) == words


def test_a_value_is_not_repeated() -> None:
    """It may be a secret in the wrong place."""
    error: dict[str, Any] = {"type": "int_parsing", "msg": "…", "input": "sk-secret", "ctx": {}}
    assert "sk-secret" not in words_of(error)
