"""Incidents over HTTP: the inbox of all projects, its saved views, and the incidents of a project."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Path, Query, Request, Response
from msgspec import Meta
from pydantic import Field, StringConstraints

from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.cases import DEFAULT_MOVED, MAX_CASES, freeze_incident, write_cases
from service.read.incidents import (
    MAX_TEXT,
    ME,
    DriftCheck,
    InboxFilter,
    IncidentAnswer,
    Incidents,
    IncidentStatus,
    IncidentType,
    OneIncident,
    Severity,
    Sort,
    drift_check,
    history_of,
    inbox,
    incident_answer,
    incident_records,
    one_incident,
)
from service.setup.access import MAX_VIEW_NAME, View, ViewList
from service.text.answers import Answer, NextCursor, Place, after, page_of
from service.text.links import API, INBOX, INBOX_BULK
from service.web.authentication import Admin, Reader, Reviewer, VisibleProject, require_project
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.incident_changes import (
    BulkBody,
    ChangeBody,
    GivenStatus,
    Outcome,
    change_selected,
    name_selected,
    remove_view,
    store_view,
    views_of,
)
from service.web.json_routes import JsonRoute
from service.web.models import ConnectionName, Cursor, Id, Limit, OperatorBody
from streams.watch.lifecycle import assignee_of, confidence_of, current_status
from streams.watch.watching import PROBLEMS

router = APIRouter(route_class=JsonRoute, tags=["incidents"])


class Inbox(Answer, frozen=True):
    """Incidents of all projects that the caller may see."""

    incidents: list[IncidentAnswer]
    count: int
    total: Annotated[int, Meta(description="Number of matching incidents on all pages.")]
    next_cursor: NextCursor = None


class ChangeOutcome(Answer, frozen=True):
    """The outcome of the change of one incident."""

    project: str
    id: str
    done: Annotated[bool, Meta(description="Whether the incident is now in the requested state.")]
    status: Annotated[IncidentStatus | None, Meta(description="The state of the incident now; null if it does not exist.")]
    assignee: str | None
    code: Annotated[
        str | None, Meta(description="Why it was not changed.", examples=["not_found", "conflict", "other_project"])
    ]
    error: str | None


class ChangeOutcomes(Answer, frozen=True):
    """The outcome for each incident, in the order of the call."""

    results: list[ChangeOutcome]
    done: int
    failed: int


@router.get(INBOX, responses=documented(400))
async def list_incidents_of_all_projects(
    caller: Reader,
    services: Services,
    *,
    status: Annotated[
        list[GivenStatus] | None, Query(description="Only incidents in this state, or in one of several.")
    ] = None,
    project: Annotated[ConnectionName | None, Query(description="Only incidents of this project.")] = None,
    confirmed: Annotated[bool | None, Query(description="true: only confirmed ones; false: only suspected ones.")] = None,
    kind: Annotated[IncidentType | None, Query(alias="type", description="Only incidents of this type.")] = None,
    severity: Annotated[Severity | None, Query(description="Only incidents of this severity.")] = None,
    agent: Annotated[Id | None, Query(description="Only incidents whose leading series or evidence names this agent.")] = None,
    assignee: Annotated[
        Id | None, Query(description="Only incidents assigned to this person; me: to the caller; nobody: unassigned.")
    ] = None,
    text: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_TEXT,
            description="Only incidents with this text in the title, description, project or agent, or at the beginning of the id.",
        ),
    ] = None,
    sort: Annotated[
        Sort,
        Query(
            description="Sort order, newest by default. worst: live before closed, then notices last, confirmed before suspected, critical before "
            "warning, open before acknowledged, drift before spikes, larger changes before smaller ones. since: by the first day of "
            "the change, newest first."
        ),
    ] = "newest",
    snoozed: Annotated[
        bool | None, Query(description="true: only snoozed ones; false: only ones that are not snoozed.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Inbox:
    """List the incidents of all projects that the caller may see. The answer leaves out the texts of their queries."""
    if project is not None:
        require_project(caller, project)
    inbox_filter = InboxFilter(
        project=caller.project or project,
        statuses=[current_status(name) for name in status or ()],
        kind=kind,
        confirmed=confirmed,
        severity=severity,
        agent=agent,
        assignee=caller.name if assignee == ME else assignee,
        text=text,
        snoozed=snoozed,
        sort=sort,
    )
    now = services.engine.now()
    matches = await services.ask(lambda connection: inbox(connection, inbox_filter, cursor, limit + 1, now=now))
    page, next_cursor = page_of(matches.listed, limit, lambda match: match.place)
    answers = [incident_answer(match.incident, with_sql=False) for match in page]
    return Inbox(answers, len(answers), matches.total, next_cursor)


@router.post(INBOX_BULK, responses=documented(400, 408, 413, 415))
async def change_incidents(caller: Reviewer, request: Request, services: Services, body: BulkBody) -> ChangeOutcomes:
    """Decide on many incidents, assign them, snooze them, or comment on them, with one reason for all.

    Each incident is changed separately. The answer has the outcome for each, with the reason if it was not changed.
    """
    change, person = body.change(caller, services.engine.redactor, services.engine.now())
    selected = [(incident.project, incident.id) for incident in body.incidents]
    name_selected(request, selected)
    with durable_or_refused():
        outcomes = await change_selected(services, caller, selected, change, person)
    results = [_build_outcome(outcome) for outcome in outcomes]
    done = sum(result.done for result in results)
    return ChangeOutcomes(results, done, len(results) - done)


def _build_outcome(outcome: Outcome) -> ChangeOutcome:
    incident = outcome.incident
    return ChangeOutcome(
        project=outcome.project,
        id=outcome.incident_id,
        done=outcome.error is None,
        status=None if incident is None else cast(IncidentStatus, current_status(incident.status)),
        assignee=None if incident is None else assignee_of(incident),
        code=outcome.code,
        error=outcome.error,
    )


VIEWS = f"{INBOX}/views"
MAX_QUERY = 2000
"""Maximum length of a view's filters, in characters."""
NameField = Annotated[str, StringConstraints(min_length=1, max_length=MAX_VIEW_NAME)]


