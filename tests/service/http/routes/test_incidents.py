"""Incidents over HTTP: listed with their evidence, decided on by people, found on request."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_server import NOW, Call, Tokens
from support.watch_histories import fallen, history, put, steady

from analytics.store.store import Store

INCIDENTS = "/api/audit/ops/incidents"
CHECK = "/api/audit/ops/check"
FIELDS = [
    "id",
    "project",
    "type",
    "status",
    "severity",
    "title",
    "description",
    "metadata",
    "detectedAt",
    "resolvedAt",
    "resolvedBy",
]


@pytest.fixture
def found(store: Store, call: Call, tokens: Tokens) -> dict[str, Any]:
    """The one incident of a project whose Tier 2 fell."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    (incident,) = call("POST", CHECK, tokens.root).json()["incidents"]
    return dict(incident)


def test_a_check_answers_what_it_found(store: Store, call: Call, tokens: Tokens) -> None:
    """A check on request answers immediately."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    body = call("POST", CHECK, tokens.root).json()
    assert body["project"] == "ops"
    assert body["asOf"] == "2026-10-01T12:00:00Z"
    assert body["baseline"]["exchangeCount"] == 140
    assert {(one["rule"], one["type"], one["tier"], one["direction"]) for one in body["findings"]} == {
        ("sequential", "drift", "tier2", "down"),
        ("consecutive_days", "drift", "tier2", "down"),
    }
    assert body["opened"] == [one["id"] for one in body["incidents"]]
    again = call("POST", CHECK, tokens.root).json()
    assert again["incidents"] == []
    assert again["opened"] == []


def test_an_empty_project_has_no_incident(call: Call, tokens: Tokens) -> None:
    """Projects come into being with their first record."""
    assert call("GET", INCIDENTS, tokens.root).json() == {"incidents": [], "count": 0, "nextCursor": None}
    assert call("POST", CHECK, tokens.root).json()["findings"] == []


def test_a_project_that_is_not_audited_is_not_checked(call: Call, tokens: Tokens) -> None:
    """The policy excludes the project from checks."""
    assert call("POST", "/api/audit/dark/check", tokens.root).status_code == 409


def test_an_incident_is_listed_and_shown_with_its_evidence(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """Every number must be traceable to its evidence."""
    listed = call("GET", INCIDENTS, tokens.root).json()
    assert [one["id"] for one in listed["incidents"]] == [found["id"]]
    assert listed["count"] == 1
    assert [name for name in listed["incidents"][0] if name in FIELDS] == FIELDS
    shown = call("GET", f"{INCIDENTS}/{found['id']}", tokens.root).json()
    evidence = shown["incident"]["metadata"]
    assert evidence["rules"]["sequential"]["firstDay"] == "2026-09-26"
    assert evidence["baseline"]["id"] == shown["incident"]["baselineId"]
    assert len(evidence["exchanges"]) == 10
    assert all(query["sql"].startswith("-- purpose: ") for query in evidence["queries"])
    assert [query for query in listed["incidents"][0]["metadata"]["queries"] if "sql" in query] == []
    assert shown["decisions"] == []


def test_summary_and_banner_count_open_incidents(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """The count must include open incidents."""
    assert call("GET", "/api/audit/ops/summary", tokens.root).json()["openIncidents"] == 1
    assert call("GET", "/api/audit/ops/banner", tokens.root).text.endswith("Open incidents: 1")
    call("PUT", f"{INCIDENTS}/{found['id']}", tokens.root, json={"status": "dismissed"})
    assert call("GET", "/api/audit/ops/summary", tokens.root).json()["openIncidents"] == 0


@pytest.mark.parametrize(
    ("body", "decision"),
    [
        ({"status": "resolved"}, "resolved"),
        ({"status": "resolved", "newNormal": True}, "new_normal"),
        ({"status": "accepted"}, "new_normal"),
        ({"status": "dismissed"}, "dismissed"),
    ],
)
def test_a_decision_says_who_and_when_and_is_taken_back_by_re_opening(
    call: Call, tokens: Tokens, found: dict[str, Any], body: dict[str, Any], decision: str
) -> None:
    """A decision names its author and time, and request bodies of the previous version keep their meaning."""
    path, given = f"{INCIDENTS}/{found['id']}", body
    body = call("PUT", path, tokens.root, json={**given, "resolvedBy": "ann", "comment": "seen"}).json()
    told = body["incident"]
    state = "dismissed" if decision == "dismissed" else "resolved"
    resolution = {"resolved": "fixed", "new_normal": "new_normal"}.get(decision)
    assert told["status"] == state
    assert told["resolution"] == resolution
    assert told["status"] == state
    assert told["resolvedBy"] == "ann"
    assert told["resolvedAt"] == "2026-10-01T12:00:00Z"
    by = "ann (entered by root)"
    assert body["decisions"] == [{"status": decision, "by": by, "comment": "seen", "at": "2026-10-01T12:00:00Z"}]
    assert call("PUT", path, tokens.root, json={**given, "resolvedBy": "bob"}).json() == body
    again = call("PUT", path, tokens.root, json={"status": "open"}).json()
    assert tuple(again["incident"][name] for name in ("status", "resolvedBy", "resolvedAt")) == ("open", None, None)
    assert {one["by"] for one in again["decisions"]} == {"root", by}
    assert again == call("GET", path, tokens.root).json()


def test_acknowledged_is_open_with_a_name(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """An acknowledged incident is still open."""
    path = f"{INCIDENTS}/{found['id']}"
    told = call("PUT", path, tokens.root, json={"status": "acknowledged", "resolvedBy": "ann"}).json()["incident"]
    assert told["status"] == "acknowledged"
    assert told["acknowledgedBy"] == "ann"
    assert told["acknowledgedAt"] == "2026-10-01T12:00:00Z"
    assert told["resolvedBy"] is None
    assert told["resolution"] is None
    assert call("GET", "/api/audit/ops/summary", tokens.root).json()["openIncidents"] == 1
    (row,) = (one for one in call("GET", "/api/audit/projects", tokens.root).json()["projects"] if one["project"] == "ops")
    assert row["openIncidents"] == 1
    assert row["acknowledgedIncidents"] == 1
    assert row["suspectedIncidents"] == 0


def test_what_moved_is_listed_with_when_and_how_far(found: dict[str, Any]) -> None:
    """A title names the worst of it; the list has all."""
    (moved,) = found["moved"]
    assert (*(moved[name] for name in ("series", "direction", "kind", "leads", "confirmed", "fellToo")),) == (
        "tier2",
        "down",
        "mean",
        True,
        True,
        False,
    )
    assert 0.8 < moved["from"] < 0.9
    assert 0.4 < moved["to"] < 0.5
    assert moved["interval"][0] <= moved["since"] <= moved["interval"][1]
    assert found["confidence"] == "confirmed"
    assert found["firstDay"] == moved["since"]
    assert found["lastDay"] is None


def test_incidents_are_listed_by_several_states_and_by_confidence(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """The person on call filters for incidents that are not over."""
    call("PUT", f"{INCIDENTS}/{found['id']}", tokens.root, json={"status": "acknowledged"})
    asked = {
        "status=open&status=acknowledged": 1,
        "status=open": 0,
        "status=acknowledged&confirmed=true": 1,
        "confirmed=false": 0,
        "status=accepted": 0,
    }
    for query, count in asked.items():
        assert count == call("GET", f"{INCIDENTS}?{query}", tokens.root).json()["count"], query


def test_secrets_in_a_comment_are_replaced(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """People may paste secrets into comments."""
    secret = "sk-ant-api03-" + "a1B2c3D4" * 6
    body = call("PUT", f"{INCIDENTS}/{found['id']}", tokens.root, json={"status": "accepted", "comment": f"it had {secret}"})
    assert body.status_code == 200
    assert secret not in body.text
    assert "[SECRET:" in body.json()["decisions"][0]["comment"]


def test_incidents_are_listed_by_state_and_type_a_page_at_a_time(store: Store, call: Call, tokens: Tokens) -> None:
    """Dashboards show open incidents first and load others while scrolling."""
    put(store, "scores", history(fallen(6), 40, end=NOW, tier1_score=1.0))
    put(store, "scores", history(steady, 2, name="-odd", end=NOW, seed=3, anomaly=True, tier1_score=0.0))
    ids = {one["id"] for one in call("POST", CHECK, tokens.root).json()["incidents"]}
    assert len(ids) >= 2
    first = call("GET", INCIDENTS, tokens.root, params={"limit": 1}).json()
    seen, cursor = [one["id"] for one in first["incidents"]], first["nextCursor"]
    while cursor:
        page = call("GET", INCIDENTS, tokens.root, params={"limit": 1, "cursor": cursor}).json()
        seen, cursor = [*seen, *(one["id"] for one in page["incidents"])], page["nextCursor"]
    assert sorted(ids) == sorted(seen)
    spikes = call("GET", INCIDENTS, tokens.root, params={"type": "anomaly_spike"}).json()["incidents"]
    assert {one["type"] for one in spikes} == {"anomaly_spike"}
    assert call("GET", INCIDENTS, tokens.root, params={"status": "accepted"}).json()["count"] == 0


@pytest.mark.parametrize("query", ["status=closed", "type=silence", "limit=0", "limit=1001", "cursor=x!"])
def test_a_wrong_question_is_refused_by_the_name_of_its_field(call: Call, tokens: Tokens, query: str) -> None:
    """An invalid filter must not be ignored, which would return everything."""
    response = call("GET", f"{INCIDENTS}?{query}", tokens.root)
    field = query.split("=", maxsplit=1)[0]
    assert response.status_code == 400
    assert response.json()["error"].startswith((f"{field}: ", f"{field}[0]: "))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"status": "closed"},
        {"status": 1},
        {"status": "open", "resolvedBy": ""},
        {"status": "dismissed", "newNormal": True},
        [],
        "x",
    ],
)
def test_a_wrong_decision_is_refused(call: Call, tokens: Tokens, found: dict[str, Any], body: object) -> None:
    """A misspelt state must change nothing."""
    assert call("PUT", f"{INCIDENTS}/{found['id']}", tokens.root, json=body).status_code == 400
    assert call("GET", f"{INCIDENTS}/{found['id']}", tokens.root).json()["incident"]["status"] == "open"


def test_what_is_not_there_is_not_found(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """An incident of another project must not be found here."""
    for path in (f"{INCIDENTS}/none", f"/api/audit/web/incidents/{found['id']}"):
        assert call("GET", path, tokens.root).status_code == 404
        assert call("PUT", path, tokens.root, json={"status": "accepted"}).status_code == 404


@pytest.mark.parametrize("status", ["accepted", "open"])
def test_of_two_of_a_kind_one_is_open(store: Store, call: Call, tokens: Tokens, found: dict[str, Any], status: str) -> None:
    """Two open incidents about one change would be decided differently by two people."""
    import msgspec

    from analytics.queries import query_records
    from schemas.records import Incident

    path = f"{INCIDENTS}/{found['id']}"
    call("PUT", path, tokens.root, json={"status": "accepted"})
    (known,) = query_records(store.cursor(), "incident_by_id", Incident, {"project": None, "incident": found["id"]})
    put(store, "incidents", [msgspec.structs.replace(known, incident_id="other", revision=0, status="open")])
    assert call("PUT", path, tokens.root, json={"status": status}).status_code == (409 if status == "open" else 200)


def test_only_operators_of_the_project_read_and_decide(call: Call, tokens: Tokens, found: dict[str, Any]) -> None:
    """Others must not learn whether an incident exists."""
    calls = [
        ("GET", INCIDENTS, None),
        ("GET", f"{INCIDENTS}/{found['id']}", None),
        ("PUT", f"{INCIDENTS}/{found['id']}", {"status": "accepted"}),
        ("POST", CHECK, None),
    ]
    for method, path, body in calls:
        given = {} if body is None else {"json": body}
        assert call(method, path, **given).status_code == 401
        assert call(method, path, tokens.ops, **given).status_code == 403
        elsewhere = path.replace("/ops/", "/web/")
        assert call(method, elsewhere, tokens.ops_reader, **given).status_code == 403
