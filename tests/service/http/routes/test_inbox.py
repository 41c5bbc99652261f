"""Incidents of all projects over HTTP: one list that filters, orders and pages, within what the token may see."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.api_server import Call, Tokens
from support.builders import START, incident
from support.watch_histories import put

from analytics.store.store import Store

INBOX = "/api/audit/incidents"


@pytest.fixture(autouse=True)
def four_incidents(store: Store) -> None:
    """Store four incidents of two projects."""
    put(
        store,
        "incidents",
        [
            incident(incident_id="a", project="web", severity="warning", detected_at=START, agent="scout"),
            incident(incident_id="b", detected_at=START + timedelta(days=1), status="acknowledged", acknowledged_by="root"),
            incident(incident_id="c", detected_at=START + timedelta(days=2), confidence="suspected"),
            incident(incident_id="d", detected_at=START + timedelta(days=3), status="accepted", title="Anomalies rose"),
        ],
    )


def ids(body: dict[str, Any]) -> list[str]:
    """Return the incidents of an answer, in its order."""
    return [one["id"] for one in body["incidents"]]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["d", "c", "b", "a"]),
        ({"sort": "worst"}, ["b", "a", "c", "d"]),
        ({"status": ["open", "acknowledged"]}, ["c", "b", "a"]),
        ({"status": "accepted"}, ["d"]),
        ({"project": "web"}, ["a"]),
        ({"confirmed": "false"}, ["c"]),
        ({"severity": "warning"}, ["a"]),
        ({"agent": "scout"}, ["a"]),
        ({"assignee": "me"}, ["b"]),
        ({"assignee": "nobody"}, ["d", "c", "a"]),
        ({"text": "anomalies"}, ["d"]),
        ({"type": "anomaly_spike"}, []),
    ],
)
def test_the_list_can_be_filtered_and_sorted(call: Call, tokens: Tokens, asked: dict[str, Any], found: list[str]) -> None:
    """It works as on the page; without a state it has all incidents, like the list of one project."""
    body = call("GET", INBOX, tokens.root, params=asked).json()
    assert ids(body) == found
    assert body["count"] == len(found)
    assert body["total"] == len(found)
    assert body["nextCursor"] is None


def test_pages_continue_the_list(call: Call, tokens: Tokens) -> None:
    """The total covers all pages, the count one page."""
    first = call("GET", INBOX, tokens.root, params={"limit": 3, "sort": "worst"}).json()
    assert ids(first) == ["b", "a", "c"]
    assert first["count"] == 3
    assert first["total"] == 4
    second = call("GET", INBOX, tokens.root, params={"limit": 3, "sort": "worst", "cursor": first["nextCursor"]}).json()
    assert ids(second) == ["d"]
    assert second["nextCursor"] is None


def test_a_token_of_one_project_sees_no_other(call: Call, tokens: Tokens) -> None:
    """Other projects are hidden, whether or not they are requested by name."""
    assert ids(call("GET", INBOX, tokens.ops_reader).json()) == ["d", "c", "b"]
    assert call("GET", INBOX, tokens.ops_reader, params={"project": "web"}).status_code == 403


def test_an_older_acknowledged_incident_belongs_to_its_acknowledger(call: Call, tokens: Tokens) -> None:
    """Records of earlier versions have no assignee; the person who acknowledged is shown instead."""
    (incident,) = call("GET", INBOX, tokens.root, params={"assignee": "root"}).json()["incidents"]
    assert incident["assignee"] == "root"
    assert incident["acknowledgedBy"] == "root"
    assert incident["assignedAt"] is None


@pytest.mark.parametrize("asked", ["sort=odd", "status=odd", "severity=odd", "limit=0", "text=", "cursor=odd", "colour=red"])
def test_an_invalid_filter_is_named(call: Call, tokens: Tokens, asked: str) -> None:
    """An ignored filter would return everything."""
    answer = call("GET", f"{INBOX}?{asked}", tokens.root)
    assert answer.status_code == 400
    assert asked.partition("=")[0] in answer.json()["error"]


BULK = f"{INBOX}/bulk"


def selected(*ids: str, project: str = "ops") -> list[dict[str, str]]:
    """Return a selection of incidents of a project."""
    return [{"project": project, "id": one} for one in ids]


def test_a_bulk_change_has_one_reason_and_a_result_per_incident(call: Call, tokens: Tokens) -> None:
    """A missing incident must not prevent the changes of the others."""
    change = {
        "incidents": [*selected("c", "none", "b"), *selected("a", project="web")],
        "status": "dismissed",
        "comment": "test",
    }
    body = call("POST", BULK, tokens.root, json=change).json()
    assert body["done"] == 3
    assert body["failed"] == 1
    assert [(one["id"], one["done"], one["status"]) for one in body["results"]] == [
        ("c", True, "dismissed"),
        ("none", False, None),
        ("b", True, "dismissed"),
        ("a", True, "dismissed"),
    ]
    assert body["results"][1]["code"] == "not_found"
    assert ids(call("GET", INBOX, tokens.root, params={"status": ["open", "acknowledged"]}).json()) == []
    (event,) = call("GET", "/api/audit/web/incidents/a", tokens.root).json()["history"]
    assert event["kind"] == "decision"
    assert event["by"] == "root"
    assert event["status"] == "dismissed"
    assert event["comment"] == "test"


def test_a_token_of_one_project_changes_no_other(call: Call, tokens: Tokens) -> None:
    """Foreign incidents are refused, whether or not the project exists."""
    change = {"incidents": [*selected("b"), *selected("a", project="web"), *selected("a", project="nosuch")], "assignee": "me"}
    body = call("POST", BULK, tokens.ops_reader, json=change).json()
    assert [one["code"] for one in body["results"]] == [None, "other_project", "other_project"]
    assert [one["assignee"] for one in body["results"]] == ["reader", None, None]
    assert call("GET", "/api/audit/web/incidents/a", tokens.root).json()["incident"]["status"] == "open"


def test_an_incident_is_assigned_only_to_people_who_may_see_it(call: Call, tokens: Tokens) -> None:
    """An incident assigned to a misspelt name would appear in nobody's list."""
    body = {"incidents": [*selected("b"), *selected("a", project="web")], "assignee": "reader"}
    first, second = call("POST", BULK, tokens.root, json=body).json()["results"]
    assert first["assignee"] == "reader"
    assert first["done"] is True
    assert second["done"] is False
    assert second["code"] == "invalid"
    assert second["error"].startswith("assignee: ")
    assert "project web; there are root" in second["error"]
    answer = call("PUT", "/api/audit/ops/incidents/b", tokens.root, json={"assignee": "raeder"})
    assert answer.status_code == 400
    assert "did you mean reader?" in answer.json()["error"]
    for nobody in (None, "nobody"):
        call("PUT", "/api/audit/ops/incidents/b", tokens.root, json={"assignee": "me"})
        answer = call("PUT", "/api/audit/ops/incidents/b", tokens.root, json={"assignee": nobody})
        assert None is answer.json()["incident"]["assignee"]


