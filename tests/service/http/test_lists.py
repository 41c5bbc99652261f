"""Figures over HTTP: trends, wrap quality, sampling, costs, runs, projects and single exchanges are of what is in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.api_server import BodyBuilder, Call, Tokens
from support.servers import until

from analytics.store.store import Store
from streams.engine.engine import Engine

OPS = "/api/audit/ops"
EVENTS = [{"event": "tool_call", "tool": "exec", "args": {"command": "ls"}, "timestamp": "2026-10-01T09:00:00Z"}]


@pytest.fixture
def filled(call: Call, tokens: Tokens, exchange_body: BodyBuilder, loop: asyncio.Runner, engine: Engine) -> None:
    """Store two days of ops, one with an anomaly, and an exchange of web."""
    for number, day, answer in ((1, "2026-09-30", "It is done."), (2, "2026-10-01", "   "), (8, "2026-10-01", "Committed.")):
        body = exchange_body(number, response=answer, timestamp=f"{day}T09:{number:02}:00Z")
        assert call("POST", "/api/audit/ingest", tokens.ops, json=body).status_code == 201
    call("POST", "/api/audit/ingest", tokens.web, json=exchange_body(1, session="web-session"))
    call("POST", "/api/audit/events", tokens.ops, json={"session_id": "s1", "first_seq": 0, "events": EVENTS})
    call("POST", "/api/audit/sessions/s1/finalize", tokens.ops)
    loop.run(engine.wait_until_drained())
    diagnosed(call, tokens, 1)


def diagnosed(call: Call, tokens: Tokens, runs: int) -> None:
    """Return once ops has this many runs, which are made when nothing else waits."""
    until(lambda: runs == len(got(call, f"{OPS}/runs", tokens.root)["runs"]), "the diagnoses")


def got(call: Call, path: str, token: str, **asked: Any) -> Any:
    """Return the answer to a request."""
    response = call("GET", path, token, params=asked)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.usefixtures("filled")
def test_trends_use_the_day_of_the_exchange(call: Call, tokens: Tokens) -> None:
    """Both days were scored today; today itself is partial."""
    trends = got(call, f"{OPS}/trends", tokens.root, window="7d")
    assert trends["project"] == "ops"
    assert trends["window"] == "7d"
    assert [(point["date"], point["anomalyCount"], point["exchangeCount"]) for point in trends["dataPoints"]] == [
        ("2026-09-30", 0, 1),
        ("2026-10-01", 1, 2),
    ]
    assert [trends["dataPoints"][0][name] for name in ("avgTier1", "avgTier2_5")] == [1.0, None]
    assert call("GET", f"{OPS}/trends", tokens.root, params={"window": "9d"}).status_code == 400


@pytest.mark.usefixtures("filled")
def test_wrap_quality_is_per_session(call: Call, tokens: Tokens) -> None:
    """Found and missing steps together are the expected steps."""
    [session] = got(call, f"{OPS}/wrap-quality", tokens.root)["sessions"]
    assert session["sessionId"] == "s1"
    assert session["exchangeCount"] == 3
    assert session["lastTimestamp"] == "2026-10-01T09:08:00Z"
    assert session["score"] == 0.2
    assert session["stepsFound"] == ["commit"]
    assert session["totalSteps"] == 5
    assert len(session["stepsMissing"]) == 4


@pytest.mark.usefixtures("filled")
def test_the_sampling_mix_covers_a_period(call: Call, tokens: Tokens) -> None:
    """The shares of the reasons add up to one."""
    mix = got(call, f"{OPS}/sampling", tokens.root)["mix"]
    assert sum(one["exchanges"] for one in mix) == 3
    assert round(sum(one["share"] for one in mix), 4) == 1.0
    assert got(call, f"{OPS}/sampling", tokens.root, to="2026-09-30")["mix"] == []
    assert call("GET", f"{OPS}/sampling?from=2026-10-02&to=2026-10-01", tokens.root).status_code == 400


@pytest.mark.usefixtures("filled")
def test_runs_are_listed_and_shown(call: Call, tokens: Tokens) -> None:
    """The run has its complete diagnosis with evidence and graph, and is hidden from other projects."""
    listed = got(call, f"{OPS}/runs", tokens.root)
    assert [(run["runId"], run["sessionId"], run["toolCalls"]) for run in listed["runs"]] == [("run_001", "s1", 1)]
    response = call("GET", f"{OPS}/runs/run_001", tokens.root)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert response.json()["run"] == listed["runs"][0]
    assert {"trust_score", "causal_graph"} <= response.json()["diagnosis"].keys()
    missing = [call("GET", f"/api/audit/{path}", tokens.root).status_code for path in ("web/runs/run_001", "ops/runs/run_0001")]
    assert missing == [404, 404]


@pytest.mark.usefixtures("filled")
def test_an_unreadable_stored_record_is_a_server_error(
    call: Call, tokens: Tokens, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Invalid bodies raise the same error and get 400, but this one is ours and is named in the log only."""
    with store.transaction():
        store.cursor().execute("UPDATE log.agent_events SET payload = '{'")
    response = call("GET", f"{OPS}/runs/run_001", tokens.root)
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    [fault] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "payload: is not JSON" in str(fault.exc_info)


