"""JSON of a model, read quickly and read strictly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.prompts.answer_json import read_json, read_quickly

texts = st.text(st.sampled_from('ab:" \\\\\n\t{},é'), max_size=8)
leaves = st.one_of(texts, st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.booleans(), st.none())
objects = st.recursive(st.dictionaries(texts, leaves, max_size=4), lambda inner: st.dictionaries(texts, inner, max_size=4))


@given(objects, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\n")]))
def test_what_is_read_quickly_is_read_the_same_strictly(answer: object, separators: tuple[str, str]) -> None:
    """Two parsers may not come to different values of one answer, or a replay would not come to the live scores."""
    text = json.dumps(answer, separators=separators)
    assert read_quickly(text) in (None, answer)
    assert answer == read_json(text)


def test_an_ordinary_answer_is_read_quickly() -> None:
    """Otherwise it would be read twice."""
    answer = {"dimensions": {"scope": {"score": 0.5, "reasoning": "It: fits.", "quote": ""}}, "flagged": False}
    assert answer == read_quickly(json.dumps(answer))


@pytest.mark.parametrize("gap", ["", " ", "\n", "\t", "\r", " \n"])
def test_a_name_that_is_there_twice_is_not_read_quickly(gap: str) -> None:
    """The quick parser keeps the last of two values; a judge that gives two has given none."""
    assert read_quickly(f'{{"a": 1, "b": {{"score"{gap}: 1, "score"{gap}: 2}}}}') is None


@pytest.mark.parametrize("text", ["[1]", "NaN", '{"a": NaN}', '{"a": 1} b', '{"a": "\\ud800"}', "", "1"])
def test_what_is_no_faultless_object_is_not_read_quickly(text: str) -> None:
    """What is wrong with it takes the other reader to say."""
    assert read_quickly(text) is None
