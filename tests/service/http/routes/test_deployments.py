"""Deployments over HTTP, on the command line, and as marks on the pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.api_server import NOW, Call, Tokens
from support.pages import cookie, drawn_charts, signed_in
from support.watch_histories import history, put, steady

from analytics.store.store import Store
from service.pages.charts import Chart, Point, bars, line
from service.text.links import Links

PATH = "/api/audit/ops/deployments"
AT = "2026-10-01T08:00:00Z"


@pytest.fixture(autouse=True)
def scored_project(store: Store) -> None:
    """Store a project with scores."""
    put(store, "scores", history(steady, 3, end=NOW - timedelta(hours=1)))


def test_a_deployment_is_stored_and_listed(call: Call, tokens: Tokens) -> None:
    """A pipeline records deployments, and people read them."""
    body = {"version": "2.0", "agent": "scout", "at": AT, "by": "ci", "comment": "faster", "url": "https://example.org/2"}
    deployment = call("POST", PATH, tokens.root, json=body)
    assert deployment.status_code == 201
    assert deployment.json()["known"] is False
    listed = call("GET", PATH, tokens.root).json()
    assert listed["deployments"] == [deployment.json()["deployment"]]
    assert body | {"label": "agent_version", "project": "ops", "at": deployment.json()["deployment"]["at"]} == {
        name: value for name, value in listed["deployments"][0].items() if name != "id"
    }


def test_a_repeated_deployment_changes_nothing(call: Call, tokens: Tokens) -> None:
    """Pipelines repeat requests, with a time or without one."""
    for body in ({"version": "2.0", "at": AT}, {"version": "2.0"}, {"version": "3.0"}, {"version": "3.0"}):
        call("POST", PATH, tokens.root, json=body)
    repeated = call("POST", PATH, tokens.root, json={"version": "2.0", "at": AT, "comment": "other"})
    assert repeated.status_code == 200
    assert repeated.json()["known"] is True
    assert [one["version"] for one in call("GET", PATH, tokens.root).json()["deployments"]] == ["3.0", "2.0"]


def test_deployments_can_be_filtered_by_time(call: Call, tokens: Tokens) -> None:
    """The bound `since` is inclusive, `until` is not."""
    for hour in (6, 7, 8):
        call("POST", PATH, tokens.root, json={"version": str(hour), "at": f"2026-10-01T0{hour}:00:00Z"})
    path = f"{PATH}?since=2026-10-01T07:00:00Z&until=2026-10-01T08:00:00Z"
    assert [one["version"] for one in call("GET", path, tokens.root).json()["deployments"]] == ["7"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "version: is missing"),
        ({"version": "2", "at": "soon"}, "at: must be a time"),
        ({"version": "2", "url": "javascript:x"}, "url: must be an http or https address"),
        ({"version": "2", "label": "No"}, "label: 'No' is not a valid label name"),
        ({"version": "2", "lable": "x"}, "lable"),
    ],
)
def test_an_invalid_field_is_named(call: Call, tokens: Tokens, body: dict[str, Any], said: str) -> None:
    """The error must name the invalid field, because only a pipeline's log shows it."""
    response = call("POST", PATH, tokens.root, json=body)
    assert response.status_code == 400
    assert said in response.text


def test_charts_of_the_project_mark_the_deployment(call: Call, tokens: Tokens) -> None:
    """A deployment is a line in the chart and a row in its table, for readers who cannot see the chart."""
    call("POST", PATH, tokens.root, json={"version": "<b>2.0", "at": (NOW - timedelta(days=1)).isoformat()})
    page = call("GET", Links().project("ops"), headers=cookie(signed_in(call, tokens.root))).text
    assert "<b>2.0" not in page
    assert [drawn["marks"] for drawn in drawn_charts(page).values()] == [[[12.0, "deployment", "version <b>2.0"]]] * 3
    assert '<th scope="col" class="number">Changes</th>' in page
    assert "deployed agent_version &lt;b&gt;2.0" in page


def test_a_chart_without_deployments_has_no_column_for_them() -> None:
    """Most charts have none."""
    points = [Point("2026-10-01", 1.0, "10-01"), Point("2026-10-02", 2.0, "10-02")]
    for chart in (line(Chart(key="k", title="t"), points), bars(Chart(key="k", title="t"), points)):
        assert "Changes" not in chart
