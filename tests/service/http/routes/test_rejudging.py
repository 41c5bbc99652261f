"""Judging again over HTTP: an operator of the project asks, and the background does it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.api_server import BodyBuilder, Call, Tokens, engine_of
from support.engines import live_judge

from analytics.store.store import Store
from driftline_trial.simulator import running
from streams.engine.engine import Engine

REJUDGE = "/api/audit/ops/rejudge"


@pytest.fixture
def judged_by_nobody() -> bool:
    """Return whether the server has no judge."""
    return False


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, judged_by_nobody: bool) -> Iterator[Engine]:
    """Yield a started engine whose judge refuses at first."""
    with running("refusal*2,answer") as simulator:
        started = engine_of(store, None if judged_by_nobody else live_judge(simulator.base_url))
        loop.run(started.start())
        yield started
        loop.run(started.stop())


def test_unscored_exchanges_can_be_judged_again(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, loop: asyncio.Runner
) -> None:
    """While a server uses the database, rejudging must go through it."""
    call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(1))
    loop.run(engine.wait_until_drained())
    assert call("GET", "/api/audit/ops/scores", tokens.root).json()["scores"][0]["disposition"] == "unscored"
    other = call("POST", REJUDGE, tokens.root, json={"reason": "timeout"})
    response = call("POST", REJUDGE, tokens.root, json={"reason": "refused"})
    assert other.status_code == 202
    assert other.json() == {"requested": 0}
    assert response.status_code == 202
    assert response.json() == {"requested": 1}
    loop.run(engine.wait_until_drained())
    [score] = call("GET", "/api/audit/ops/scores", tokens.root).json()["scores"]
    assert score["disposition"] == "scored"
    assert score["revision"] == 1
    assert score["simulated"] is True


@pytest.mark.parametrize("judged_by_nobody", [True])
def test_without_a_judge_a_request_is_refused(call: Call, tokens: Tokens) -> None:
    """A request without effect is refused, and nothing is written."""
    response = call("POST", REJUDGE, tokens.root, json={})
    assert response.status_code == 409
    assert response.json()["code"] == "no_judge"


@pytest.mark.parametrize("body", [{"limit": 0}, {"limit": "5"}, {"reason": "Drop Table"}, {"reason": "tiemout"}])
def test_an_invalid_request_is_refused(call: Call, tokens: Tokens, body: dict[str, object]) -> None:
    """The error names the field."""
    response = call("POST", REJUDGE, tokens.root, json=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(next(iter(body)))


def test_a_connection_may_not_request_rejudging(call: Call, tokens: Tokens) -> None:
    """Rejudging costs money."""
    assert call("POST", REJUDGE, tokens.ops, json={}).status_code == 403
