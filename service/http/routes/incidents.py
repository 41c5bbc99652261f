"""Incidents over HTTP: findings, their evidence, and decisions on them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints

from service.documents.incidents import check_document, decisions_on, incident_document, incident_records
from service.documents.members import Document
from service.http.auth.authentication import Admin, Reader, Reviewer, VisibleProject
from service.http.bounds import API
from service.http.context import Services, durable_or_refused
from service.http.documents.bodies import JsonRoute
from service.http.documents.models import Id, OperatorBody, Text
from service.http.documents.project_answers import Moment, ProjectAnswer
from service.http.documents.response_models import Answer
from service.http.errors import ApiError, documented
from service.http.paging import Cursor, Limit, NextCursor, Place, after, page_of
from service.http.routes.baselines import BaselineAnswer
from streams.upkeep.reviewing import MAX_COMMENT
from streams.watch.incidents.states import ACCEPTED, RESOLVED, confidence_of, current_status, decision_of, shows

router = APIRouter(route_class=JsonRoute, tags=["incidents"])
PROJECT = f"{API}/{{project}}"
IncidentStatus = Literal["open", "acknowledged", "resolved", "dismissed"]
GivenStatus = Literal["open", "acknowledged", "resolved", "dismissed", "accepted"]
"""States as callers name them; `accepted` is the earlier name of resolved as the new normal."""
IncidentType = Literal["drift", "anomaly_spike"]
IncidentId = Annotated[Id, Path(description="Id of the incident.")]
NO_INCIDENT = "the project has no incident with this id"


class DecisionBody(OperatorBody):
    """A decision on an incident."""

    status: GivenStatus = Field(
        description="acknowledged: you work on it, and it stays red; resolved: it is over or fixed; dismissed: it does not matter; "
        "open: reopened. accepted is the earlier name of resolved with newNormal."
    )
    new_normal: bool = Field(
        False,
        alias="newNormal",
        description="With resolved: the change is the new normal, and comparisons begin with its first day.",
    )
    resolved_by: Id | None = Field(
        None, alias="resolvedBy", description="Person who decides or owns it; by default the operator."
    )
    comment: Annotated[Text, StringConstraints(max_length=MAX_COMMENT)] | None = Field(None, description="Why.")


class MovedAnswer(Answer):
    """A series that moved in an incident."""

    series: str
    tier: str | None
    agent: str | None
    direction: str | None
    kind: Literal["mean", "spread"]
    name: str
    before: float | None = Field(alias="from")
    after: float | None = Field(alias="to")
    since: str
    interval: list[str] = Field(description="The first and the last day that may be the first one of the change.")
    until: str
    severity: Literal["warning", "critical"]
    rule: str
    confirmed: bool
    fell_too: bool = Field(description="It did not raise an alarm by itself.")
    leads: bool


class IncidentAnswer(ProjectAnswer):
    """A change that needs a person's attention."""

    id: str
    project: str
    type: IncidentType
    status: IncidentStatus
    severity: Literal["warning", "critical"]
    title: str
    description: str = Field(description="The finding, with its numbers.")
    metadata: dict[str, Any] = Field(
        description="The evidence: findings of each rule by day, the baseline, the exchanges with the largest effect, the queries."
    )
    detected_at: Moment
    resolved_at: Moment | None
    resolved_by: str | None
    tier: str | None
    direction: str | None = Field(description="up or down.")
    rule: str = Field(description="Rule that found it.", examples=["sequential", "consecutive_days", "rate_ratio"])
    cause: str | None = Field(description="Cause, as far as anchors tell: agent or judge.")
    confidence: Literal["suspected", "confirmed"] = Field(description="Only confirmed incidents send alerts.")
    confirmed_at: Moment | None
    resolution: str | None = Field(description="Why it is resolved: recovered, vanished, fixed or new_normal.")
    acknowledged_at: Moment | None
    acknowledged_by: str | None = Field(description="Owner.")
    agent: str | None = Field(description="Agent of the leading series; null for a series of the whole project.")
    first_day: str | None
    last_day: str | None = Field(description="Last day of the change, once it is over.")
    moved: list[MovedAnswer] = Field(description="Series that moved, the leading one first.")
    baseline_id: str | None
    checked_at: Moment | None
    revision: int


class DecisionAnswer(Answer):
    """A decision on an incident: by whom, when and why."""

    status: GivenStatus | Literal["new_normal"]
    by: str
    comment: str | None
    at: Moment


class IncidentsAnswer(Answer):
    """Incidents, newest first."""

    incidents: list[IncidentAnswer]
    count: int
    next_cursor: NextCursor = None


