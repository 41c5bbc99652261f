"""All endpoints in one table: the happy path, empty projects, bad input, other projects, missing tokens and missing scopes.

A new endpoint must be added to the table, so that its access and its answer for an empty project are decided explicitly.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fastapi.routing
import httpx2
import pytest
from fastapi import FastAPI
from support.api_server import NOW, PATIENT, BodyBuilder, Call, Tokens
from support.engines import live_judge, policy_of
from support.watch_histories import fallen, history, put

import service.server.app as app_module
from analytics.store.store import Store
from audit.redaction import Redactor
from driftline_trial.simulator import running
from service.server.app import prepare_routes
from service.setup.access import SCOPES, AccessStore, Holder
from service.web.bounds import LINES, ApiSettings
from service.write.policy_file import SKELETON, fingerprint
from streams.engine.engine import Engine

Who = Literal["connection", "read", "review", "query", "admin", "open"]
EVENTS = [{"event": "tool_call", "tool": "exec", "args": {"command": "ls"}, "timestamp": "2026-10-01T09:00:00Z"}]
NO_BODY: Any = None
Drained = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """A request to an endpoint, with the expected answer."""

    who: Who
    """Who may call: a connection, an operator with a scope, or anybody."""
    happy: int = 200
    body: Any = NO_BODY
    empty: int = 200
    """Status where the project has nothing, or nothing of that id."""
    bad: tuple[str, Any] | None = ("?limit=0", NO_BODY)
    """Query and body of a request that is wrong; None where nothing but the address can be."""
    everywhere: bool = False
    """Whether it takes an operator of every project."""
    both: bool = False
    """Whether connections and admins may call."""


Key = tuple[str, str]
"""Method and path."""
Table = dict[Key, Row]
EXCHANGE = {
    "session_id": "new",
    "exchange": {
        "id": "new:1",
        "timestamp": "2026-10-01T09:00:00Z",
        "user_message": {"content": "Is it up?"},
        "agent_response": {"content": "It is."},
    },
}
NOTHING = ("", [])
CHANGED = "version: 1\ndefaults: {retentionDays: 30}\n"
"""A policy."""
EVALUATE = {
    "cases": [{"case_id": "c", "title": "C", "input": {"messages": [{"role": "user", "content": "Is it up?"}]}}],
    "profile": {
        "profile_id": "p",
        "judges": [{"judge_id": "j", "model": "claude-haiku-4-5"}],
        "judge_runs": [{"judge_run_id": "once", "judge_id": "j"}],
    },
    "sessions": ["s1"],
}
TABLE: Table = {
    ("POST", "/api/audit/ingest"): Row("connection", 201, EXCHANGE, bad=("", {"session_id": "s"})),
    ("POST", "/api/audit/exchanges"): Row("connection", 201, [EXCHANGE], bad=NOTHING),
    ("POST", "/v1/traces"): Row("connection", 200, {"resourceSpans": []}, bad=("", [])),
    ("POST", "/v1/logs"): Row("connection", 200, {"resourceLogs": []}, bad=("", [])),
    ("POST", "/v1/metrics"): Row("connection", 200, {"resourceMetrics": []}, bad=("", [])),
    ("POST", "/api/audit/events/bulk"): Row(
        "connection", 201, [{"session_id": "s", "event_id": "b", "event": "x"}], bad=NOTHING
    ),
    ("POST", "/api/audit/events"): Row("connection", 201, {"session_id": "s", "first_seq": 9, "events": EVENTS}, bad=NOTHING),
    ("POST", "/api/audit/heartbeat"): Row("connection", 200, {"session_id": "s"}, bad=("", {}), both=True),
    ("POST", "/api/audit/sessions/{session_id}/finalize"): Row("connection", 200, bad=("", {"connection": "A"}), both=True),
    ("POST", "/api/audit/sign-in"): Row("read", 204, empty=204, bad=None),
    ("POST", "/api/audit/sign-in/project"): Row("read", 204, empty=204, bad=("?project=A!", NO_BODY)),
    ("POST", "/api/audit/sign-out"): Row("read", 204, empty=204, bad=None),
    ("GET", "/api/audit/telemetry"): Row("read"),
    ("GET", "/api/audit/alerts"): Row("read"),
    # The server of the tests has no receiver.
    ("POST", "/api/audit/alerts/test"): Row("admin", 409, {}, empty=409, bad=("", {"receiver": "A"}), everywhere=True),
    ("GET", "/api/audit/projects"): Row("read"),
    ("GET", "/api/audit/costs"): Row("read", bad=("?by=agent", NO_BODY)),
    ("GET", "/api/audit/costs/agents"): Row("read", bad=("?by=session", NO_BODY)),
    ("GET", "/api/audit/{project}/scores"): Row("read", bad=("?cursor=x", NO_BODY)),
    ("GET", "/api/audit/{project}/anomalies"): Row("read", bad=("?from=soon", NO_BODY)),
    ("GET", "/api/audit/{project}/scores/{score_id}"): Row("read", empty=404, bad=None),
    ("GET", "/api/audit/{project}/summary"): Row("read", bad=None),
    ("GET", "/api/audit/{project}/banner"): Row("read", bad=None),
    ("GET", "/api/audit/{project}/exchanges/{exchange_id}"): Row("read", empty=404, bad=("?connection=A", NO_BODY)),
    ("GET", "/api/audit/{project}/sessions"): Row("read", bad=("?toolError=perhaps", NO_BODY)),
    ("GET", "/api/audit/{project}/sessions/{session_id}"): Row("read", empty=404, bad=("?turn=0", NO_BODY)),
    ("GET", "/api/audit/{project}/trends"): Row("read", bad=("?window=3d", NO_BODY)),
    ("GET", "/api/audit/{project}/behaviour"): Row("read", bad=("?from=x", NO_BODY)),
    ("GET", "/api/audit/{project}/failures"): Row("read", bad=("?from=x", NO_BODY)),
    ("GET", "/api/audit/{project}/wrap-quality"): Row("read"),
    ("GET", "/api/audit/{project}/sampling"): Row("read", bad=("?to=soon", NO_BODY)),
    ("GET", "/api/audit/{project}/baseline"): Row("read", bad=None),
    ("POST", "/api/audit/{project}/baseline/recompute"): Row("admin", 200, {"window": "14d"}, bad=("", {"window": "soon"})),
    ("GET", "/api/audit/incidents"): Row("read", bad=("?sort=odd", NO_BODY)),
    ("GET", "/api/audit/incidents/views"): Row("read", bad=None),
    ("POST", "/api/audit/incidents/views"): Row(
        "read", 200, {"name": "poor", "query": ""}, bad=("", {"name": "", "query": ""})
    ),
    ("DELETE", "/api/audit/incidents/views/{name}"): Row("read", 204, empty=404, bad=None),
    ("POST", "/api/audit/incidents/bulk"): Row(
        "review", 200, {"incidents": [{"project": "ops", "id": "i1"}], "comment": "x"}, bad=("", {"incidents": []})
    ),
    ("GET", "/api/audit/{project}/incidents"): Row("read", bad=("?status=odd", NO_BODY)),
    ("GET", "/api/audit/{project}/incidents/{incident_id}"): Row("read", empty=404, bad=None),
    # The exchanges of the incident are not stored; tests/service/test_gating.py has those of one.
    ("GET", "/api/audit/{project}/incidents/{incident_id}/cases"): Row("read", 409, empty=404, bad=("?limit=0", NO_BODY)),
    ("PUT", "/api/audit/{project}/incidents/{incident_id}"): Row(
        "review", 200, {"status": "accepted"}, empty=404, bad=("", {"status": "odd"})
    ),
    ("POST", "/api/audit/{project}/check"): Row("admin", bad=None),
    ("GET", "/api/audit/{project}/costs"): Row("read", bad=("?by=project", NO_BODY)),
    ("GET", "/api/audit/{project}/costs/agents"): Row("read", bad=("?by=project", NO_BODY)),
    ("GET", "/api/audit/{project}/runs"): Row("read"),
    ("GET", "/api/audit/{project}/runs/{run_id}"): Row("read", empty=404, bad=None),
    ("POST", "/api/audit/{project}/scores/{score_id}/human"): Row(
        "review", 200, {"score": 4}, empty=404, bad=("", {"score": 6})
    ),
    ("GET", "/api/audit/{project}/scores/{score_id}/human"): Row("read", empty=404, bad=None),
    ("GET", "/api/audit/{project}/review/next"): Row("review", bad=("?blind=perhaps", NO_BODY)),
    ("PUT", "/api/audit/{project}/review/queues/{name}"): Row("review", 200, {"rubric": "Polite?"}, bad=("", {"reviews": 0})),
    ("GET", "/api/audit/{project}/review/queues"): Row("read", bad=("?rater=", NO_BODY)),
    ("POST", "/api/audit/{project}/review/queues/{name}/items"): Row(
        "review", 200, {"session": "s1"}, empty=404, bad=("", {"scores": "all"})
    ),
    ("DELETE", "/api/audit/{project}/review/queues/{name}"): Row("review", 200, bad=None),
    ("GET", "/api/audit/{project}/agreement"): Row("read", bad=("?from=soon", NO_BODY)),
    ("GET", "/api/audit/{project}/anchors"): Row("read", bad=None),
    ("POST", "/api/audit/{project}/anchors"): Row("review", 201, {"count": 1}, empty=201, bad=("", {"count": 0})),
    ("GET", "/api/audit/{project}/annotations"): Row("read", bad=("?since=soon", NO_BODY)),
    ("POST", "/api/audit/{project}/annotations"): Row("review", 201, {"text": "New prompt"}, empty=201, bad=("", {"text": ""})),
    ("PUT", "/api/audit/{project}/annotations/{annotation_id}"): Row(
        "review", 200, {"text": "New prompt"}, empty=404, bad=("", {"text": ""})
    ),
    ("DELETE", "/api/audit/{project}/annotations/{annotation_id}"): Row("review", 204, empty=404, bad=None),
    ("GET", "/api/audit/{project}/deployments"): Row("read", bad=None),
    ("POST", "/api/audit/{project}/deployments"): Row("review", 201, {"version": "2"}, empty=201, bad=("", {"version": ""})),
    ("DELETE", "/api/audit/{project}/anchors/{anchor_id}"): Row("review", 200, empty=404, bad=None),
    ("POST", "/api/audit/{project}/anchors/run"): Row("admin", 202, empty=202, bad=None),
    ("POST", "/api/audit/{project}/rejudge"): Row(
        "admin", 202, {"reason": "timeout"}, empty=202, bad=("", {"reason": "tired"})
    ),
    ("POST", "/api/audit/evaluations"): Row("admin", 202, EVALUATE, bad=("", EVALUATE | {"cases": []})),
    ("GET", "/api/audit/{project}/evaluations"): Row("read", bad=("?cursor=x", NO_BODY)),
    ("GET", "/api/audit/evaluations/{evaluation_id}"): Row("read", bad=None),
    ("POST", "/api/audit/retention/run"): Row(
        "admin", 200, {"retentionDays": 90}, bad=("", {"retentionDays": 0}), everywhere=True
    ),
    ("POST", "/api/audit/erasures"): Row("admin", 202, {"connection": "poor"}, bad=("", {}), everywhere=True),
    ("GET", "/api/audit/erasures"): Row("admin", everywhere=True),
    ("GET", "/api/audit/connections"): Row("admin", bad=("?project=A", NO_BODY), everywhere=True),
    ("POST", "/api/audit/connections"): Row("admin", 201, {"name": "c", "project": "ops"}, bad=("", {}), everywhere=True),
    ("GET", "/api/audit/operators"): Row("admin", bad=("?project=A", NO_BODY), everywhere=True),
    ("POST", "/api/audit/operators"): Row("admin", 201, {"name": "o"}, bad=("", {"scopes": ["all"]}), everywhere=True),
    ("POST", "/api/audit/connections/{name}/rotate"): Row("admin", 200, bad=("", {"graceHours": -1}), everywhere=True),
    ("POST", "/api/audit/operators/{name}/rotate"): Row("admin", 200, bad=("", {"graceHours": -1}), everywhere=True),
    ("POST", "/api/audit/connections/{name}/revoke"): Row("admin", 200, bad=("", {"token": "x"}), everywhere=True),
    ("POST", "/api/audit/operators/{name}/revoke"): Row("admin", 200, bad=("", {"token": "x"}), everywhere=True),
    ("GET", "/api/audit/shared-links"): Row("review", bad=None),
    ("POST", "/api/audit/shared-links"): Row("review", 201, {"page": "/projects/ops/incidents/i1"}, bad=("", {"page": "/"})),
    ("DELETE", "/api/audit/shared-links/{link_id}"): Row("review", 204, empty=404, bad=None),
    ("GET", "/api/audit/audit-log"): Row("admin", everywhere=True),
    ("GET", "/api/audit/sign-ins"): Row("admin", bad=("?limit=1", NO_BODY), everywhere=True),
    ("POST", "/api/audit/operators/{name}/sign-out"): Row("admin", bad=("?all=true", NO_BODY), everywhere=True),
    ("GET", "/api/audit/installation"): Row("admin", bad=("?limit=1", NO_BODY), everywhere=True),
    ("POST", "/api/audit/retention/plan"): Row(
        "admin", 200, {"retentionDays": 90}, bad=("", {"retentionDays": 0}), everywhere=True
    ),
    ("POST", "/api/audit/erasures/plan"): Row("admin", 200, {"connection": "poor"}, bad=("", {}), everywhere=True),
    ("GET", "/api/audit/policy"): Row("admin", bad=("?project=ops", NO_BODY), everywhere=True),
    ("GET", "/api/audit/policy/effective"): Row("admin", bad=("?project=A", NO_BODY), everywhere=True),
    ("POST", "/api/audit/policy/trial"): Row("admin", 200, {"text": CHANGED}, bad=("", {}), everywhere=True),
    ("PUT", "/api/audit/policy"): Row(
        "admin",
        200,
        {"text": CHANGED, "base": fingerprint(SKELETON)},
        bad=("", {"text": CHANGED, "base": "x"}),
        everywhere=True,
    ),
    ("POST", "/api/audit/policy/restore"): Row("admin", 200, {"base": fingerprint(CHANGED)}, bad=("", {}), everywhere=True),
    # The server of the tests cannot restart itself.
    ("POST", "/api/audit/policy/apply"): Row("admin", 409, bad=("?now=true", NO_BODY), everywhere=True),
    ("POST", "/api/audit/query"): Row("query", 200, {"sql": "SELECT 1 AS one"}, bad=("", {"sql": ""})),
    ("GET", "/healthz"): Row("open", bad=None),
    ("GET", "/readyz"): Row("open", bad=None),
    ("GET", "/metrics"): Row("open", bad=None),
}
SCOPE_GRANTING = {"/api/audit/operators", "/api/audit/operators/{name}/rotate"}
"""Endpoints that grant scopes, but none that the caller lacks."""
GUARDED = {key: row for key, row in TABLE.items() if row.who != "open"}
OPERATED = {key: row for key, row in GUARDED.items() if row.who != "connection"}
OF_PROJECTS = {key: row for key, row in OPERATED.items() if "{project}" in key[1]}
BAD = {key: row for key, row in GUARDED.items() if row.bad}


@pytest.fixture
def settings(tmp_path: Path) -> ApiSettings:
    """Return the settings of a server with a policy file."""
    file = tmp_path / "policy.yaml"
    file.write_text(SKELETON, "utf-8")
    return ApiSettings(queries=PATIENT, policy_file=file)


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner) -> Iterator[Engine]:
    """Yield a started engine whose judge answers."""
    with running("answer") as simulator:
        policy = policy_of(bidirectional_scoring=True)
        engine = Engine(store, policy, Redactor(policy.redaction), lambda: NOW, judge=live_judge(simulator.base_url))
        loop.run(engine.start())
        try:
            yield engine
        finally:
            loop.run(engine.stop())


class EndpointCaller:
    """Calls an endpoint, with the names of existing objects in its address."""

    def __init__(self, call: Call, names: dict[str, str]) -> None:
        self._call = call
        self._names = names
        self._numbers = itertools.count(1)

    def __call__(self, key: Key, token: str | None, query: str = "", body: Any = NO_BODY, **named: str) -> httpx2.Response:
        """Send a request from a fresh address, so that earlier failures do not count."""
        content = {} if body is NO_BODY else {"json": body}
        path = key[1].format_map(self._names | named) + query
        return self._call(key[0], path, token, address=f"203.0.113.{next(self._numbers)}", **content)


@pytest.fixture
def ask(call: Call, tokens: Tokens) -> EndpointCaller:
    """Return a caller for an empty server, with plausible names and every token."""
    assert tokens.ops
    names = dict.fromkeys(("score_id", "exchange_id", "incident_id", "anchor_id", "annotation_id", "evaluation_id"), "nothing")
    names |= {"project": "ops", "session_id": "s1", "run_id": "run_001", "name": "poor", "link_id": "0123456789ab"}
    return EndpointCaller(call, names)


@pytest.fixture
def exchanges(exchange_body: BodyBuilder) -> list[Any]:
    """Return the bodies of two exchanges."""
    return [exchange_body(number) for number in (1, 2)]


@pytest.fixture
def drained(engine: Engine, loop: asyncio.Runner) -> Drained:
    """Return a function that waits for background work."""
    return lambda: loop.run(engine.wait_until_drained())


@pytest.fixture
def filled(call: Call, tokens: Tokens, exchanges: list[Any], drained: Drained, store: Store) -> EndpointCaller:
    """Return a caller for a server that has one object of every kind."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    for body in exchanges:
        call("POST", "/api/audit/ingest", tokens.ops, json=body)
    call("POST", "/api/audit/events", tokens.ops, json={"session_id": "s1", "first_seq": 0, "events": EVENTS})
    call("POST", "/api/audit/sessions/s1/finalize", tokens.ops)
    drained()
    [incident, *_] = call("POST", "/api/audit/ops/check", tokens.root).json()["incidents"]
    shared = call("POST", "/api/audit/shared-links", tokens.root, json={"page": "/projects/ops/incidents/i1"}).json()["link"]
    [anchor] = call("POST", "/api/audit/ops/anchors", tokens.root, json={"count": 1}).json()["anchors"]
    note = call("POST", "/api/audit/ops/annotations", tokens.root, json={"text": "New prompt"}).json()["annotation"]
    [score, *_] = call("GET", "/api/audit/ops/scores", tokens.root, params={"session": "s1"}).json()["scores"]
    [evaluation] = call("POST", "/api/audit/evaluations", tokens.root, json=EVALUATE).json()["evaluations"]
    names = {"project": "ops", "session_id": "s1", "run_id": "run_001", "name": "poor", "score_id": score["id"]}
    names |= {"evaluation_id": evaluation["id"], "annotation_id": note["id"]}
    return EndpointCaller(
        call,
        names
        | {
            "exchange_id": score["exchangeId"],
            "incident_id": incident["id"],
            "anchor_id": anchor["id"],
            "link_id": shared["id"],
        },
    )


