"""Outlines of incidents: what lists read of the evidence says what the evidence says, whatever becomes of the incident."""

from __future__ import annotations

import json

import pytest
from support.builders import incident
from support.engines import rows

from analytics.deletion.deleting import ErasureScope
from analytics.deletion.retention import ErasureRun
from analytics.queries import query_rows
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import Incident

MOVED = [{"from": 0.9, "to": 0.4, "agent": "scout", "leads": True}]
RULES = {"sequential": {"since": "2026-10-01", "sigma": None}}


def build_incident(incident_id: str, revision: int = 0, **evidence: object) -> Incident:
    """Return an incident of Tier 2 with this evidence."""
    return incident(
        incident_id=incident_id,
        revision=revision,
        type="drift",
        tier="tier2",
        metadata=json.dumps(evidence, separators=(",", ":")),
    )


def append(store: Store, *incidents: Incident) -> None:
    """Write incidents in one transaction."""
    with store.transaction() as transaction:
        transaction.append("incidents", [encode(one) for one in incidents])


def outlines(store: Store, columns: str = "incident_id, version, size, agents, evidence") -> list[tuple[object, ...]]:
    """Return all outlines, by incident and revision."""
    return rows(store, "incident_outlines", columns)


def session_parameters(session: str) -> dict[str, str]:
    """Return the query parameters for the incidents of a session."""
    return {"project": build_incident("a").project, "connection": "local", "session": session}


def test_an_outline_has_exactly_changed_series_rules_and_agents(store: Store) -> None:
    """A list must show what the evidence says, including null values."""
    append(
        store,
        build_incident("a", moved=MOVED, rules=RULES, queries=["SELECT"], exchanges=[{"agent": "bot"}, {"agent": "scout"}, {}]),
    )
    ((identity, version, size, agents, evidence),) = outlines(store)
    assert identity == "a"
    assert version == 0
    assert round(float(str(size)), 9) == 0.5
    assert agents == ["bot", "scout"]
    assert json.loads(str(evidence)) == {"moved": MOVED, "rules": RULES}


def test_every_revision_has_its_own_outline(store: Store) -> None:
    """The newest revision counts, and removed names must not be found."""
    append(store, build_incident("a", moved=MOVED), build_incident("b"))
    append(store, build_incident("a", 1, runs=[{"agent": "other"}]))
    assert outlines(store, "incident_id, version, agents") == [("a", 0, ["scout"]), ("a", 1, ["other"]), ("b", 0, [])]


def test_a_session_finds_the_incidents_that_name_it(store: Store) -> None:
    """The evidence of an open incident is gathered again, and may no longer contain a session."""
    first_session, second_session, third_session = (
        {"connection": "local", "sessionId": name} for name in ("one", "other", "third")
    )
    append(
        store,
        build_incident("a", exchanges=[first_session, second_session, first_session], runs=[second_session]),
        build_incident("b", runs=[first_session]),
        build_incident("a", 1, exchanges=[third_session]),
    )
    assert outlines(store, "incident_id, version, sessions") == [
        ("a", 0, ["local/one", "local/other"]),
        ("a", 1, ["local/third"]),
        ("b", 0, ["local/one"]),
    ]
    assert {
        name: [row["incident_id"] for row in query_rows(store.cursor(), "session_incidents", session_parameters(name))]
        for name in ("one", "other", "third")
    } == {"one": ["b"], "other": [], "third": ["a"]}


def test_unreadable_evidence_has_an_empty_outline(store: Store) -> None:
    """A record of another program must not break a list."""
    unreadable = incident(incident_id="a", metadata="no json")
    malformed = incident(incident_id="b", metadata='{"moved": "erased", "runs": {"agent": "x"}}')
    append(store, unreadable, malformed)
    assert outlines(store, "incident_id, size, agents, evidence") == [
        ("a", None, [], "{}"),
        ("b", None, [], '{"moved":"erased"}'),
    ]


def test_an_erasure_deletes_the_outline(store: Store) -> None:
    """A list must not show what the incident no longer contains."""
    erased, kept = ({"connection": "local", "session_id": name, "agent": f"agent of {name}"} for name in ("gone", "kept"))
    erased["sessionId"], kept["sessionId"] = "gone", "kept"
    append(store, build_incident("a", exchanges=[erased, kept]), build_incident("b", exchanges=[kept]))
    ErasureRun(store, ErasureScope.from_pairs([("local", "gone")])).run()
    assert outlines(store, "incident_id, agents, sessions") == [
        ("a", ["agent of kept"], ["local/kept"]),
        ("b", ["agent of kept"], ["local/kept"]),
    ]


def test_a_deleted_incident_leaves_no_outline(store: Store) -> None:
    """The incident may be stored again with other content."""
    append(store, build_incident("a", moved=MOVED), build_incident("b", moved=MOVED))
    with store.transaction() as transaction:
        transaction.delete_from("incidents", {0: 1})
    assert outlines(store, "incident_id") == [("a",)]
    with store.transaction() as transaction:
        transaction.clear_tables(["incidents"])
    assert outlines(store) == []


@pytest.mark.parametrize(
    "older", ["DROP TABLE log.incident_outlines", "ALTER TABLE log.incident_outlines DROP COLUMN sessions"]
)
def test_an_older_file_gets_the_same_outlines(store: Store, older: str) -> None:
    """Lists must show the same after an upgrade."""
    append(
        store,
        build_incident("a", moved=MOVED, rules=RULES),
        build_incident("a", 1, moved=MOVED),
        build_incident("b", runs=[{"agent": "bot", "connection": "local", "sessionId": "s"}]),
    )
    columns = "incident_id, version, size, agents, evidence, sessions"
    outlines_before = outlines(store, columns)
    assert store.path is not None
    path = store.path
    store.cursor().execute(older)
    store.close()
    with Store(path) as opened:
        assert outlines(opened, columns) == outlines_before
