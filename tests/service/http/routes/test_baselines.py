"""Baselines over HTTP: the latest one, and another on request."""

from __future__ import annotations

import pytest
from support.api_server import NOW, Call, Tokens
from support.watch_histories import history, put, steady

from analytics.store.store import Store

BASELINE = "/api/audit/ops/baseline"


def test_without_scores_the_baseline_is_null_with_a_reason(call: Call, tokens: Tokens) -> None:
    """The answer must explain why the baseline is null."""
    for method, path in (("GET", BASELINE), ("POST", f"{BASELINE}/recompute")):
        body = call(method, path, tokens.root).json()
        assert body["baseline"] is None
        assert "no scores within the window" in body["message"]


def test_a_baseline_covers_the_requested_window(store: Store, call: Call, tokens: Tokens) -> None:
    """Later scores are compared with it."""
    put(store, "scores", history(steady, 20, end=NOW, anomaly=False))
    baseline = call("POST", f"{BASELINE}/recompute", tokens.root, json={"window": "7d"}).json()["baseline"]
    assert baseline["project"] == "ops"
    assert baseline["computedAt"] == "2026-10-01T12:00:00Z"
    assert baseline["windowStart"] == "2026-09-24T12:00:00Z"
    assert baseline["windowEnd"] == "2026-10-01T12:00:00Z"
    assert baseline["exchangeCount"] == 70
    assert list(baseline["dimensionAverages"]) == ["tier1", "tier2", "tier2_5", "tier3", "anomalyRate"]
    assert baseline["dimensionAverages"]["tier1"] == {"avg": 1.0, "stddev": 0.0, "count": 70}
    assert baseline["dimensionAverages"]["tier3"] == {"avg": None, "stddev": None, "count": 0}
    tier2 = baseline["dimensionAverages"]["tier2"]
    assert 0.8 < tier2["avg"] < 0.9
    assert round(tier2["avg"], 3) == tier2["avg"]
    assert baseline["dimensionAverages"]["anomalyRate"] == 0.0
    assert call("GET", BASELINE, tokens.root).json() == {"baseline": baseline}
    assert baseline == call("GET", "/api/audit/ops/summary", tokens.root).json()["baseline"]


def test_the_default_window_is_that_of_the_policy(store: Store, call: Call, tokens: Tokens) -> None:
    """It is fourteen days unless the policy sets another one."""
    put(store, "scores", history(steady, 20, end=NOW))
    baseline = call("POST", f"{BASELINE}/recompute", tokens.root).json()["baseline"]
    assert baseline["windowStart"] == "2026-09-17T12:00:00Z"


@pytest.mark.parametrize("window", ["14", "0d", "-1d", "14 d", "d", "9999d", "two weeks", 14, ""])
def test_an_invalid_window_is_refused(call: Call, tokens: Tokens, window: object) -> None:
    """An invalid window must not be replaced by the default."""
    response = call("POST", f"{BASELINE}/recompute", tokens.root, json={"window": window})
    assert response.status_code == 400
    assert response.json()["error"].startswith("window: ")


def test_only_operators_of_the_project_see_and_change_the_baseline(call: Call, tokens: Tokens) -> None:
    """Only operators of the project may define what is normal."""
    for method, path in (("GET", BASELINE), ("POST", f"{BASELINE}/recompute")):
        assert call(method, path).status_code == 401
        assert call(method, path, tokens.ops).status_code == 403
        assert call(method, path.replace("/ops/", "/web/"), tokens.ops_reader).status_code == 403
