"""Evaluations as documents for HTTP: names, times, and a result that is the published one."""

from __future__ import annotations

import json
from datetime import datetime

import jsonschema_rs
import pytest
from support.evaluation_builders import published_schema
from support.sample_evaluations import SET, Made, evaluated
from support.stored_sessions import filled

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.times import iso_time
from service.read.evaluations import evaluated_run, whole_evaluation
from service.text.answers import document

PAGE = {
    "project": "shop",
    "case": None,
    "model": None,
    "session": None,
    "agent": None,
    "from": None,
    "to": None,
    "after_at": None,
    "after_id": None,
    "limit": 9,
}


@pytest.mark.parametrize("made", SET, ids=lambda made: made.session)
def test_the_document_contains_the_published_result(made: Made) -> None:
    """The published schemas apply to answers of the API as well as to files."""
    evaluation = evaluated(made).evaluation
    full_document = document(whole_evaluation(evaluation))

    jsonschema_rs.validate(published_schema("evaluation-result"), full_document["finalResult"])
    jsonschema_rs.validate(published_schema("judge-result"), full_document["judgeResult"])
    assert json.loads(json.dumps(full_document)) == full_document, "plain JSON"
    expected = evaluation.evaluation_id, made.model, evaluation.final_score
    assert (full_document["id"], full_document["model"], full_document["finalScore"]) == expected
    assert full_document["finalScore"] == full_document["finalResult"]["final_score"]
    assert list(full_document["dimensions"]) == list(full_document["finalResult"]["final_dimensions"])
    assert iso_time(evaluation.evaluated_at) == full_document["evaluatedAt"]
    assert full_document["evaluatedAt"].endswith("Z")
    assert datetime.fromisoformat(full_document["evaluatedAt"]) == evaluation.evaluated_at


def test_a_row_of_a_list_is_the_document_without_large_fields() -> None:
    """A list of thousands must not carry every answer of the judge."""
    evaluations = [evaluated(made).evaluation for made in SET]
    documents = {one.evaluation_id: document(whole_evaluation(one)) for one in evaluations}
    with Store(None) as store:
        filled(store, *(("evaluations", one) for one in evaluations))
        rows = [document(evaluated_run(row)) for row in query_rows(store.cursor(), "project_evaluations", PAGE)]

    assert {row["id"] for row in rows} == set(documents)
    for row in rows:
        full_document = documents[row["id"]]
        assert row == {name: full_document[name] for name in row}
        left_out = {"requestId", "fingerprint", "judgementIds", "ruleVersion", "finalResult", "judgeResult"}
        assert left_out == set(full_document) - set(row)