def test_a_comment_alone_is_kept_in_the_history(call: Call, tokens: Tokens) -> None:
    """People discuss an incident before they decide on it, so a comment changes no state."""
    before = call("GET", "/api/audit/ops/incidents/b", tokens.root).json()
    after = call("PUT", "/api/audit/ops/incidents/b", tokens.root, json={"comment": "the prompt?"}).json()
    assert after["incident"] == before["incident"]
    assert after["decisions"] == []
    assert after["history"][0]["comment"] == "the prompt?"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"status": "dismissed"}, "incidents"),
        ({"incidents": [], "status": "dismissed"}, "incidents"),
        ({"incidents": selected(*(f"i{number}" for number in range(501))), "status": "dismissed"}, "incidents"),
        ({"incidents": [{"id": "b"}], "status": "dismissed"}, "project"),
        ({"incidents": selected("b")}, "status"),
        ({"incidents": selected("b"), "comment": "  "}, "status"),
        ({"incidents": selected("b"), "status": "open", "newNormal": True}, "newNormal"),
        ({"incidents": selected("b"), "status": "odd"}, "status"),
        ({"incidents": selected("b"), "comment": "x" * 10_001}, "comment"),
        ({"incidents": selected("b"), "state": "open"}, "state"),
    ],
)
def test_an_invalid_change_is_refused_with_its_field(call: Call, tokens: Tokens, body: dict[str, Any], field: str) -> None:
    """The error names the field, and nothing is changed."""
    answer = call("POST", BULK, tokens.root, json=body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]


def test_the_audit_log_names_the_changed_incidents(call: Call, tokens: Tokens) -> None:
    """The audit log names the changed incidents, even of bulk changes."""
    call("POST", BULK, tokens.root, json={"incidents": selected("b", "c"), "assignee": "me"})
    line = call("GET", "/api/audit/audit-log", tokens.root).json()["lines"][0]
    assert line["route"] == BULK
    assert line["subject"] == "2 incidents: b c"
    assert line["outcome"] == "done"
