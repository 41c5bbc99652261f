"""Baselines over HTTP: the latest one, and another on request."""

from __future__ import annotations

import pytest
from support.api_server import NOW, Call, Tokens
from support.watch_histories import history, put, steady

from analytics.store.store import Store

BASELINE = "/api/audit/ops/baseline"


def test_without_scores_there_is_no_baseline_and_it_says_so(call: Call, tokens: Tokens) -> None:
    """The answer must explain why the baseline is null."""
    for method, path in (("GET", BASELINE), ("POST", f"{BASELINE}/recompute")):
        body = call(method, path, tokens.root).json()
        assert body["baseline"] is None
        assert "no scores within the window" in body["message"]


def test_a_baseline_is_computed_over_the_window_that_is_asked_for(store: Store, call: Call, tokens: Tokens) -> None:
    """It is what is normal from now on: everything is measured by it."""
    put(store, "scores", history(steady, 20, end=NOW, anomaly=False))
    made = call("POST", f"{BASELINE}/recompute", tokens.root, json={"window": "7d"}).json()["baseline"]
    assert made["project"] == "ops"
    assert made["computedAt"] == "2026-10-01T12:00:00Z"
    assert made["windowStart"] == "2026-09-24T12:00:00Z"
    assert made["windowEnd"] == "2026-10-01T12:00:00Z"
    assert made["exchangeCount"] == 70
    assert list(made["dimensionAverages"]) == ["tier1", "tier2", "tier2_5", "tier3", "anomalyRate"]
    assert made["dimensionAverages"]["tier1"] == {"avg": 1.0, "stddev": 0.0, "count": 70}
    assert made["dimensionAverages"]["tier3"] == {"avg": None, "stddev": None, "count": 0}
    tier2 = made["dimensionAverages"]["tier2"]
    assert 0.8 < tier2["avg"] < 0.9
    assert round(tier2["avg"], 3) == tier2["avg"]
    assert made["dimensionAverages"]["anomalyRate"] == 0.0
    assert call("GET", BASELINE, tokens.root).json() == {"baseline": made}
    assert made == call("GET", "/api/audit/ops/summary", tokens.root).json()["baseline"]


def test_without_a_window_that_of_the_policy_is_taken(store: Store, call: Call, tokens: Tokens) -> None:
    """Fourteen days, unless the policy says otherwise."""
    put(store, "scores", history(steady, 20, end=NOW))
    made = call("POST", f"{BASELINE}/recompute", tokens.root).json()["baseline"]
    assert made["windowStart"] == "2026-09-17T12:00:00Z"


@pytest.mark.parametrize("window", ["14", "0d", "-1d", "14 d", "d", "9999d", "two weeks", 14, ""])
def test_a_window_that_is_none_is_refused(call: Call, tokens: Tokens, window: object) -> None:
    """An invalid window must not be replaced by the default."""
    response = call("POST", f"{BASELINE}/recompute", tokens.root, json={"window": window})
    assert response.status_code == 400
    assert response.json()["error"].startswith("window: ")


def test_only_operators_of_the_project_see_and_change_it(call: Call, tokens: Tokens) -> None:
    """Only operators of the project may define what is normal."""
    for method, path in (("GET", BASELINE), ("POST", f"{BASELINE}/recompute")):
        assert call(method, path).status_code == 401
        assert call(method, path, tokens.ops).status_code == 403
        assert call(method, path.replace("/ops/", "/web/"), tokens.ops_reader).status_code == 403
