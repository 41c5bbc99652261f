"""Incidents: the answer about one, pages of them, people's actions on them, and the findings of a check.

An `IncidentAnswer` is built from the record `Incident` and the evidence in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal, cast

from msgspec import Meta
from msgspec.structs import asdict, replace

from analytics.queries import query_records, query_rows
from audit.drift.incident_evidence import Moved, evidence_of, members_of
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.baselines import ProjectBaseline, project_baseline
from service.read.project import spot_words
from service.read.why.reasons import Why, why
from service.text.answers import Answer, Moment, NextCursor
from streams.watch.checking import Checked
from streams.watch.findings import Finding
from streams.watch.lifecycle import assignee_of

IncidentType = Literal["drift", "anomaly_spike"]
IncidentStatus = Literal["open", "acknowledged", "resolved", "dismissed"]
Severity = Literal["warning", "critical"]
SeriesKind = Literal["mean", "spread", "further"]
Decision = Literal["open", "acknowledged", "resolved", "dismissed", "accepted", "new_normal"]


class IncidentAnswer(Answer, frozen=True):
    """A change that needs a person's attention."""

    record_type = "Incident"

    id: str
    project: str
    type: IncidentType
    status: IncidentStatus
    severity: Severity
    title: str
    description: Annotated[str, Meta(description="The finding, with its numbers.")]
    why: Why
    metadata: Annotated[
        dict[str, Any],
        Meta(
            description="The evidence: findings of each rule by day, the baseline, the exchanges with the largest effect, the queries."
        ),
    ]
    detected_at: Moment
    resolved_at: Moment | None
    resolved_by: str | None
    tier: str | None
    direction: str | None
    rule: Annotated[str, Meta(examples=["sequential", "consecutive_days", "rate_ratio"])]
    cause: str | None
    confidence: Literal["suspected", "confirmed"]
    confirmed_at: Moment | None
    resolution: str | None
    acknowledged_at: Moment | None
    acknowledged_by: str | None
    assignee: Annotated[
        str | None,
        Meta(description="Person whose it is; null: nobody. Who acknowledges one that nobody has gets it."),
    ]
    assigned_at: Moment | None
    agent: str | None
    first_day: Annotated[date | None, Meta(description="First day of the change.")]
    last_day: Annotated[date | None, Meta(description="Last day of the change, once it is over.")]
    moved: Annotated[list[Moved], Meta(description="Series that moved, the leading one first.")]
    baseline_id: str | None
    checked_at: Moment | None
    revision: int


class Incidents(Answer, frozen=True):
    """Incidents, newest first."""

    incidents: list[IncidentAnswer]
    count: int
    next_cursor: NextCursor = None


class IncidentDecision(Answer, frozen=True):
    """A decision on an incident: its author, time and reason."""

    status: Decision
    by: str
    comment: str | None
    at: Moment


class IncidentEvent(Answer, frozen=True):
    """A person's action on an incident: its author and time."""

    kind: Literal["decision", "assignment", "comment"]
    by: str
    at: Moment
    status: Annotated[Decision | None, Meta(description="Of a decision.")]
    assignee: Annotated[str | None, Meta(description="Of an assignment; null: to nobody.")]
    comment: str | None


class OneIncident(Answer, frozen=True):
    """An incident with its decisions and its whole history of people's actions, oldest first."""

    incident: IncidentAnswer
    decisions: list[IncidentDecision]
    history: Annotated[list[IncidentEvent], Meta(description="Decisions, assignments and comments.")]


class RuleFinding(Answer, frozen=True):
    """A finding of a rule, whether or not it already has an incident."""

    rule: str
    type: IncidentType
    tier: str | None
    direction: str | None
    severity: Severity
    agent: str | None
    kind: SeriesKind
    confirmed: bool
    interval: tuple[date, date]
    since: date
    until: date
    title: str
    description: str


class DriftCheck(Answer, frozen=True):
    """The findings of a check, and the incidents that it opened and updated."""

    project: str
    as_of: Moment
    exchanges: Annotated[int, Meta(description="Number checked; 0 if the last days had none.")]
    not_compared: Annotated[list[str], Meta(description="What was not compared since when, and why, a sentence each.")]
    baseline: Annotated[ProjectBaseline | None, Meta(description="As of `GET /api/audit/{project}/baseline`.")]
    findings: list[RuleFinding]
    incidents: list[IncidentAnswer]
    opened: list[str]


def incident_answer(incident: Incident, *, with_sql: bool = True) -> IncidentAnswer:
    """Return the answer about an incident; without `with_sql`, queries are named but their texts left out."""
    evidence = evidence_of(incident)
    if not with_sql:
        evidence = replace(evidence, queries=[replace(query, sql="") for query in evidence.queries])
    # Records of older versions have their first day only in the evidence.
    first = incident.first_day.date() if incident.first_day else evidence.moved[0].since if evidence.moved else None
    return IncidentAnswer.of(
        asdict(incident),
        id=incident.incident_id,
        assignee=assignee_of(incident),
        why=why(incident),
        metadata=members_of(evidence),
        first_day=first,
        last_day=incident.last_day and incident.last_day.date(),
        moved=[replace(moved, rules={}) for moved in evidence.moved],
    )


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
    """Return a page of incidents of a project (None: all) in some states (empty: any), newest first.

    `between` selects incidents that were open at some time between two moments; None is no bound. If `outlined`, the evidence contains
    only the changed series and the rules' observations, which is enough for lists and charts.
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


def history_of(cursor: duckdb.DuckDBPyConnection, incident_id: str) -> list[IncidentEvent]:
    """Return the history of an incident, oldest first: decisions, assignments and comments, with author and time."""
    return [
        IncidentEvent.of(row, kind=row["kind"].removeprefix("incident_"), by=row["reviewer"], at=row["occurred_at"])
        for row in query_rows(cursor, "incident_history", {"incident": incident_id})
    ]


def one_incident(incident: Incident, history: Sequence[IncidentEvent]) -> OneIncident:
    """Return an incident with its history of people's actions."""
    decisions = [
        IncidentDecision(event.status, event.by, event.comment, event.at)
        for event in history
        if event.kind == "decision" and event.status is not None
    ]
    return OneIncident(incident_answer(incident), decisions, list(history))


def drift_check(checked: Checked, schema_version: str) -> DriftCheck:
    """Return the findings of a check, and their outcome; `schema_version` is that of the methodology."""
    spots = checked.looked.blind_spots if checked.looked else ()
    return DriftCheck(
        project=checked.project,
        as_of=checked.as_of,
        exchanges=checked.looked.exchanges if checked.looked else 0,
        not_compared=[spot_words(asdict(spot)) for spot in spots],
        baseline=None if checked.baseline is None else project_baseline(checked.baseline, schema_version),
        findings=[_finding(finding) for finding in checked.findings],
        incidents=[incident_answer(incident, with_sql=False) for incident in checked.incidents],
        opened=[incident.incident_id for incident in checked.opened],
    )


def _finding(finding: Finding) -> RuleFinding:
    return RuleFinding(
        rule=finding.rule,
        type=cast(IncidentType, finding.key.type),
        tier=finding.key.tier,
        direction=finding.key.direction,
        severity=cast(Severity, finding.severity),
        agent=finding.key.agent,
        kind=cast(SeriesKind, finding.kind),
        confirmed=finding.confirmed,
        interval=finding.first_days,
        since=finding.since,
        until=finding.until,
        title=finding.title,
        description=finding.description,
    )
