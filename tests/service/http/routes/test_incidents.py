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
def declined(store: Store, call: Call, tokens: Tokens) -> dict[str, Any]:
    """Return the incident of a project whose Tier 2 fell."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    (incident,) = call("POST", CHECK, tokens.root).json()["incidents"]
    return dict(incident)


def test_a_check_returns_its_findings(store: Store, call: Call, tokens: Tokens) -> None:
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
    second_check = call("POST", CHECK, tokens.root).json()
    assert second_check["incidents"] == []
    assert second_check["opened"] == []


def test_an_empty_project_has_no_incident(call: Call, tokens: Tokens) -> None:
    """Projects come into being with their first record."""
    assert call("GET", INCIDENTS, tokens.root).json() == {"incidents": [], "count": 0, "nextCursor": None}
    assert call("POST", CHECK, tokens.root).json()["findings"] == []


def test_an_unaudited_project_is_not_checked(call: Call, tokens: Tokens) -> None:
    """The policy excludes the project from checks."""
    assert call("POST", "/api/audit/dark/check", tokens.root).status_code == 409


def test_an_incident_is_listed_and_shown_with_its_evidence(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """Every number must be traceable to its evidence."""
    listed = call("GET", INCIDENTS, tokens.root).json()
    assert [one["id"] for one in listed["incidents"]] == [declined["id"]]
    assert listed["count"] == 1
    assert [name for name in listed["incidents"][0] if name in FIELDS] == FIELDS
    detail = call("GET", f"{INCIDENTS}/{declined['id']}", tokens.root).json()
    evidence = detail["incident"]["metadata"]
    assert evidence["rules"]["sequential"]["firstDay"] == "2026-09-26"
    assert evidence["baseline"]["id"] == detail["incident"]["baselineId"]
    assert len(evidence["exchanges"]) == 10
    assert all(query["sql"].startswith("-- purpose: ") for query in evidence["queries"])
    assert [query for query in listed["incidents"][0]["metadata"]["queries"] if "sql" in query] == []
    assert detail["decisions"] == []


def test_summary_and_banner_count_open_incidents(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """The count must include open incidents."""
    assert call("GET", "/api/audit/ops/summary", tokens.root).json()["openIncidents"] == 1
    assert call("GET", "/api/audit/ops/banner", tokens.root).text.endswith("Open incidents: 1")
    call("PUT", f"{INCIDENTS}/{declined['id']}", tokens.root, json={"status": "dismissed"})
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
def test_a_decision_names_author_and_time_and_reopening_withdraws_it(
    call: Call, tokens: Tokens, declined: dict[str, Any], body: dict[str, Any], decision: str
) -> None:
    """A decision names its author and time, and request bodies of the previous version keep their meaning."""
    path, request = f"{INCIDENTS}/{declined['id']}", body
    body = call("PUT", path, tokens.root, json={**request, "resolvedBy": "ann", "comment": "seen"}).json()
    incident = body["incident"]
    state = "dismissed" if decision == "dismissed" else "resolved"
    resolution = {"resolved": "fixed", "new_normal": "new_normal"}.get(decision)
    assert incident["status"] == state
    assert incident["resolution"] == resolution
    assert incident["status"] == state
    assert incident["resolvedBy"] == "ann"
    assert incident["resolvedAt"] == "2026-10-01T12:00:00Z"
    by = "ann (entered by root)"
    assert body["decisions"] == [{"status": decision, "by": by, "comment": "seen", "at": "2026-10-01T12:00:00Z"}]
    assert call("PUT", path, tokens.root, json={**request, "resolvedBy": "bob"}).json() == body
    reopened = call("PUT", path, tokens.root, json={"status": "open"}).json()
    assert tuple(reopened["incident"][name] for name in ("status", "resolvedBy", "resolvedAt")) == ("open", None, None)
    assert {one["by"] for one in reopened["decisions"]} == {"root", by}
    assert reopened == call("GET", path, tokens.root).json()


def test_an_acknowledged_incident_is_open(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """An acknowledged incident is still open."""
    path = f"{INCIDENTS}/{declined['id']}"
    incident = call("PUT", path, tokens.root, json={"status": "acknowledged", "resolvedBy": "ann"}).json()["incident"]
    assert incident["status"] == "acknowledged"
    assert incident["acknowledgedBy"] == "ann"
    assert incident["acknowledgedAt"] == "2026-10-01T12:00:00Z"
    assert incident["resolvedBy"] is None
    assert incident["resolution"] is None
    assert call("GET", "/api/audit/ops/summary", tokens.root).json()["openIncidents"] == 1
    (row,) = (one for one in call("GET", "/api/audit/projects", tokens.root).json()["projects"] if one["project"] == "ops")
    assert row["openIncidents"] == 1
    assert row["acknowledgedIncidents"] == 1
    assert row["suspectedIncidents"] == 0


def test_every_changed_series_is_listed_with_its_start_and_size(declined: dict[str, Any]) -> None:
    """The title names only the worst of them."""
    (moved,) = declined["moved"]
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
    assert declined["confidence"] == "confirmed"
    assert declined["firstDay"] == moved["since"]
    assert declined["lastDay"] is None


def test_incidents_can_be_filtered_by_states_and_confidence(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """The person on call filters for incidents that are not over."""
    call("PUT", f"{INCIDENTS}/{declined['id']}", tokens.root, json={"status": "acknowledged"})
    queries = {
        "status=open&status=acknowledged": 1,
        "status=open": 0,
        "status=acknowledged&confirmed=true": 1,
        "confirmed=false": 0,
        "status=accepted": 0,
    }
    for query, count in queries.items():
        assert count == call("GET", f"{INCIDENTS}?{query}", tokens.root).json()["count"], query


def test_secrets_in_a_comment_are_redacted(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """People may paste secrets into comments."""
    secret = "sk-ant-api03-" + "a1B2c3D4" * 6
    body = call("PUT", f"{INCIDENTS}/{declined['id']}", tokens.root, json={"status": "accepted", "comment": f"it had {secret}"})
    assert body.status_code == 200
    assert secret not in body.text
    assert "[SECRET:" in body.json()["decisions"][0]["comment"]


def test_incidents_can_be_filtered_by_state_and_type_in_pages(store: Store, call: Call, tokens: Tokens) -> None:
    """Dashboards show open incidents first and load others while scrolling."""
    put(store, "scores", history(fallen(6), 40, end=NOW, tier1_score=1.0))
    put(store, "scores", history(steady, 2, name="-odd", end=NOW, seed=3, anomaly=True, tier1_score=1.0))
    ids = {one["id"] for one in call("POST", CHECK, tokens.root).json()["incidents"]}
    assert len(ids) >= 2
    first = call("GET", INCIDENTS, tokens.root, params={"limit": 1}).json()
    paged_ids, cursor = [one["id"] for one in first["incidents"]], first["nextCursor"]
    while cursor:
        page = call("GET", INCIDENTS, tokens.root, params={"limit": 1, "cursor": cursor}).json()
        paged_ids, cursor = [*paged_ids, *(one["id"] for one in page["incidents"])], page["nextCursor"]
    assert sorted(ids) == sorted(paged_ids)
    spikes = call("GET", INCIDENTS, tokens.root, params={"type": "anomaly_spike"}).json()["incidents"]
    assert {one["type"] for one in spikes} == {"anomaly_spike"}
    assert call("GET", INCIDENTS, tokens.root, params={"status": "accepted"}).json()["count"] == 0


@pytest.mark.parametrize("query", ["status=closed", "type=silence", "limit=0", "limit=1001", "cursor=x!"])
def test_an_invalid_query_is_refused_with_its_field(call: Call, tokens: Tokens, query: str) -> None:
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
def test_an_invalid_decision_is_refused(call: Call, tokens: Tokens, declined: dict[str, Any], body: object) -> None:
    """A misspelt state must change nothing."""
    assert call("PUT", f"{INCIDENTS}/{declined['id']}", tokens.root, json=body).status_code == 400
    assert call("GET", f"{INCIDENTS}/{declined['id']}", tokens.root).json()["incident"]["status"] == "open"


def test_an_incident_of_another_project_is_not_found(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """An incident of another project must not be found here."""
    for path in (f"{INCIDENTS}/none", f"/api/audit/web/incidents/{declined['id']}"):
        assert call("GET", path, tokens.root).status_code == 404
        assert call("PUT", path, tokens.root, json={"status": "accepted"}).status_code == 404


@pytest.mark.parametrize("status", ["accepted", "open"])
def test_only_one_of_two_equal_incidents_is_open(
    store: Store, call: Call, tokens: Tokens, declined: dict[str, Any], status: str
) -> None:
    """Two open incidents about one change would be decided differently by two people."""
    import msgspec

    from analytics.queries import query_records
    from schemas.records import Incident

    path = f"{INCIDENTS}/{declined['id']}"
    call("PUT", path, tokens.root, json={"status": "accepted"})
    (incident,) = query_records(store.cursor(), "incident_by_id", Incident, {"project": None, "incident": declined["id"]})
    put(store, "incidents", [msgspec.structs.replace(incident, incident_id="other", revision=0, status="open")])
    assert call("PUT", path, tokens.root, json={"status": status}).status_code == (409 if status == "open" else 200)


def test_only_operators_of_the_project_read_and_decide(call: Call, tokens: Tokens, declined: dict[str, Any]) -> None:
    """Others must not learn whether an incident exists."""
    calls = [
        ("GET", INCIDENTS, None),
        ("GET", f"{INCIDENTS}/{declined['id']}", None),
        ("PUT", f"{INCIDENTS}/{declined['id']}", {"status": "accepted"}),
        ("POST", CHECK, None),
    ]
    for method, path, body in calls:
        request = {} if body is None else {"json": body}
        assert call(method, path, **request).status_code == 401
        assert call(method, path, tokens.ops, **request).status_code == 403
        elsewhere = path.replace("/ops/", "/web/")
        assert call(method, elsewhere, tokens.ops_reader, **request).status_code == 403
