"""Incidents over HTTP: what was found, the evidence for it, and what people decide on it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field, StringConstraints

from service.api.answers import Answer
from service.api.authentication import Admin, Reader, Reviewer, VisibleProject
from service.api.baselines import BaselineAnswer
from service.api.bodies import JsonRoute
from service.api.context import Services, durable_or_refused
from service.api.errors import ApiError, documented
from service.api.models import Id, OperatorBody
from service.api.paging import Cursor, Limit, NextCursor, Place, after, page_of
from service.api.project_answers import Moment, ProjectAnswer
from service.api.settings import API
from service.documents import Document
from service.watched import check_document, decisions_on, incident_document, incident_records
from streams.reviewing import MAX_COMMENT

router = APIRouter(route_class=JsonRoute, tags=["incidents"])
PROJECT = f"{API}/{{project}}"
IncidentStatus = Literal["open", "accepted", "dismissed"]
IncidentType = Literal["drift", "anomaly_spike"]
IncidentId = Annotated[Id, Path(description="Id of the incident.")]
NO_INCIDENT = "the project has no incident of this id"


class DecisionBody(OperatorBody):
    """What is decided on an incident."""

    status: IncidentStatus = Field(
        description="accepted: it is being looked into; dismissed: nothing is to be done; open: again."
    )
    resolved_by: Id | None = Field(None, alias="resolvedBy", description="Who decides; without it the name of the operator.")
    comment: Annotated[str, StringConstraints(max_length=MAX_COMMENT)] | None = Field(None, description="Why.")


class IncidentAnswer(ProjectAnswer):
    """Something a person should look at."""

    id: str
    project: str
    type: IncidentType
    status: IncidentStatus
    severity: Literal["warning", "critical"]
    title: str
    description: str = Field(description="What was found, with its numbers.")
    metadata: dict[str, Any] = Field(
        description="The evidence: what each rule saw on which days, the baseline, the exchanges that moved it most, the queries."
    )
    detected_at: Moment
    resolved_at: Moment | None
    resolved_by: str | None
    tier: str | None
    direction: str | None = Field(description="up or down.")
    rule: str = Field(description="Rule that found it.", examples=["sequential", "consecutive_days", "rate_ratio"])
    cause: str | None = Field(description="What changed, as far as anchors tell: agent or judge.")
    baseline_id: str | None
    checked_at: Moment | None
    revision: int


class DecisionAnswer(Answer):
    """What was decided on an incident: by whom, when and why."""

    status: IncidentStatus
    by: str
    comment: str | None
    at: Moment


class IncidentsAnswer(Answer):
    """Incidents, newest first."""

    incidents: list[IncidentAnswer]
    count: int
    next_cursor: NextCursor = None


class OneIncidentAnswer(Answer):
    """An incident with what was decided on it, oldest first."""

    incident: IncidentAnswer
    decisions: list[DecisionAnswer]


class FindingAnswer(Answer):
    """What a rule sees, whether or not there is an incident of it already."""

    rule: str
    type: IncidentType
    tier: str | None
    direction: str | None
    severity: Literal["warning", "critical"]
    since: str
    until: str
    title: str
    description: str


class CheckAnswer(Answer):
    """What a check found, and the incidents that it wrote: new ones (opened) and others that have something new to tell."""

    project: str
    as_of: Moment
    exchanges: int = Field(
        description="How many were looked at; 0 where there were none of the last days, so that nothing was checked."
    )
    baseline: BaselineAnswer | None
    findings: list[FindingAnswer]
    incidents: list[IncidentAnswer]
    opened: list[str]


@router.get(f"{PROJECT}/incidents", responses=documented())
async def incidents(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    status: Annotated[IncidentStatus | None, Query(description="Only those in this state.")] = None,
    kind: Annotated[IncidentType | None, Query(alias="type", description="Only those of this type.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> IncidentsAnswer:
    """List the incidents of a project, newest first; the texts of their queries are left out."""
    found = await services.ask(
        lambda reading: [
            incident_document(one, with_sql=False)
            for one in incident_records(reading, project, status=status, kind=kind, before=after(cursor), limit=limit + 1)
        ]
    )
    shown, following = page_of(found, limit, _place)
    answers = [IncidentAnswer.model_validate(one) for one in shown]
    return IncidentsAnswer(incidents=answers, count=len(answers), next_cursor=following)


@router.get(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(404))
async def incident(_: Reader, project: VisibleProject, services: Services, incident_id: IncidentId) -> OneIncidentAnswer:
    """One incident with its evidence, the texts of the queries included."""
    found = await services.watch.incident(project, incident_id)
    if found is None:
        raise ApiError(404, "not_found", NO_INCIDENT)
    return await _with_decisions(services, incident_document(found))


@router.put(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(400, 404, 408, 409, 413, 415))
async def decide(
    caller: Reviewer, project: VisibleProject, services: Services, incident_id: IncidentId, body: DecisionBody
) -> OneIncidentAnswer:
    """Accept, dismiss or re-open an incident. 409 where another open incident is about the same change."""
    who = services.engine.redactor.redact(body.resolved_by or caller.name)[0]
    comment = services.engine.redactor.redact(body.comment)[0] if body.comment else None
    with durable_or_refused():
        found = await services.watch.decide(project, incident_id, body.status, who, comment, entered_by=caller.name)
    if found is None:
        raise ApiError(404, "not_found", NO_INCIDENT)
    if found.status != body.status:
        raise ApiError(409, "conflict", "another open incident is about the same tier and direction")
    return await _with_decisions(services, incident_document(found))


@router.post(f"{PROJECT}/check", responses=documented(408, 409, 413, 415))
async def check(_: Admin, project: VisibleProject, services: Services) -> CheckAnswer:
    """Look for drift and anomaly spikes now, as the server does by itself after scores came; answers what was found."""
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
