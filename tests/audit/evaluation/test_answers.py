"""The reader of the judge's answers: what it accepts, how it describes problems, and that it never raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.evaluation_builders import answer, answer_json

from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.questions import MAX_FACT, Assessment, EvaluationAnswer, answer_schema, read_evaluation
from audit.exchanges.questions import Invalid

SCALE = st.floats(0, 10)
FACTS = st.lists(st.sampled_from(["wrote report.md", "the total is 40 too low", "asked nothing"]), min_size=1, max_size=8)
ASSESSMENTS = st.builds(lambda evidence, score: {"evidence": evidence, "score": score}, FACTS, SCALE | st.integers(0, 10))


def problems(text: str) -> tuple[str, ...]:
    """Return the problems of an answer about task and spark."""
    result = read_evaluation(text, dimensions=("task", "spark"))
    assert isinstance(result, Invalid), result
    return result.problems


def change_overall(**overall: Any) -> str:
    """Return an answer about task and spark with another overall verdict."""
    good = answer(7, ("task", "spark"))
    return answer_json(good | {"overall": good["overall"] | overall})


@given(st.sets(st.sampled_from(DIMENSIONS), min_size=1), st.data())
def test_the_requested_dimensions_are_read_unchanged(requested: set[str], data: st.DataObject) -> None:
    """The reader changes nothing: scores are used as given."""
    dimensions = tuple(dimension for dimension in DIMENSIONS if dimension in requested)
    given_answer = {
        "dimensions": {dimension: data.draw(ASSESSMENTS) for dimension in dimensions},
        "overall": data.draw(ASSESSMENTS),
    }
    result = read_evaluation(json.dumps(given_answer), dimensions=dimensions)
    assert isinstance(result, EvaluationAnswer), result
    assert list(dimensions) == list(result.dimensions)
    for name, assessment in (*result.dimensions.items(), ("overall", result.overall)):
        expected = given_answer["overall"] if name == "overall" else given_answer["dimensions"][name]
        assert Assessment(tuple(expected["evidence"]), float(expected["score"])) == assessment


@given(st.text())
def test_no_text_makes_the_reader_raise(text: str) -> None:
    """The judge's text is external: any text is either an answer or a list of problems."""
    assert isinstance(read_evaluation(text, dimensions=DIMENSIONS), Invalid | EvaluationAnswer)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dimensions", "overall", "evidence", "score", "task", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_json_makes_the_reader_raise(value: Any) -> None:
    """Models often fail with JSON of another shape."""
    assert isinstance(read_evaluation(json.dumps(value), dimensions=("task",)), Invalid | EvaluationAnswer)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "with the fields dimensions, overall"),
        ("{}", "the field overall is missing"),
        (answer_json(answer(7, ("task",))), "the field spark is missing in dimensions"),
        (answer_json(answer(7, ("task", "spark", "process"))), 'the field "process" is not in the schema in dimensions'),
        (answer_json(answer(7, ("task", "spark")) | {"verdict": 10}), 'the field "verdict" is not in the schema'),
        (change_overall(score="9"), "overall.score "),
        (change_overall(score=True), "overall.score "),
        (change_overall(score=None), "overall.score "),
        (change_overall(score=10.001), "overall.score "),
        (change_overall(score=-0.1), "overall.score "),
        (change_overall(score=1).replace('"score": 1}', '"score": 1e999}'), "overall.score "),
        (change_overall(score=1).replace('"score": 1}', '"score": NaN}'), "NaN is not a JSON number"),
        (change_overall(score=1).replace('"score": 1}', '"score": 1, "score": 9}'), '"score" occurs more than once'),
        (change_overall(evidence="all good"), "overall.evidence "),
        (change_overall(evidence=[]), "overall.evidence "),
        (change_overall(evidence=["a"] * 9), "overall.evidence "),
        (change_overall(evidence=["a", " \n"]), "overall.evidence[1] "),
        (change_overall(evidence=[7]), "overall.evidence[0] "),
        (change_overall(evidence=["\ud800"]), "lone surrogate"),
        ("```json\n" + change_overall() + "\n```", "at character 0"),
    ],
)
def test_an_answer_of_another_shape_is_refused_with_the_reason(text: str, problem: str) -> None:
    """The problems are sent back to the judge, so they name the field and what it must be."""
    assert any(problem in one for one in problems(text))


def test_all_problems_are_reported_at_once() -> None:
    """The judge may correct its answer only once, so it must see every problem."""
    broken = {"dimensions": {"task": {"evidence": [], "score": 11}}, "overall": {"score": "x"}}
    missing_part, evidence, score, missing_field, overall = problems(json.dumps(broken))
    assert "spark is missing in dimensions" in missing_part
    assert "task.evidence " in evidence
    assert "task.score " in score
    assert "evidence is missing in overall" in missing_field
    assert "overall.score " in overall


def test_evidence_is_kept_on_one_line_and_cut_where_it_is_too_long() -> None:
    """Evidence is shown in tables, summaries and records, where line breaks or a megabyte of text would not fit."""
    result = read_evaluation(change_overall(evidence=[" two\n lines ", "x" * 5_000]), dimensions=("task", "spark"))
    assert isinstance(result, EvaluationAnswer)
    assert result.overall.evidence == ("two lines", "x" * (MAX_FACT - 1) + "…")


def test_minus_zero_is_zero() -> None:
    """0 and -0 are equal, so the maximum of both would depend on the order of the iterations."""
    result = read_evaluation(change_overall(score=-0.0), dimensions=("task", "spark"))
    assert isinstance(result, EvaluationAnswer)
    assert str(result.overall.score) == "0.0"


def _objects(schema: Any) -> list[dict[str, Any]]:
    inner = [nested for value in schema.values() if isinstance(value, dict) for nested in _objects(value)]
    return [schema, *inner] if schema.get("type") == "object" else inner


def test_the_schema_is_closed_and_has_the_evidence_first() -> None:
    """The API accepts closed objects only, and a model that writes the score first invents the evidence for it."""
    schema = answer_schema(("process", "spark"))
    assert schema["required"] == ["dimensions", "overall"]
    assert schema["properties"]["dimensions"]["required"] == ["process", "spark"]
    assert list(schema["properties"]["overall"]["properties"]) == ["evidence", "score"]
    assert len(_objects(schema)) == 5
    for object_schema in _objects(schema):
        assert object_schema["additionalProperties"] is False
        assert list(object_schema["properties"]) == object_schema["required"]
