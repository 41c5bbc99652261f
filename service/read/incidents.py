"""The JSON documents of baselines and incidents, and pages of incidents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from analytics.queries import query_records, query_rows
from audit.drift.incident_evidence import Evidence, Moved, evidence_of, members_of
from audit.times import iso_time
from schemas.lazy.duckdb import duckdb
from schemas.records import Incident
from service.read.baselines import project_baseline
from service.read.project import spot_words
from service.read.why.explaining import why_document
from service.text.answers import document
from service.text.members import Document, members
from streams.watch.checking import Checked
from streams.watch.incidents.states import assignee_of

_INCIDENT = (
    "id=incident_id project type status severity title description detected_at resolved_at resolved_by tier direction rule cause "
    "confidence confirmed_at resolution acknowledged_at acknowledged_by assignee assigned_at agent baseline_id checked_at revision"
)
"""The members of an incident that are fields of its record."""


def incident_document(incident: Incident, *, with_sql: bool = True) -> Document:
    """Return the document of an incident; without `with_sql` its queries are named and their texts left out."""
    evidence = evidence_of(incident)
    if not with_sql:
        queries = [msgspec.structs.replace(query, sql="") for query in evidence.queries]
        evidence = msgspec.structs.replace(evidence, queries=queries)
    return {
        **members(msgspec.structs.replace(incident, assignee=assignee_of(incident)), _INCIDENT),
        "why": why_document(incident),
        "metadata": members_of(evidence),
        "firstDay": _day(incident.first_day) or _first_day(evidence.moved),
        "lastDay": _day(incident.last_day),
        "moved": moved_document(evidence),
    }


def incident_records(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    *,
    statuses: Collection[str] = (),
    kind: str | None = None,
    confidence: str | None = None,
    before: tuple[datetime, str] | None = None,
    between: tuple[datetime | None, datetime | None] = (None, None),
    limit: int = 100,
    outlined: bool = False,
) -> list[Incident]:
    """Return the incidents of a project (None: all) in some states (none: any), newest first, after the last one shown.

    `between` leaves only those that were open at some time between two moments; None is no bound. If `outlined`, their evidence has
    nothing but what moved and what the rules saw: lists and charts need no more.
    """
    at, identity = before or (None, None)
    values = {
        "project": project,
        "statuses": list(statuses) or None,
        "type": kind,
        "confidence": confidence,
        "before_at": at,
        "before_id": identity,
        "from": between[0],
        "to": between[1],
        "limit": limit,
        "outlined": outlined,
    }
    return list(query_records(cursor, "project_incidents", Incident, values))


def history_of(cursor: duckdb.DuckDBPyConnection, incident_id: str) -> list[Document]:
    """Return what people did with an incident, oldest first: decisions, assignments and comments, with who and when."""
    rows = query_rows(cursor, "incident_history", {"incident": incident_id})
    return [
        {"kind": row["kind"].removeprefix("incident_")} | members(row, "by=reviewer at=occurred_at status assignee comment")
        for row in rows
    ]


def check_document(checked: Checked, schema_version: str) -> Document:
    """Return the findings of a check, and their outcome."""
    return {
        "project": checked.project,
        "asOf": iso_time(checked.as_of),
        "exchanges": checked.looked.exchanges if checked.looked else 0,
        "notCompared": [spot_words(msgspec.structs.asdict(spot)) for spot in checked.looked.blind_spots]
        if checked.looked
        else [],
        "baseline": checked.baseline and document(project_baseline(checked.baseline, schema_version)),
        "findings": [
            {
                **{name: getattr(one.key, name) for name in ("type", "tier", "direction", "agent")},
                **{name: getattr(one, name) for name in ("rule", "kind", "severity", "confirmed", "title", "description")},
                "interval": [f"{day}" for day in one.first_days],
                "since": f"{one.since}",
                "until": f"{one.until}",
            }
            for one in checked.findings
        ],
        "incidents": [incident_document(one, with_sql=False) for one in checked.incidents],
        "opened": [one.incident_id for one in checked.opened],
    }


def moved_document(evidence: Evidence) -> list[Document]:
    """Return the series that moved, without what the rules saw of them."""
    moved: list[Document] = msgspec.to_builtins(evidence.moved)
    return [{name: value for name, value in one.items() if name != "rules"} for one in moved]


def _day(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%d}"


def _first_day(moved: Sequence[Moved]) -> str | None:
    """Return the first day in the evidence; records of older versions have no other."""
    return f"{moved[0].since}" if moved else None
