"""A database of the version before: its open incidents and its decisions are there, and mean what they meant."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from support.watch_histories import END, fallen, history, put

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.drift.series import Reference
from audit.policy import Policy
from schemas.records import Incident, Review
from schemas.registry import current_schemas, published_schemas
from service.read.incidents import history_of, incident_answer, incident_records
from streams.log.sink import StorePublisher
from streams.watch.incidents import derive_references
from streams.watch.watching import Watch

DAY = timedelta(days=1)
TODAY = END.date()
BEFORE = 1
"""Place of the version before among the published ones of an incident."""


def evidence(first: int, last: int, **more: object) -> str:
    """Return the evidence of a fall in the format of the previous version."""
    rule_evidence = {"severity": "critical", "since": f"{TODAY - first * DAY}", "until": f"{TODAY - last * DAY}", "size": 0.4}
    numbers = {"title": "Tier 2 fell", "meanBefore": 0.85, "meanAfter": 0.45, "sigma": 0.1, "days": []}
    return json.dumps({"rules": {"sequential": rule_evidence | numbers}, **more})


def old(name: str, tier: str, status: str, metadata: str, at: datetime, *, by: str | None = None) -> Incident:
    """Return an incident of the previous version."""
    return Incident(
        incident_id=name,
        revision=0 if by is None else 1,
        project="ops",
        type="drift",
        tier=tier,
        direction="down",
        status=status,
        severity="critical",
        title="Tier 2 fell",
        description="It fell.",
        metadata=metadata,
        detected_at=at - DAY,
        resolved_at=None if by is None else at,
        resolved_by=by,
        rule="sequential",
        checked_at=at,
    )


def decision(name: str, status: str, at: datetime) -> Review:
    """Return a decision of the previous version."""
    return Review(
        review_id=f"review of {name}",
        project="ops",
        kind="incident_decision",
        subject_id=name,
        reviewer="ann",
        status=status,
        comment="as planned",
        occurred_at=at,
        ingested_at=at,
    )


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database of the previous version, without the current columns, views and macros."""
    path = tmp_path / "before.duckdb"
    with Store(path) as store:
        put(store, "scores", history(fallen(4), 60))
        open_one = old("open", "tier2", "open", evidence(4, 1), END - DAY)
        accepted = old("accepted", "tier3", "accepted", evidence(10, 9), END - 9 * DAY, by="ann")
        dismissed = old("dismissed", "tier2_5", "dismissed", evidence(30, 25), END - 25 * DAY, by="bob")
        put(store, "incidents", [open_one, accepted, dismissed])
        put(
            store,
            "reviews",
            [decision("accepted", "accepted", END - 9 * DAY), decision("dismissed", "dismissed", END - 25 * DAY)],
        )
    fields = {field["name"] for field in published_schemas()["Incident"][BEFORE].fields}
    with duckdb.connect(str(path)) as raw:
        for schema, view in raw.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            raw.execute(f'DROP VIEW "{schema}"."{view}"')
        for macro in ("views_digest", "incident_status", "incident_resolution", "incident_assignee"):
            raw.execute(f"DROP MACRO log.{macro}")
        for field in current_schemas()["Incident"].fields:
            if field["name"] not in fields:
                raw.execute(f'ALTER TABLE log.incidents DROP COLUMN "{field["name"]}"')
    return path


def test_an_upgrade_keeps_open_incidents_open_and_decided_ones_decided(database: Path) -> None:
    """Nobody is alerted again about a decided change, and an open incident stays the same incident, confirmed."""
    with Store(database) as store:
        asyncio.run(Watch(StorePublisher(store, Policy(), lambda: END)).check(["ops"]))
        found = {
            one.incident_id: one for one in query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
        }
    assert set(found) == {"open", "accepted", "dismissed"}
    states = {name: (incident.status, incident.resolution, incident.confidence) for name, incident in found.items()}
    assert states == {
        "open": ("open", None, "confirmed"),
        "accepted": ("resolved", "new_normal", "confirmed"),
        "dismissed": ("dismissed", None, "confirmed"),
    }
    assert found["open"].revision == 1
    references = derive_references(found.values())
    assert Reference(since=TODAY - 10 * DAY) == references["tier3"]
    assert references["tier2_5"].cut != ()


def test_an_upgrade_keeps_rows_and_decisions_as_they_were_written(database: Path) -> None:
    """The history is only read, never rewritten."""
    with Store(database) as store:
        raw = store.cursor().execute("SELECT incident_id, status FROM log.incidents ORDER BY ALL").fetchall()
        decisions = history_of(store.cursor(), "accepted")
        pending = [
            row
            for row in query_rows(store.cursor(), "incident_reviews", {"projects": None, "incident": None})
            if row["pending"]
        ]
        listed = [incident_answer(incident) for incident in incident_records(store.cursor(), "ops", statuses=["resolved"])]
    assert raw == [("accepted", "accepted"), ("dismissed", "dismissed"), ("open", "open")]
    assert [(one.status, one.by, one.comment) for one in decisions] == [("accepted", "ann", "as planned")]
    assert pending == []
    assert [
        (answer.id, answer.status, answer.resolution, [moved.key.series for moved in answer.moved]) for answer in listed
    ] == [("accepted", "resolved", "new_normal", ["tier3"])]