class ViewBody(OperatorBody):
    """A view to save. It replaces your view of the same name."""

    name: NameField
    query: Annotated[str, StringConstraints(max_length=MAX_QUERY)] = Field(
        description="Filters, as in the address of the inbox.", examples=["assignee=me&severity=critical"]
    )
    shared: bool = Field(False, description="Visible to everyone; needs the scope review.")


@router.get(VIEWS, responses=documented())
def list_views(caller: Reader, services: Services) -> ViewList:
    """List the saved views of the inbox that the caller may see."""
    views = views_of(services, caller)
    return ViewList(views=views, count=len(views))


@router.post(VIEWS, responses=documented(400, 408, 413, 415))
def save_view(caller: Reader, services: Services, body: ViewBody) -> View:
    """Save a view of the inbox: filters with a name."""
    return store_view(services, caller, body.name, body.query, is_shared=body.shared)


@router.delete(f"{VIEWS}/{{name}}", status_code=204, responses=documented(404, 408, 413, 415))
def delete_view(
    caller: Reader, services: Services, name: Annotated[NameField, Path(description="Name of the view.")]
) -> Response:
    """Delete one of the caller's saved views."""
    remove_view(services, caller, name)
    return Response(status_code=204)


_HTTP_STATUS = {"not_found": 404, "conflict": 409, "over": 409}
"""The HTTP status for each code of a failed change; 400 for other codes."""
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
    """List the incidents of a project, newest first. The answer leaves out the texts of their queries."""

    def read_incidents(connection: duckdb.DuckDBPyConnection) -> list[IncidentAnswer]:
        records = incident_records(
            connection,
            project,
            statuses=[current_status(name) for name in status or ()],
            kind=kind,
            confidence=confidence_of(confirmed=confirmed),
            before=after(cursor),
            limit=limit + 1,
        )
        return [incident_answer(record, with_sql=False) for record in records]

    page, next_cursor = page_of(await services.ask(read_incidents), limit, _page_position)
    return Incidents(page, len(page), next_cursor)