def described(app: FastAPI) -> set[Key]:
    """Return method and path of every documented endpoint."""
    return {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}


def test_every_endpoint_is_in_the_table(app: FastAPI) -> None:
    """Access must be decided explicitly for every endpoint."""
    assert described(app) == set(TABLE)


def find_mismatches(table: Table, actual: Callable[[Key, Row], Any], expected: Callable[[Key, Row], Any]) -> list[Any]:
    """Return the endpoints whose answer differs from the expected one."""
    results = [(key, actual(key, row), expected(key, row)) for key, row in table.items()]
    return [(key, answer, wanted) for key, answer, wanted in results if answer != wanted]


def code_of(response: httpx2.Response) -> tuple[int, str]:
    """Return status and code of an error, whose body has the common form."""
    body = response.json()
    return response.status_code, body["code"] if {"error", "code"} == body.keys() else "no code"


def holder_of(key: Key) -> str:
    """Return the holder whose tokens an endpoint rotates or revokes, used by no other test."""
    return "reader" if "operators/" in key[1] else "poor"


def test_every_endpoint_accepts_valid_input(filled: EndpointCaller, tokens: Tokens) -> None:
    """Every endpoint succeeds with valid input."""

    def status_of(key: Key, row: Row) -> int:
        token = tokens.ops if row.who == "connection" else None if key[1] in {"/healthz", "/readyz"} else tokens.root
        return filled(key, token, body=row.body, name=holder_of(key)).status_code

    assert find_mismatches(TABLE, status_of, lambda _, row: row.happy) == []


