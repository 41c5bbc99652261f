"""Incidents of all projects over HTTP: one list that filters, orders and pages."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query, Request
from msgspec import Meta

from service.read.inbox import MAX_TEXT, ME, InboxFilter, Sort, inbox
from service.read.incidents import IncidentAnswer, IncidentStatus, IncidentType, incident_answer
from service.text.answers import Answer, NextCursor, page_of
from service.text.links import INBOX, INBOX_BULK
from service.web.authentication import Reader, Reviewer, require_project
from service.web.bodies import JsonRoute
from service.web.context import Services, durable_or_refused
from service.web.errors import documented
from service.web.incident_changes import BulkBody, GivenStatus, Outcome, change_selected, name_selected
from service.web.models import ConnectionName, Id
from service.web.parameters import Cursor, Limit
from streams.watch.lifecycle import assignee_of, current_status

router = APIRouter(route_class=JsonRoute, tags=["incidents"])


class Inbox(Answer, frozen=True):
    """Incidents of all projects that the caller may see."""

    incidents: list[IncidentAnswer]
    count: int
    total: Annotated[int, Meta(description="How many match, on all pages.")]
    next_cursor: NextCursor = None


class ChangeOutcome(Answer, frozen=True):
    """The outcome of the change of one incident."""

    project: str
    id: str
    done: Annotated[bool, Meta(description="Whether it is now as asked for.")]
    status: Annotated[IncidentStatus | None, Meta(description="Its state now; null if there is no such incident.")]
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
    severity: Annotated[Literal["warning", "critical"] | None, Query(description="Only incidents of this severity.")] = None,
    agent: Annotated[Id | None, Query(description="Only incidents whose leading series or evidence names this agent.")] = None,
    assignee: Annotated[
        Id | None, Query(description="Only incidents of this person; me: of the caller; nobody: without an assignee.")
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
            description="worst: live, confirmed, critical and open ones first, of equals a drift before a spike, then the one that moved "
            "farthest; since: the newest first day first."
        ),
    ] = "newest",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Inbox:
    """List the incidents of all projects that the caller may see, without the texts of their queries."""
    if project is not None:
        require_project(caller, project)
    wanted = InboxFilter(
        project=caller.project or project,
        statuses=[current_status(one) for one in status or ()],
        kind=kind,
        confirmed=confirmed,
        severity=severity,
        agent=agent,
        assignee=caller.name if assignee == ME else assignee,
        text=text,
        sort=sort,
    )
    found = await services.ask(lambda reading: inbox(reading, wanted, cursor, limit + 1))
    shown, following = page_of(found.listed, limit, lambda one: one.place)
    told = [incident_answer(listed.incident, with_sql=False) for listed in shown]
    return Inbox(told, len(told), found.total, following)


@router.post(INBOX_BULK, responses=documented(400, 408, 413, 415))
async def change_incidents(caller: Reviewer, request: Request, services: Services, body: BulkBody) -> ChangeOutcomes:
    """Decide on many incidents, assign them, or comment on them, with one reason for all.

    Each incident is changed separately: the answer has the outcome of each, with the reason if it was not changed.
    """
    wanted, person = body.change(caller, services.engine.redactor)
    selected = [(one.project, one.id) for one in body.incidents]
    name_selected(request, selected)
    with durable_or_refused():
        outcomes = await change_selected(services, caller, selected, wanted, person)
    results = [_outcome(one) for one in outcomes]
    done = sum(one.done for one in results)
    return ChangeOutcomes(results, done, len(results) - done)


def _outcome(one: Outcome) -> ChangeOutcome:
    now = one.incident
    return ChangeOutcome(
        project=one.project,
        id=one.incident_id,
        done=one.error is None,
        status=None if now is None else cast(IncidentStatus, current_status(now.status)),
        assignee=None if now is None else assignee_of(now),
        code=one.code,
        error=one.error,
    )
