"""Incidents over HTTP: findings, their evidence, and decisions on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from schemas.records import Incident
from service.read.incidents import (
    DriftCheck,
    IncidentAnswer,
    Incidents,
    IncidentType,
    OneIncident,
    drift_check,
    history_of,
    incident_answer,
    incident_records,
    one_incident,
)
from service.text.answers import Place, after, page_of
from service.text.links import API
from service.web.authentication import Admin, Reader, Reviewer, VisibleProject
from service.web.bodies import JsonRoute
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.incident_changes import ChangeBody, GivenStatus, change_selected
from service.web.models import Id
from service.web.parameters import Cursor, Limit
from streams.watch.lifecycle import confidence_of, current_status
from streams.watch.watching import PROBLEMS

_STATUS = {"not_found": 404, "conflict": 409}

router = APIRouter(route_class=JsonRoute, tags=["incidents"])
PROJECT = f"{API}/{{project}}"
IncidentId = Annotated[Id, Path(description="Id of the incident.")]


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
) -> Incidents:
    """List the incidents of a project, newest first, without the texts of their queries."""
    found = await services.ask(
        lambda reading: [
            incident_answer(one, with_sql=False)
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
    return Incidents(shown, len(shown), following)


@router.get(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(404))
async def incident(_: Reader, project: VisibleProject, services: Services, incident_id: IncidentId) -> OneIncident:
    """Return one incident with its evidence and the texts of its queries."""
    found = await services.watch.incident(project, incident_id)
    if found is None:
        raise ApiError(404, "not_found", PROBLEMS["not_found"])
    return await _with_history(services, found)


@router.put(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(400, 404, 408, 409, 413, 415))
async def decide(
    caller: Reviewer, project: VisibleProject, services: Services, incident_id: IncidentId, body: ChangeBody
) -> OneIncident:
    """Acknowledge, resolve, dismiss or reopen an incident, assign it, or comment on it.

    400 for newNormal with a state other than resolved, and for an assignee who may not see the project; 409 if another live
    incident is about the same change.
    """
    wanted, person = body.change(caller, services.engine.redactor)
    with durable_or_refused():
        (outcome,) = await change_selected(services, caller, [(project, incident_id)], wanted, person)
    if outcome.error is not None or outcome.incident is None:
        raise ApiError(_STATUS.get(outcome.code or "", 400), outcome.code or "invalid", outcome.error or "")
    return await _with_history(services, outcome.incident)


@router.post(f"{PROJECT}/check", responses=documented(404, 408, 409, 413, 415))
async def check(_: Admin, project: VisibleProject, services: Services) -> DriftCheck:
    """Check for drift and anomaly spikes now, as the server does after new scores; return the findings."""
    with durable_or_refused():
        checked = await services.watch.check([project])
    if not checked:
        raise ApiError(409, "audit_disabled", f"the policy switches the audit of project {project} off")
    version = services.engine.policy.for_project(project).methodology.version
    return drift_check(checked[0], version)


async def _with_history(services: Services, found: Incident) -> OneIncident:
    history = await services.ask(lambda reading: history_of(reading, found.incident_id))
    return one_incident(found, history)


def _place(found: IncidentAnswer) -> Place:
    return Place(found.detected_at, found.id)