def test_an_empty_project_has_empty_results(ask: EndpointCaller, tokens: Tokens) -> None:
    """A missing result is not an error, and shows nothing of other projects."""

    def status_of(key: Key, row: Row) -> int:
        return ask(key, tokens.root, body=row.body, project="web").status_code

    assert find_mismatches(OF_PROJECTS, status_of, lambda _, row: row.empty) == []


def test_an_unknown_project_is_not_found(filled: EndpointCaller, tokens: Tokens) -> None:
    """A typo must not look like a healthy project, so the error suggests the nearest name."""

    def answer_of(key: Key, row: Row) -> tuple[int, Any]:
        response = filled(key, tokens.root, body=row.body, project="opps")
        return response.status_code, response.json()

    refusal = {"error": "there is no project opps; did you mean ops?", "code": "not_found"}
    assert find_mismatches(OF_PROJECTS, answer_of, lambda *_: (404, refusal)) == []


def test_records_policy_and_tokens_make_a_project_known(call: Call, access: AccessStore, store: Store) -> None:
    """A project may be requested before its first exchange, and after its last connection was removed."""
    root = access.add(Holder("operator", "root", None))

    def read_summary(project: str) -> tuple[int, Any]:
        response = call("GET", f"/api/audit/{project}/summary", root)
        return response.status_code, response.json().get("error")

    empty = "there is no project {}; there are no projects yet"
    assert read_summary("stored") == (404, empty.format("stored"))
    assert read_summary("connected") == (404, empty.format("connected"))
    put(store, "scores", history(fallen(0), 1, end=NOW))
    access.add(Holder("connection", "north", "connected"))
    access.add(Holder("operator", "reader", "operated"))
    for project in ("ops", "connected", "operated"):
        assert read_summary(project) == (200, None)
    status, error = read_summary("nothing-near")
    assert status == 404
    assert "nothing-near" in error
    assert "connected, operated, ops" in error