class OneIncidentAnswer(Answer):
    """An incident with its decisions, oldest first."""

    incident: IncidentAnswer
    decisions: list[DecisionAnswer]


class FindingAnswer(Answer):
    """A finding of a rule, whether or not there is an incident of it already."""

    rule: str
    type: IncidentType
    tier: str | None
    direction: str | None
    severity: Literal["warning", "critical"]
    agent: str | None
    kind: Literal["mean", "spread"]
    confirmed: bool
    interval: list[str]
    since: str
    until: str
    title: str
    description: str


class CheckAnswer(Answer):
    """The findings of a check, and the incidents that it wrote: opened ones, and updated ones."""

    project: str
    as_of: Moment
    exchanges: int = Field(description="Number checked; 0 if the last days had none.")
    baseline: BaselineAnswer | None
    findings: list[FindingAnswer]
    incidents: list[IncidentAnswer]
    opened: list[str]


@router.get(f"{PROJECT}/incidents", responses=documented(404))
async def incidents(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    status: Annotated[
        list[GivenStatus] | None, Query(description="Only incidents in this state, or in one of several.")
    ] = None,
    confirmed: Annotated[bool | None, Query(description="true: only confirmed ones; false: only suspected ones.")] = None,
    kind: Annotated[IncidentType | None, Query(alias="type", description="Only incidents of this type.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> IncidentsAnswer:
    """List the incidents of a project, newest first, without the texts of their queries."""
    found = await services.ask(
        lambda reading: [
            incident_document(one, with_sql=False)
            for one in incident_records(
                reading,
                project,
                statuses=[current_status(one) for one in status or ()],
                kind=kind,
                confidence=confidence_of(confirmed=confirmed),
                before=after(cursor),
                limit=limit + 1,
            )
        ]
    )
    shown, following = page_of(found, limit, _place)
    answers = [IncidentAnswer.model_validate(one) for one in shown]
    return IncidentsAnswer(incidents=answers, count=len(answers), next_cursor=following)


@router.get(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(404))
async def incident(_: Reader, project: VisibleProject, services: Services, incident_id: IncidentId) -> OneIncidentAnswer:
    """Return one incident with its evidence and the texts of its queries."""
    found = await services.watch.incident(project, incident_id)
    if found is None:
        raise ApiError(404, "not_found", NO_INCIDENT)
    return await _with_decisions(services, incident_document(found))


@router.put(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(400, 404, 408, 409, 413, 415))
async def decide(
    caller: Reviewer, project: VisibleProject, services: Services, incident_id: IncidentId, body: DecisionBody
) -> OneIncidentAnswer:
    """Acknowledge, resolve, dismiss or reopen an incident. 409 if another live incident is about the same change.

    400 for newNormal with a state other than resolved: only what is resolved can be the new normal.
    """
    if body.new_normal and body.status not in {RESOLVED, ACCEPTED}:
        raise ApiError(400, "invalid", "newNormal: needs the status resolved")
    decision = decision_of(body.status, new_normal=body.new_normal)
    who = services.engine.redactor.redact(body.resolved_by or caller.name)[0]
    comment = services.engine.redactor.redact(body.comment)[0] if body.comment else None
    with durable_or_refused():
        found = await services.watch.decide(project, incident_id, decision, who, comment, entered_by=caller.name)
    if found is None:
        raise ApiError(404, "not_found", NO_INCIDENT)
    if not shows(found, decision):
        raise ApiError(409, "conflict", "another live incident is about the same tier and direction")
    return await _with_decisions(services, incident_document(found))


@router.post(f"{PROJECT}/check", responses=documented(404, 408, 409, 413, 415))
async def check(_: Admin, project: VisibleProject, services: Services) -> CheckAnswer:
    """Check for drift and anomaly spikes now, as the server does after new scores; return the findings."""
    with durable_or_refused():
        checked = await services.watch.check([project])
    if not checked:
        raise ApiError(409, "audit_disabled", f"the policy switches the audit of project {project} off")
    version = services.engine.policy.for_project(project).methodology.version
    return CheckAnswer.model_validate(check_document(checked[0], version))


async def _with_decisions(services: Services, document: Document) -> OneIncidentAnswer:
    decisions = await services.ask(lambda reading: decisions_on(reading, document["id"]))
    return OneIncidentAnswer(
        incident=IncidentAnswer.model_validate(document), decisions=[DecisionAnswer.model_validate(one) for one in decisions]
    )


def _place(document: Document) -> Place:
    return Place(datetime.fromisoformat(document["detectedAt"]), document["id"])
