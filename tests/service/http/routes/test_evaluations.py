"""Evaluations over HTTP: requested by an operator, made in the background, and readable only within the project."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic.alias_generators import to_camel
from support.api_server import NOW, Call, Tokens, engine_of
from support.engines import live_judge, rows
from support.evaluation_builders import make_request
from support.stored_sessions import HAIKU, SONNET, filled, session

from analytics.store.store import Store
from audit.evaluation.cases import shipped_system_prompt
from driftline_trial.simulator import running
from schemas.records import DeadLetter
from service.http.routes import evaluations as endpoint
from service.setup.access import AccessStore, Holder
from streams.engine.engine import Engine
from streams.evaluations import Estimate
from streams.judging.judged_stages import JUDGED, SCORING

EVALUATIONS = "/api/audit/evaluations"
CASE = {
    "case_id": "backup",
    "title": "Look after the backup",
    "input": {"messages": [{"role": "user", "content": "Is the backup healthy?"}]},
    "deterministic_checks": [{"check_id": "answered", "kind": "final_response_present"}],
    "tags": ["nightly"],
}
PROFILE = {
    "profile_id": "nightly",
    "judges": [
        {"judge_id": "haiku", "model": "claude-haiku-4-5"},
        {"judge_id": "later", "type": "batch", "model": "claude-haiku-4-5"},
    ],
    "judge_runs": [
        {"judge_run_id": "twice", "judge_id": "haiku", "repetitions": 2},
        {"judge_run_id": "by_night", "judge_id": "later"},
    ],
}
BODY: dict[str, Any] = {"cases": [CASE], "profile": PROFILE, "judgeRuns": ["twice"]}


@pytest.fixture
def judged_by_nobody() -> bool:
    """Return whether the server has no judge."""
    return False


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, judged_by_nobody: bool) -> Iterator[Engine]:
    """Yield a started engine over three finished sessions: two of ops, one of web."""
    filled(
        store,
        *session("s1", 1, SONNET),
        *session("s2", 2, HAIKU),
        *session("w1", 3, SONNET, project="web", connection="south"),
    )
    with running("answer") as simulator:
        # Without a judge, nothing says so of each request.
        judge, stages = (None, (SCORING,)) if judged_by_nobody else (live_judge(simulator.base_url), JUDGED)
        started = engine_of(store, judge, stages)
        loop.run(started.start())
        yield started
        loop.run(started.stop())


@pytest.fixture
def admin(access: AccessStore) -> str:
    """Return the token of an operator with every scope in project ops."""
    return access.add(Holder("operator", "ops-admin", "ops"))


def test_an_evaluation_is_requested_made_and_read(call: Call, tokens: Tokens, engine: Engine, loop: asyncio.Runner) -> None:
    """The test covers the immediate answer, the pending state, and the result with its evidence."""
    requested = call("POST", EVALUATIONS, tokens.root, json=BODY | {"sessions": ["s1"]})
    [evaluation] = requested.json()["evaluations"]
    loop.run(engine.wait_until_drained())
    response = call("GET", f"{EVALUATIONS}/{evaluation['id']}", tokens.root)
    document = response.json()

    assert requested.status_code == 202
    assert requested.json()["sessions"] == 1
    assert requested.json()["estimate"]["calls"] == 2
    identity = ("local", "ops", "s1", "backup", "twice", 0, 1, False)
    names = ("connection", "project", "sessionId", "caseId", "judgeRunId", "attempt", "repetition", "reused")
    assert identity == tuple(evaluation[name] for name in names)
    assert document["pending"] is False
    assert document["setAside"] is None
    assert document["systemPrompt"] == shipped_system_prompt()
    assert document["userPrompt"].startswith('{"evaluation_target":')
    assert tuple(document["evaluation"][name] for name in ("status", "successfulIterations", "simulated")) == (
        "completed",
        2,
        True,
    )
    assert all(answer["answer"] for answer in document["evaluation"]["judgeResult"]["iterations"])
    assert response.headers["cache-control"] == "no-store"


def test_a_finished_evaluation_is_reused_at_no_cost(call: Call, tokens: Tokens, engine: Engine, loop: asyncio.Runner) -> None:
    """Repeated requests must not be paid for again."""
    first = call("POST", EVALUATIONS, tokens.root, json=BODY | {"project": "ops"}).json()
    loop.run(engine.wait_until_drained())
    repeated = call("POST", EVALUATIONS, tokens.root, json=BODY | {"project": "ops"}).json()

    assert [one["sessionId"] for one in repeated["evaluations"]] == ["s1", "s2"], "in the order in which they ended"
    assert [one["id"] for one in first["evaluations"]] == [one["id"] for one in repeated["evaluations"]]
    assert tuple(repeated["estimate"][name] for name in ("reused", "calls", "atMostUsd")) == (2, 0, 0.0)
    assert all(one["reused"] for one in repeated["evaluations"])


def test_two_equal_requests_pay_once(app: FastAPI, tokens: Tokens, engine: Engine, store: Store, loop: asyncio.Runner) -> None:
    """Two concurrent equal requests, such as a build that is started twice, must be paid for once."""

    async def twice() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"authorization": f"Bearer {tokens.root}"}
            return await asyncio.gather(
                *(client.post(EVALUATIONS, headers=headers, json=BODY | {"project": "ops"}) for _ in range(2))
            )

    answers = loop.run(twice())
    loop.run(engine.wait_until_drained())

    assert [one.status_code for one in answers] == [202, 202]
    first, second = ([evaluation["id"] for evaluation in one.json()["evaluations"]] for one in answers)
    assert first == second
    judged = [purpose for (purpose,) in rows(store, "judgements", "purpose") if purpose == "evaluation"]
    assert len(judged) == 4


def test_a_dry_run_estimates_without_calling_the_judge(call: Call, tokens: Tokens, store: Store) -> None:
    """A dry run estimates the cost without asking a judge."""
    answer = call("POST", EVALUATIONS, tokens.root, json=BODY | {"project": "ops", "dryRun": True})

    assert answer.status_code == 200
    assert answer.json()["estimate"]["calls"] == 4
    assert answer.json()["estimate"]["expectedUsd"] > 0
    assert answer.json()["estimate"].keys() == {to_camel(field.name) for field in fields(Estimate)}, (
        "whoever pays is told all of it"
    )
    assert rows(store, "evaluation_requests", "count(*)") == [(0,)]


@pytest.mark.parametrize("judged_by_nobody", [True])
def test_without_a_judge_only_recorded_evaluations_are_accepted(call: Call, tokens: Tokens, store: Store) -> None:
    """An evaluation without a judge would fail and look like a bad run."""
    recorded = PROFILE | {
        "judges": [{"judge_id": "haiku", "type": "recorded", "model": "claude-haiku-4-5"}],
        "judge_runs": PROFILE["judge_runs"][:1],
    }
    refused = call("POST", EVALUATIONS, tokens.root, json=BODY | {"sessions": ["s1"]})

    assert refused.status_code == 409
    assert refused.json()["code"] == "no_judge"
    assert rows(store, "evaluation_requests", "count(*)") == [(0,)]
    assert call("POST", EVALUATIONS, tokens.root, json=BODY | {"sessions": ["s1"], "dryRun": True}).status_code == 200
    accepted = call("POST", EVALUATIONS, tokens.root, json={"cases": [CASE], "profile": recorded, "sessions": ["s1"]})
    assert accepted.status_code == 202
    assert accepted.json()["estimate"]["calls"] == 0
    assert accepted.json()["estimate"]["notAsked"] == 2


CHECK = {"check_id": "count", "kind": "tool_call_count"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"cases": []}, "cases: must hold 1 or more"),
        ({"cases": [CASE | {"title": 7}]}, "cases[0].title: must be a string"),
        ({"cases": [CASE, CASE]}, "two cases are called 'backup'"),
        ({"cases": [CASE | {"deterministic_checks": [CHECK]}]}, "cases[0].deterministic_checks[0].min: "),
        ({"cases": [CASE | {"deterministic_checks": [CHECK | {"min": "1"}]}]}, "cases[0].deterministic_checks[0].min: "),
        ({"cases": [CASE | {"deterministic_checks": [{"check_id": "a", "kind": "magic"}]}]}, "cases[0].deterministic_checks[0].kind: "),
        ({"profile": PROFILE | {"judge_runs": []}}, "profile.judge_runs: must hold 1 or more"),
        ({"profile": PROFILE | {"judge_system_prompt_path": "/etc/passwd"}}, "profile.judge_system_prompt_path: "),
        ({"judgeRuns": ["by_night"]}, "profile.judges[1].type: "),
        ({"judgeRuns": ["thrice"]}, "judgeRuns[0]: "),
        ({"systemPrompt": " \n"}, "systemPrompt: is blank"),
        ({"systemPrompt": "é" * 40_000}, "systemPrompt: is larger than 65536 bytes"),
        ({"sessions": ["nobody"]}, "there is no session 'nobody'"),
        ({"sessions": ["s1"], "tags": ["nightly"]}, "sessions are named and also selected"),
        ({"project": "empty"}, "sessions: no finished session matches"),
        ({"since": "soon"}, "since: must be a time in ISO 8601"),
        ({"until": "2026-10-01"}, "until: is not a field of this request"),
    ],
)  # fmt: skip
def test_an_invalid_body_is_refused_with_its_field(call: Call, tokens: Tokens, store: Store, body: Any, words: str) -> None:
    """The error must name the field in the sender's file."""
    answer = call("POST", EVALUATIONS, tokens.root, json=BODY | body)

    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"
    assert answer.json()["error"].startswith(words), answer.json()["error"]
    assert rows(store, "evaluation_requests", "count(*)") == [(0,)]