def test_an_invalid_body_is_refused(ask: EndpointCaller, tokens: Tokens) -> None:
    """The error names the problem before anything is done."""

    def refusal_of(key: Key, row: Row) -> tuple[int, str]:
        query, body = row.bad or ("", NO_BODY)
        token = tokens.ops if row.who == "connection" else tokens.root
        return code_of(ask(key, token, query, body, name=holder_of(key)))

    assert find_mismatches(BAD, refusal_of, lambda *_: (400, "invalid")) == []


def test_an_unknown_parameter_is_refused(ask: EndpointCaller, tokens: Tokens) -> None:
    """An ignored typo in a filter would return everything."""

    def refusal_of(key: Key, row: Row) -> tuple[int, str]:
        token = tokens.ops if row.who == "connection" else tokens.root
        return code_of(ask(key, token, "?projekt=ops", row.body, name=holder_of(key)))

    assert find_mismatches(GUARDED, refusal_of, lambda *_: (400, "invalid")) == []
    answer = ask(("GET", "/api/audit/{project}/costs"), tokens.root, "?by=day&projekt=ops").json()["error"]
    assert answer.startswith("projekt: unknown parameter; this call takes ")
    assert "by" in answer


def test_a_request_without_a_token_is_refused(ask: EndpointCaller) -> None:
    """Without a token, no endpoint answers."""
    assert (
        find_mismatches(GUARDED, lambda key, row: code_of(ask(key, None, body=row.body)), lambda *_: (401, "unauthorized"))
        == []
    )


