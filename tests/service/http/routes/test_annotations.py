"""Annotations of people: over HTTP, on the command line, and as marks on the pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.api_server import NOW, Call, Tokens
from support.pages import cookie, drawn_charts, signed_in
from support.watch_histories import history, put, steady

from analytics.store.store import Store
from service.setup.access import AccessStore, Holder
from service.text.links import Links

PATH = "/api/audit/ops/annotations"
AT, UNTIL = "2026-10-01T06:00:00Z", "2026-10-01T08:00:00Z"


@pytest.fixture(autouse=True)
def scored_project(store: Store) -> None:
    """Store a project with scores."""
    put(store, "scores", history(steady, 3, end=NOW - timedelta(hours=1)))


def test_an_annotation_is_made_changed_and_deleted(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """People correct what they wrote; each change is a record, and the newest counts. The audit log names the annotation."""
    made = call("POST", PATH, tokens.root, json={"text": "Outage", "at": AT, "until": UNTIL})
    assert made.status_code == 201
    note = made.json()["annotation"]
    assert (
        call("POST", PATH, tokens.root, json={"text": "Outage", "at": AT, "until": UNTIL}).json()["annotation"]["id"]
        == note["id"]
    )
    changed = call("PUT", f"{PATH}/{note['id']}", tokens.root, json={"text": "Outage of the model"}).json()["annotation"]
    assert (changed["at"], changed["until"], changed["text"]) == (note["at"], None, "Outage of the model")
    assert call("GET", PATH, tokens.root).json() == {"annotations": [changed], "count": 1}
    assert call("GET", f"{PATH}?since={UNTIL}", tokens.root).json()["count"] == 0
    assert call("DELETE", f"{PATH}/{note['id']}", tokens.root).status_code == 204
    assert call("GET", PATH, tokens.root).json()["count"] == 0
    assert call("DELETE", f"{PATH}/{note['id']}", tokens.root).status_code == 404
    assert {line.subject for line in access.audit_log.lines(10)} == {note["id"]}


def test_only_its_author_and_admins_change_an_annotation(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """A colleague's explanation is evidence; nobody rewrites it in passing."""
    ann, bob = (access.add(Holder("operator", name, "ops", scopes=frozenset({"read", "review"}))) for name in ("ann", "bob"))
    note = call("POST", PATH, ann, json={"text": "New prompt", "at": AT}).json()["annotation"]
    path = f"{PATH}/{note['id']}"
    for answer in (call("PUT", path, bob, json={"text": "x"}), call("DELETE", path, bob)):
        assert (answer.status_code, answer.json()["code"]) == (403, "other_author")
    changed = call("PUT", path, tokens.root, json={"text": "New prompt, 3"}).json()["annotation"]
    assert changed["by"] == "ann"
    assert changed["changedBy"] != "ann"
    assert call("DELETE", path, ann).status_code == 204


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text: is missing"),
        ({"text": " "}, "text: has 0 characters"),
        ({"text": "x", "at": "soon"}, "at: must be a time"),
        ({"text": "x", "at": "2027-01-01T00:00:00Z"}, "at: lies more than a day in the future"),
        ({"text": "x", "at": AT, "until": "2027-01-01T00:00:00Z"}, "until: lies more than a day in the future"),
        ({"text": "x", "at": UNTIL, "until": AT}, "until: must be after at"),
    ],
)
def test_an_invalid_annotation_names_its_field(call: Call, tokens: Tokens, body: dict[str, Any], field: str) -> None:
    """A form shows the message beside its fields."""
    response = call("POST", PATH, tokens.root, json=body)
    assert response.status_code == 400
    assert field in response.text


def test_every_chart_of_the_project_marks_an_annotation(call: Call, tokens: Tokens) -> None:
    """What a person knows explains every measure; a text is shown as text, with its secrets redacted, whoever wrote it."""
    start, end = NOW - timedelta(days=1), NOW - timedelta(hours=12)
    text = "<img src=x onerror=alert(1)> key sk-ant-api03-" + 40 * "a"
    call("POST", PATH, tokens.root, json={"text": text, "at": start.isoformat(), "until": end.isoformat()})
    page = call("GET", Links().project("ops"), headers=cookie(signed_in(call, tokens.root))).text
    assert "<img src=x" not in page
    assert "sk-ant-api03" not in page
    for drawing in drawn_charts(page).values():
        [[position, kind, name, last]] = drawing["marks"]
        assert (position, kind, last) == (12.0, "annotation", 12.5)
        assert name.startswith("<img src=x onerror=alert(1)>")
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= len(drawn_charts(page))
