"""The documents of a result, and their published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from support.evaluation_builders import (
    SCHEMAS,
    answer,
    answer_json,
    case,
    check,
    judgement,
    make_request,
    plan,
    published_schema,
)

from audit.evaluation.evaluating import evaluating, questions_of
from audit.evaluation.results import EvaluationResult
from audit.exchanges.cascade import drive
from audit.exchanges.questions import Reply, outcome_state
from schemas.records import EvaluationRequest


def result(request: EvaluationRequest, *, failing: bool = False) -> EvaluationResult:
    """Return the result of a request whose iterations all scored 7, or failed."""
    iteration = judgement(questions_of(request)[0], answer_json(answer(7.0)))
    reply = Reply(state=outcome_state("timeout")) if failing else Reply(text=answer_json(answer(7.0)), judgements=(iteration,))
    return EvaluationResult.model_validate_json(drive(evaluating(request), lambda _question: reply).result)


@pytest.mark.parametrize("failing", [False, True])
def test_both_documents_keep_their_published_schemas(*, failing: bool) -> None:
    """Programs are written against the schemas, so failed evaluations must match them too."""
    policies = {"task": {"policy": "weighted"}, "process": {"policy": "deterministic_only"}}
    evaluation_result = result(
        make_request(evaluation_plan=plan(dimension_policies=policies), checks=[check(), check("b", "error")]), failing=failing
    )
    for name, document in (
        ("evaluation-result", evaluation_result.final_result),
        ("judge-result", evaluation_result.judge_result),
    ):
        jsonschema_rs.validate(published_schema(name), document.model_dump(mode="json"))


def test_a_document_that_lacks_a_field_or_has_another_breaks_its_schema() -> None:
    """A schema that accepts everything would pass the tests above."""
    document = result(make_request()).final_result.model_dump(mode="json")
    incomplete = {name: value for name, value in document.items() if name != "final_score"}
    for broken in (
        incomplete,
        document | {"verdict": 10},
        document | {"final_score": 11},
        document | {"final_dimensions": {"wit": 1}},
    ):
        assert not jsonschema_rs.is_valid(published_schema("evaluation-result"), broken)


def test_cases_and_profiles_as_people_write_them_keep_their_published_schemas() -> None:
    """Editors validate files while they are written; fields with a default are optional."""
    judged = {"case_id": "a", "title": "A", "input": {"messages": [{"role": "user", "content": "Rotate it."}]}}
    profile = {
        "profile_id": "p",
        "judges": [{"judge_id": "j", "model": "claude-haiku-4-5"}],
        "judge_runs": [{"judge_run_id": "r", "judge_id": "j"}],
    }
    for name, document in (("case", judged), ("profile", profile), ("case", case().model_dump(mode="json"))):
        jsonschema_rs.validate(published_schema(name), document)
        assert not jsonschema_rs.is_valid(published_schema(name), document | {"nonsense": 1})


@pytest.mark.parametrize("name", ["case", "profile"])
def test_every_field_of_a_file_has_a_description(name: str) -> None:
    """Editors show the descriptions."""
    schema = published_schema(name)
    objects = {name: schema, **schema["$defs"]}
    undescribed = [
        (object_name, field)
        for object_name, object_schema in objects.items()
        for field, definition in object_schema.get("properties", {}).items()
        if not definition.get("description")
    ]
    assert undescribed == []


@pytest.mark.parametrize("file", sorted(SCHEMAS.iterdir()), ids=lambda file: file.name)
def test_every_object_of_a_schema_is_closed_or_a_table_by_name(file: Path) -> None:
    """A misspelt field must not pass for a missing one."""
    waiting: list[Any] = [json.loads(file.read_text("utf-8"))]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            assert value.get("type") != "object" or "additionalProperties" in value, value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def test_a_result_reads_back_as_it_was_written() -> None:
    """Records keep the result as text, from which files and pages are made."""
    evaluation_result = result(make_request())
    assert EvaluationResult.model_validate_json(evaluation_result.as_json()) == evaluation_result
    assert evaluation_result.as_json() == EvaluationResult.model_validate_json(evaluation_result.as_json()).as_json()