def test_other_projects_are_forbidden(ask: EndpointCaller, access: AccessStore) -> None:
    """An operator with every scope in one project can neither use nor detect other projects."""
    narrow = access.add(Holder("operator", "narrow", "web"))
    table = {key: row for key, row in OPERATED.items() if "{project}" in key[1] or row.everywhere}
    for project in ("ops", "no-such-project"):

        def refusal_of(key: Key, row: Row, project: str = project) -> tuple[int, str]:
            return code_of(ask(key, narrow, body=row.body, project=project))

        assert find_mismatches(table, refusal_of, lambda *_: (403, "other_project")) == []


def test_only_the_required_scope_opens_an_endpoint(ask: EndpointCaller, access: AccessStore) -> None:
    """All other scopes together do not open an endpoint, and its own scope suffices."""
    scoped = {
        scope: [
            access.add(Holder("operator", f"{word}-{scope}", None, scopes=scopes))
            for word, scopes in (("but", frozenset(SCOPES) - {scope}), ("only", frozenset({scope})))
        ]
        for scope in SCOPES
    }

    def refused(key: Key, row: Row) -> tuple[int, str]:
        return code_of(ask(key, scoped[row.who][0], body=row.body))

    def is_allowed(key: Key, row: Row) -> bool:
        return ask(key, scoped[row.who][1], body=row.body, name="only-read").status_code not in {401, 403}

    assert find_mismatches(OPERATED, refused, lambda *_: (403, "scope_required")) == []
    # These endpoints refuse a caller with a single scope, because it would grant other scopes.
    granting_nothing = {key: row for key, row in OPERATED.items() if key[1] not in SCOPE_GRANTING}
    assert find_mismatches(granting_nothing, is_allowed, lambda *_: True) == []


