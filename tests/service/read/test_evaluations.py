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
    "from": None,
    "to": None,
    "after_at": None,
    "after_id": None,
    "limit": 9,
}


@pytest.mark.parametrize("made", SET, ids=lambda made: made.session)
def test_the_whole_document_holds_the_published_result(made: Made) -> None:
    """The published schemas apply to answers of the API as well as to files."""
    evaluation = evaluated(made).evaluation
    whole = document(whole_evaluation(evaluation))

    jsonschema_rs.validate(published_schema("evaluation-result"), whole["finalResult"])
    jsonschema_rs.validate(published_schema("judge-result"), whole["judgeResult"])
    assert json.loads(json.dumps(whole)) == whole, "plain JSON"
    expected = evaluation.evaluation_id, made.model, evaluation.final_score
    assert (whole["id"], whole["model"], whole["finalScore"]) == expected
    assert whole["finalScore"] == whole["finalResult"]["final_score"]
    assert list(whole["dimensions"]) == list(whole["finalResult"]["final_dimensions"])
    assert iso_time(evaluation.evaluated_at) == whole["evaluatedAt"]
    assert whole["evaluatedAt"].endswith("Z")
    assert datetime.fromisoformat(whole["evaluatedAt"]) == evaluation.evaluated_at


def test_a_row_of_a_list_is_the_document_without_what_is_large() -> None:
    """A list of thousands must not carry every answer of the judge."""
    evaluations = [evaluated(made).evaluation for made in SET]
    documents = {one.evaluation_id: document(whole_evaluation(one)) for one in evaluations}
    with Store(None) as store:
        filled(store, *(("evaluations", one) for one in evaluations))
        rows = [document(evaluated_run(row)) for row in query_rows(store.cursor(), "project_evaluations", PAGE)]

    assert {row["id"] for row in rows} == set(documents)
    for row in rows:
        whole = documents[row["id"]]
        assert row == {name: whole[name] for name in row}
        left_out = {"requestId", "fingerprint", "judgementIds", "ruleVersion", "finalResult", "judgeResult"}
        assert left_out == set(whole) - set(row)
