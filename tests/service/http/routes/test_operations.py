"""Health, readiness and figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.api_server import BodyBuilder, Call, Tokens

from streams.engine.engine import Engine


def test_a_started_server_is_up_and_ready(call: Call) -> None:
    """Probes have no token."""
    assert ((answer := call("GET", "/healthz")).status_code, answer.json()) == (200, {"status": "ok"})
    assert ((answer := call("GET", "/readyz")).status_code, answer.json()) == (200, {"ready": True})


def test_a_server_that_accepts_no_records_is_up_but_not_ready(
    call: Call, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overloaded server must get no traffic, but must not be restarted."""
    state = replace(engine.state(), ready=False, not_ready_reason="too many records wait")
    monkeypatch.setattr(engine, "state", lambda: state)
    assert call("GET", "/healthz").status_code == 200
    response = call("GET", "/readyz")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "error": "too many records wait", "code": "not_ready"}


def figures(text: str) -> dict[str, float]:
    """Return each metric by its name and labels."""
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def test_metrics_count_events(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name outcomes, endpoints and queues, but no token, project or session."""
    for body in (exchange_body(1), exchange_body(1), exchange_body(1, "Other."), exchange_body(7)):
        call("POST", "/api/audit/ingest", tokens.ops, json=body)
    call("POST", "/api/audit/events", tokens.ops, json={"session_id": "s", "first_seq": 0, "events": [{"event": "x"}, 1]})
    call("GET", "/nowhere/at/all")
    state = replace(engine.state(), judge_calls={"answered": 4}, spent_usd=0.25)
    monkeypatch.setattr(engine, "state", lambda: state)
    text = call("GET", "/metrics", tokens.root).text
    metrics = figures(text)
    outcomes = {
        name.split('"')[1]: value for name, value in metrics.items() if name.startswith("driftline_ingested_exchanges_total")
    }
    assert outcomes == {"scored": 1, "known": 1, "conflict": 1, "sampled_out": 1}
    assert metrics['driftline_ingested_events_total{outcome="refused"}'] == 1
    assert metrics['driftline_judge_questions_total{outcome="answered"}'] == 4
    assert metrics["driftline_judge_cost_usd_total"] == 0.25
    assert metrics['driftline_requests_total{method="GET",route="-",status="404"}'] == 1
    assert metrics['driftline_request_seconds_count{method="POST",route="/api/audit/ingest"}'] == 4
    assert metrics['driftline_queue_size{queue="commits"}'] == 0
    for unwanted in ("ops", "north", "root", "nowhere", "s1", *tokens.root.split("_", 2)[1:]):
        assert f'"{unwanted}' not in text


@pytest.mark.parametrize(
    ("token", "address", "headers", "status"),
    [
        ("root", "203.0.113.9", {}, 200),
        (None, "127.0.0.1", {}, 200),
        (None, "::1", {}, 200),
        (None, "203.0.113.9", {}, 401),
        (None, "127.0.0.1", {"x-forwarded-for": "203.0.113.9"}, 401),
        (None, "127.0.0.1", {"forwarded": "for=203.0.113.9"}, 401),
        ("ops", "203.0.113.9", {}, 403),
        ("ops_reader", "203.0.113.9", {}, 403),
    ],
)
def test_metrics_are_for_operators_of_every_project_and_for_this_machine(
    call: Call, tokens: Tokens, *, token: str | None, address: str, headers: dict[str, str], status: int
) -> None:
    """Requests through a local proxy are not local."""
    secret = getattr(tokens, token) if token else None
    assert call("GET", "/metrics", secret, address=address, headers=headers).status_code == status


def test_a_wrong_token_is_refused_on_this_machine_too(call: Call) -> None:
    """A token is checked even if none is required."""
    assert call("GET", "/metrics", "dl_wrong", address="127.0.0.1").status_code == 401


def test_unknown_methods_add_no_metrics(call: Call, tokens: Tokens) -> None:
    """The number of metrics must be bounded for any requests."""
    for number in range(3):
        call(f"X{number}", "/healthz", headers={"content-type": "application/json"})
    text = call("GET", "/metrics", tokens.root).text
    assert 'driftline_requests_total{method="-",route="/healthz",status="405"} 3.0' in text
