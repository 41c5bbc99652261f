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
    """Whether the server has no judge."""
    return False


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, judged_by_nobody: bool) -> Iterator[Engine]:
    """A started engine whose judge refuses at first."""
    with running("refusal*2,answer") as simulator:
        started = engine_of(store, None if judged_by_nobody else live_judge(simulator.base_url))
        loop.run(started.start())
        yield started
        loop.run(started.stop())


def test_what_stayed_unscored_is_judged_again(
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
def test_without_a_judge_there_is_nothing_to_ask(call: Call, tokens: Tokens) -> None:
    """A request that can come to nothing is refused, and nothing is written."""
    response = call("POST", REJUDGE, tokens.root, json={})
    assert response.status_code == 409
    assert response.json()["code"] == "no_judge"


@pytest.mark.parametrize("body", [{"limit": 0}, {"limit": "5"}, {"reason": "Drop Table"}, {"reason": "tiemout"}])
def test_a_wrong_wish_is_refused(call: Call, tokens: Tokens, body: dict[str, object]) -> None:
    """By the name of its field."""
    response = call("POST", REJUDGE, tokens.root, json=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(next(iter(body)))


def test_a_connection_may_not_ask(call: Call, tokens: Tokens) -> None:
    """It costs money."""
    assert call("POST", REJUDGE, tokens.ops, json={}).status_code == 403
