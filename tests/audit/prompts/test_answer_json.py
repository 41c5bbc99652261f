"""A model's JSON, with the fast and the strict parser."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.answers import AnswerForm, read_json

texts = st.text(st.sampled_from('ab:" \\\n\t{},é-0'), max_size=8)
numbers = st.one_of(st.floats(0, 1), st.integers(-1, 2), st.just(-0.0))
SCHEMA = {
    "type": "object",
    "properties": {
        "scope": {"type": "object", "properties": {"quote": {"type": "string"}, "score": {"type": "number"}}},
        "flagged": {"type": "boolean"},
    },
}
FORM = AnswerForm(SCHEMA, 0, 1)


def read(text: str) -> object:
    """Return the values of the fast parser, with a list for each struct."""
    values = FORM.read(text)
    return None if values is None else [msgspec.structs.astuple(values[0]), values[1]]


@given(texts, numbers, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\n")]), st.booleans())
def test_what_is_read_quickly_is_read_the_same_strictly(
    quote: str, score: float, flagged: bool, separators: tuple[str, str], is_ascii: bool
) -> None:
    """If two parsers gave different values, a replay would not reproduce the live scores."""
    answer = {"flagged": flagged, "scope": {"score": score, "quote": quote}}
    text = json.dumps(answer, separators=separators, ensure_ascii=is_ascii)
    strict = read_json(text)
    assert answer == strict
    # Compared as text, because the sign of a zero is a byte of a score.
    assert repr(read(text)) in (repr(None), repr([(strict["scope"]["quote"], float(strict["scope"]["score"])), flagged]))


def test_an_ordinary_answer_is_read_quickly() -> None:
    """Otherwise it would be parsed twice."""
    answer = {"scope": {"score": 1, "quote": "It: fits \u2014 since 2026-01-05."}, "flagged": False}
    assert read(json.dumps(answer)) == [("It: fits \u2014 since 2026-01-05.", 1.0), False]


@pytest.mark.parametrize("gap", ["", " ", "\n", "\t", "\r", " \n"])
def test_a_name_that_is_there_twice_is_not_read_quickly(gap: str) -> None:
    """The fast parser keeps the last of two values, but an answer with two values is invalid."""
    assert read(f'{{"flagged": true, "scope": {{"quote": "", "score": 1, "score"{gap}: 0.5}}}}') is None


@pytest.mark.parametrize("number", ["-0", "-0.0", "-1", "2", "1e400", "true", '"1"', "null", "NaN"])
def test_a_number_that_is_none_of_the_form_is_not_read_quickly(number: str) -> None:
    """The strict parser names the problem; and the integer -0 is the double 0.0."""
    assert read(f'{{"flagged": true, "scope": {{"quote": "", "score": {number}}}}}') is None


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "NaN",
        "",
        "1",
        '{"flagged": true}',
        '{"flagged": true, "scope": {"quote": "", "score": 1}} b',
        '{"flagged": true, "scope": {"quote": "\\ud800", "score": 1}}',
        '{"flagged": true, "scope": {"quote": "\ud800", "score": 1}}',
        '{"flagged": true, "scope": {"quote": "", "score": 1, "more": 1}}',
    ],
)
def test_what_is_no_faultless_object_is_not_read_quickly(text: str) -> None:
    """The strict parser names the problem."""
    assert read(text) is None