@router.get(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(404))
async def incident(_: Reader, project: VisibleProject, services: Services, incident_id: IncidentId) -> OneIncident:
    """Return one incident with its evidence and the texts of its queries."""
    record = await services.watch.incident(project, incident_id)
    if record is None:
        raise ApiError(404, "not_found", PROBLEMS["not_found"])
    return await _read_with_history(services, record)


@router.get(
    f"{PROJECT}/incidents/{{incident_id}}/cases",
    responses=documented(400, 404, 409) | {200: {"content": {"application/yaml": {}}, "description": "The cases, as a file."}},
    response_class=Response,
)
async def incident_cases(
    _: Reader,
    project: VisibleProject,
    services: Services,
    incident_id: IncidentId,
    *,
    limit: Annotated[int, Query(ge=1, le=MAX_CASES, description="Most exchanges of the incident.")] = DEFAULT_MOVED,
    healthy: Annotated[
        int | None, Query(ge=0, le=MAX_CASES, description="Healthy exchanges from before; by default as many.")
    ] = None,
) -> Response:
    """Return the exchanges that moved an incident most, and healthy ones from before, as frozen cases for `driftline gate`.

    409 if the evidence names no exchange, or if there is none from before the change.
    """
    record = await services.watch.incident(project, incident_id)
    if record is None:
        raise ApiError(404, "not_found", PROBLEMS["not_found"])
    policy = services.engine.policy

    def freeze(connection: duckdb.DuckDBPyConnection) -> str:
        return write_cases(freeze_incident(connection, record, policy, count=limit, healthy=healthy))

    try:
        text = await services.ask(freeze)
    except InputError as error:
        raise ApiError(409, "no_cases", f"{error}. {error.hint}") from None
    headers = {
        "Content-Disposition": f'attachment; filename="cases-{record.incident_id[:8]}.yaml"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return Response(text, media_type="application/yaml", headers=headers)


@router.put(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(400, 404, 408, 409, 413, 415))
async def decide(
    caller: Reviewer, project: VisibleProject, services: Services, incident_id: IncidentId, body: ChangeBody
) -> OneIncident:
    """Acknowledge, resolve, dismiss or reopen an incident, assign it, snooze it, or comment on it.

    400 for newNormal with a state other than resolved, and for an assignee who may not see the project. 409 if another live
    incident is about the same change, and for the snooze of an incident that is over.
    """
    change, person = body.change(caller, services.engine.redactor, services.engine.now())
    with durable_or_refused():
        [outcome] = await change_selected(services, caller, [(project, incident_id)], change, person)
    if outcome.error is not None or outcome.incident is None:
        raise ApiError(_HTTP_STATUS.get(outcome.code or "", 400), outcome.code or "invalid", outcome.error or "")
    return await _read_with_history(services, outcome.incident)


@router.post(f"{PROJECT}/check", responses=documented(404, 408, 409, 413, 415))
async def check(_: Admin, project: VisibleProject, services: Services) -> DriftCheck:
    """Check for drift and anomaly spikes now, as the server does after new scores, and return the findings."""
    with durable_or_refused():
        results = await services.watch.check([project])
    if not results:
        raise ApiError(409, "audit_disabled", f"the policy switches the audit of project {project} off")
    version = services.engine.policy.for_project(project).methodology.version
    return drift_check(results[0], version)


async def _read_with_history(services: Services, incident: Incident) -> OneIncident:
    history = await services.ask(lambda connection: history_of(connection, incident.incident_id))
    return one_incident(incident, history)


def _page_position(incident: IncidentAnswer) -> Place:
    return Place(incident.detected_at, incident.id)
