"""Findings of a registered detector appear on the page of the run, in the API and in SQL without further code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.api_server import Call, Tokens
from support.servers import until

from analytics.store.store import Store
from audit.detectors.detectors import DETECTORS
from audit.detectors.registry import Detector
from streams.engine.engine import Engine

RUN = "/api/audit/ops/runs/run_001"


@pytest.fixture(params=DETECTORS, ids=lambda detector: detector.failure_type)
def detector(request: pytest.FixtureRequest, call: Call, tokens: Tokens, loop: asyncio.Runner, engine: Engine) -> Detector:
    """Yield each detector with a run of ops that it reports."""
    detector: Detector = request.param
    events = [{"timestamp": f"2026-10-01T09:00:{place % 60:02}Z", **event} for place, event in enumerate(detector.cases.found)]
    body = {"session_id": "s1", "first_seq": 0, "events": events}
    assert call("POST", "/api/audit/events", tokens.ops, json=body).status_code == 201
    call("POST", "/api/audit/sessions/s1/finalize", tokens.ops)
    loop.run(engine.wait_until_drained())
    until(lambda: call("GET", RUN, tokens.root).is_success, "the diagnosis")

    return detector


def test_a_failure_is_shown_wherever_runs_are(
    detector: Detector, call: Call, tokens: Tokens, store: Store, look: Callable[..., str]
) -> None:
    """Adding a detector's module must suffice to show its failure and its dimension on the page, over HTTP and in SQL."""
    failure = detector.failure
    document = call("GET", RUN, tokens.root).json()["diagnosis"]
    (cause,) = document["failure_causes"]
    expected = 100 + cause["impact_score"]
    assert failure.name == cause["type"] == document["primary_diagnosis"]["root_cause_failure_type"]
    assert {name: score for name, score in document["scores"].items() if score < 100} == {failure.dimension: expected}

    page = look("/projects/ops/runs/run_001")
    assert f'<th scope="row" title="{failure.dimension}">{failure.dimension_title}</th>' in page
    assert f'<h2><span title="{failure.name}">{failure.title}</span></h2>' in page
    assert page.count("<meter") == len(DETECTORS)

    rows = store.cursor().execute("SELECT one.dimension, one.score FROM diagnoses, unnest(dimensions) AS u(one)").fetchall()
    assert document["scores"] == dict(rows)
    assert [dimension for dimension, _ in rows] == [*document["scores"]]