def test_too_many_evaluations_are_refused_before_they_are_read(
    call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation is in memory with its prompts, so the number per request must be bounded."""
    monkeypatch.setattr(endpoint, "MAX_EVALUATIONS", 1)
    answer = call("POST", EVALUATIONS, tokens.root, json=BODY | {"project": "ops"})

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("limit: ")
    assert "2 evaluations; at most 1" in answer.json()["error"]


def test_a_case_may_exceed_the_usual_body_limit(call: Call, tokens: Tokens) -> None:
    """Long cases are legitimate, but bodies must be bounded."""
    long = CASE | {"input": {"messages": [{"role": "user", "content": "x" * 40_000}] * 5}}
    assert (
        call("POST", EVALUATIONS, tokens.root, json=BODY | {"cases": [long], "sessions": ["s1"], "dryRun": True}).status_code
        == 200
    )
    huge = BODY | {"systemPrompt": "x" * 5_000_000}
    assert call("POST", EVALUATIONS, tokens.root, json=huge).status_code == 413


def test_a_token_of_one_project_evaluates_only_there(
    call: Call, tokens: Tokens, admin: str, engine: Engine, loop: asyncio.Runner
) -> None:
    """The answers must not reveal whether another project has a session with that name."""
    mine = call("POST", EVALUATIONS, admin, json=BODY).json()
    other_project = call("POST", EVALUATIONS, admin, json=BODY | {"project": "web"})
    responses = [
        call("POST", EVALUATIONS, admin, json=BODY | {"sessions": [name]}) for name in ("w1", "x1", "south/w1", "south/x1")
    ]

    assert [one["sessionId"] for one in mine["evaluations"]] == ["s1", "s2"]
    assert other_project.status_code == 403
    assert other_project.json()["code"] == "other_project"
    errors = [one.json()["error"].replace("x1", "w1") for one in responses]
    assert {one.status_code for one in responses} == {400}
    assert errors[0] == errors[1]
    assert errors[2] == errors[3]
    loop.run(engine.wait_until_drained())
    assert call("POST", EVALUATIONS, tokens.ops, json=BODY).status_code == 403


def test_an_evaluation_is_visible_only_within_its_project(
    call: Call, tokens: Tokens, engine: Engine, loop: asyncio.Runner
) -> None:
    """The prompt quotes conversations of the project."""
    [evaluation] = call("POST", EVALUATIONS, tokens.root, json=BODY | {"sessions": ["w1"]}).json()["evaluations"]
    loop.run(engine.wait_until_drained())

    assert call("GET", f"{EVALUATIONS}/{evaluation['id']}", tokens.root).status_code == 200
    hidden, nowhere = (call("GET", f"{EVALUATIONS}/{name}", tokens.ops_reader) for name in (evaluation["id"], "0" * 36))
    assert hidden.status_code == 404
    assert nowhere.status_code == 404
    assert hidden.json() == nowhere.json()
    assert call("GET", "/api/audit/ops/evaluations", tokens.ops_reader).json()["evaluations"] == []
    assert call("GET", "/api/audit/web/evaluations", tokens.ops_reader).status_code == 403


def test_evaluations_are_listed_newest_first_in_pages(call: Call, tokens: Tokens, engine: Engine, loop: asyncio.Runner) -> None:
    """Pages have neither gaps nor repetitions, also when filtered by case, model and session."""
    call("POST", EVALUATIONS, tokens.root, json=BODY | {"project": "ops", "cases": [CASE, CASE | {"case_id": "other"}]})
    loop.run(engine.wait_until_drained())

    def list_evaluations(**query: Any) -> Any:
        return call("GET", "/api/audit/ops/evaluations", tokens.ops_reader, params=query).json()

    full_list = list_evaluations()
    first = list_evaluations(limit=3)
    remaining = list_evaluations(limit=3, cursor=first["nextCursor"])
    assert full_list["count"] == 4
    assert full_list["nextCursor"] is None
    assert first["evaluations"] + remaining["evaluations"] == full_list["evaluations"]
    times = [one["evaluatedAt"] for one in full_list["evaluations"]]
    assert sorted(times, reverse=True) == times
    assert [list_evaluations(**one)["count"] for one in ({"case": "other"}, {"model": HAIKU}, {"session": "s1"})] == [2, 2, 2]
    assert list_evaluations(case="other", session="s3")["count"] == 0
    assert {"userPrompt", "finalResult", "judgeResult"}.isdisjoint(full_list["evaluations"][0])


@pytest.mark.parametrize("judged_by_nobody", [True])
def test_pending_and_failed_requests_are_marked(call: Call, tokens: Tokens, store: Store) -> None:
    """A client must be able to tell whether a result is still coming."""
    request = make_request(requested_at=NOW - timedelta(minutes=1))
    filled(store, ("evaluation-requests", request))
    path = f"{EVALUATIONS}/{request.evaluation_id}"
    before = call("GET", path, tokens.root).json()
    letter = DeadLetter(
        dead_letter_id="d", source="evaluation-requests", position=0, stage="evaluation", reason="bounds", detail="too large",
        digest="d", size=1, body=b"", rejected_at=NOW,
    )  # fmt: skip
    filled(store, ("dead-letters", letter))
    after = call("GET", path, tokens.root).json()

    assert before["pending"] is True
    assert before["setAside"] is None
    assert before["evaluation"] is None
    assert before["userPrompt"] is None
    assert tuple(after[name] for name in ("pending", "setAside", "evaluation")) == (False, "bounds", None)
