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
from schemas.registry import current_schemas, earlier_schemas
from service.read.incidents import history_of, incident_answer, incident_records
from streams.log.sink import StorePublisher
from streams.watch.incidents import references_of
from streams.watch.watching import Watch

DAY = timedelta(days=1)
TODAY = END.date()
BEFORE = 1
"""Place of the version before among the published ones of an incident."""


def evidence(first: int, last: int, **more: object) -> str:
    """The evidence of a fall, as the version before wrote it."""
    seen = {"severity": "critical", "since": f"{TODAY - first * DAY}", "until": f"{TODAY - last * DAY}", "size": 0.4}
    numbers = {"title": "Tier 2 fell", "meanBefore": 0.85, "meanAfter": 0.45, "sigma": 0.1, "days": []}
    return json.dumps({"rules": {"sequential": seen | numbers}, **more})


def old(name: str, tier: str, status: str, metadata: str, at: datetime, *, by: str | None = None) -> Incident:
    """An incident of the version before."""
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
    """A decision of the version before."""
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
    """A database as the version before left it: without the columns, views and macros of today."""
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
    known = {field["name"] for field in earlier_schemas()["Incident"][BEFORE].fields}
    with duckdb.connect(str(path)) as raw:
        for schema, view in raw.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            raw.execute(f'DROP VIEW "{schema}"."{view}"')
        for macro in ("views_digest", "incident_status", "incident_resolution", "incident_assignee"):
            raw.execute(f"DROP MACRO log.{macro}")
        for field in current_schemas()["Incident"].fields:
            if field["name"] not in known:
                raw.execute(f'ALTER TABLE log.incidents DROP COLUMN "{field["name"]}"')
    return path


def test_the_open_incident_goes_on_and_the_decided_ones_stay_decided(database: Path) -> None:
    """Nobody is told again of what was decided, and what was open is the same incident still, and confirmed."""
    with Store(database) as store:
        asyncio.run(Watch(StorePublisher(store, Policy(), lambda: END)).check(["ops"]))
        found = {
            one.incident_id: one for one in query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
        }
    assert set(found) == {"open", "accepted", "dismissed"}
    states = {name: (one.status, one.resolution, one.confidence) for name, one in found.items()}
    assert states == {
        "open": ("open", None, "confirmed"),
        "accepted": ("resolved", "new_normal", "confirmed"),
        "dismissed": ("dismissed", None, "confirmed"),
    }
    assert found["open"].revision == 1
    references = references_of(found.values())
    assert Reference(since=TODAY - 10 * DAY) == references["tier3"]
    assert references["tier2_5"].cut != ()


def test_its_rows_and_decisions_stay_as_they_were_written(database: Path) -> None:
    """What somebody decided then is what they decided: the history is not rewritten, only read."""
    with Store(database) as store:
        raw = store.cursor().execute("SELECT incident_id, status FROM log.incidents ORDER BY ALL").fetchall()
        decisions = history_of(store.cursor(), "accepted")
        pending = [
            row
            for row in query_rows(store.cursor(), "incident_decisions", {"projects": None, "incident": None})
            if row["pending"]
        ]
        listed = [incident_answer(one) for one in incident_records(store.cursor(), "ops", statuses=["resolved"])]
    assert raw == [("accepted", "accepted"), ("dismissed", "dismissed"), ("open", "open")]
    assert [(one.status, one.by, one.comment) for one in decisions] == [("accepted", "ann", "as planned")]
    assert pending == []
    assert [(one.id, one.status, one.resolution, [moved.key.series for moved in one.moved]) for one in listed] == [
        ("accepted", "resolved", "new_normal", ["tier3"])
    ]