@pytest.mark.usefixtures("filled")
def test_projects_are_listed_with_their_health(call: Call, tokens: Tokens) -> None:
    """Projects with records or a connection are listed, audited or not; an operator of one project sees only that."""
    listed = got(call, "/api/audit/projects", tokens.root)["projects"]
    assert [(one["project"], one["health"], one["enabled"]) for one in listed] == [
        ("capped", "empty", True),
        ("dark", "empty", False),
        ("ops", "unknown", True),
        ("web", "unknown", True),
    ]
    ops = listed[2]
    assert ops["exchanges"] == 3
    assert ops["scores"] == 3
    assert ops["anomalies"] == 1
    assert ops["runs"] == 1
    assert ops["lastExchangeAt"] == "2026-10-01T09:08:00Z"
    assert ops["reasons"] == ["unjudged", "too_few", "unchecked"]
    assert tuple(ops["recent"][name] for name in ("unscored", "unscoredRate", "unsafeRuns")) == (3, 1.0, 0)
    assert tuple(ops["recent"][name] for name in ("scores", "anomalyRate", "until")) == (3, 0.333, "2026-10-01")
    assert got(call, "/api/audit/projects", tokens.ops_reader)["projects"] == [ops]
    assert [one["project"] for one in got(call, "/api/audit/projects", tokens.root, health="unknown")["projects"]] == [
        "ops",
        "web",
    ]


@pytest.mark.usefixtures("filled")
def test_an_exchange_is_shown_with_its_context(call: Call, tokens: Tokens) -> None:
    """No cache may store its texts."""
    response = call("GET", f"{OPS}/exchanges/s1:2", tokens.root)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    assert body["exchange"]["id"] == "s1:2"
    assert body["exchange"]["connection"] == "north"
    assert body["exchange"]["sessionId"] == "s1"
    assert body["exchange"]["timestamp"] == "2026-10-01T09:02:00Z"
    assert body["score"]["tier1Flags"] == ["silent_refusal"]
    assert body["judgements"] == []
    for path in ("web/exchanges/s1:2", "ops/exchanges/web-session:1", "ops/exchanges/s1:2?connection=south"):
        assert call("GET", f"/api/audit/{path}", tokens.root).status_code == 404, path


def test_an_id_shared_by_two_connections_needs_the_connection(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, loop: asyncio.Runner, engine: Engine
) -> None:
    """Ids are unique only within a connection."""
    other = call("POST", "/api/audit/connections", tokens.root, json={"name": "east", "project": "ops"}).json()["token"]
    for token in (tokens.ops, other):
        call("POST", "/api/audit/ingest", token, json=exchange_body(1))
    loop.run(engine.wait_until_drained())
    refused = call("GET", f"{OPS}/exchanges/s1:1", tokens.root)
    assert refused.status_code == 409
    assert refused.json()["code"] == "ambiguous"
    assert "east, north" in refused.json()["error"]
    assert got(call, f"{OPS}/exchanges/s1:1", tokens.root, connection="east")["exchange"]["connection"] == "east"


@pytest.mark.parametrize("paged", [("projects", "projects"), ("ops/runs", "runs"), ("ops/wrap-quality", "sessions")])
def test_pages_of_every_list_make_up_the_list(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, paged: tuple[str, str]
) -> None:
    """No entry is repeated or missing."""
    path, entries = paged
    for session in "abcde":
        call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(1, session=session))
        call("POST", "/api/audit/events", tokens.ops, json={"session_id": session, "first_seq": 0, "events": EVENTS})
        call("POST", f"/api/audit/sessions/{session}/finalize", tokens.ops)
    diagnosed(call, tokens, 5)
    full_list = got(call, f"/api/audit/{path}", tokens.root)[entries]
    seen: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        body = got(call, f"/api/audit/{path}", tokens.root, **query)
        seen += body[entries]
        if body["nextCursor"] is None:
            break
        query = {"limit": 2, "cursor": body["nextCursor"]}
    assert len(full_list) > 3
    assert seen == full_list