def test_the_other_kind_of_token_is_refused(ask: EndpointCaller, tokens: Tokens, access: AccessStore) -> None:
    """A connection neither reads nor decides, and an operator delivers nothing."""
    reads = access.add(Holder("operator", "reads", None, scopes=frozenset({"read"})))

    def refusal_of(key: Key, row: Row) -> tuple[int, str]:
        return code_of(ask(key, reads if row.who == "connection" else tokens.ops, body=row.body))

    def expected(_: Key, row: Row) -> tuple[int, str]:
        if row.who != "connection":
            return 403, "operator_token_required"
        return 403, "scope_required" if row.both else "connection_token_required"

    assert find_mismatches(GUARDED, refusal_of, expected) == []


def test_the_api_description_has_examples_and_operation_ids(app: FastAPI) -> None:
    """Users copy examples from the page, and generated clients use the names."""
    operations = [operation for methods in app.openapi()["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    parts = [
        part for operation in operations for part in (operation.get("requestBody"), *operation["responses"].values()) if part
    ]
    contents = [part["content"]["application/json"] for part in parts if "application/json" in part.get("content", {})]
    assert [content for content in contents if content.get("schema") and "example" not in content] == []
    assert not any("422" in operation["responses"] for operation in operations)


def test_json_lines_are_described_where_they_are_accepted(app: FastAPI) -> None:
    """A generated client must offer exactly what the server accepts."""
    bodies = {
        path: methods["post"].get("requestBody", {}) for path, methods in app.openapi()["paths"].items() if "post" in methods
    }
    assert {path for path, body in bodies.items() if "application/x-ndjson" in body.get("content", {})} == LINES


def test_prepared_routes_are_complete_before_the_first_call(
    app: FastAPI, call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI builds endpoints on first use, which takes a tenth of a second that the first caller would wait for."""
    prepare_routes(app)
    built: list[str] = []
    get_dependant = fastapi.routing.get_dependant

    def record_path(**arguments: Any) -> Any:
        built.append(arguments["path"])
        return get_dependant(**arguments)

    monkeypatch.setattr(fastapi.routing, "get_dependant", record_path)
    assert call("GET", "/api/audit/projects", tokens.root).status_code == 200
    assert call("GET", "/nowhere", tokens.root).status_code == 404
    assert built == []


def test_every_router_is_part_of_the_application() -> None:
    """Routers are named as text, so a missing one would go unnoticed."""
    service = Path(app_module.__file__).parents[1]
    files = [file.relative_to(service.parent) for file in service.rglob("*.py") if "\nrouter = " in file.read_text()]
    defined = [importlib.import_module(".".join(file.with_suffix("").parts)).router for file in files]
    assert len(defined) == len(app_module.ROUTERS)
    assert set(map(id, app_module.ROUTERS)) == set(map(id, defined))
