"""Incidents over HTTP: findings, their evidence, and decisions on them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from service.http.answers.project_answers import Moment, ProjectAnswer
from service.read.incidents import check_document, history_of, incident_document, incident_records
from service.text.cursors import Place, after, page_of
from service.text.members import Document
from service.text.paths import API
from service.web.authentication import Admin, Reader, Reviewer, VisibleProject
from service.web.bodies import JsonRoute
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.incident_bodies import ChangeBody, GivenStatus
from service.web.incident_changes import change_selected
from service.web.models import Id, IncidentType
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer
from streams.watch.changing import PROBLEMS
from streams.watch.incidents.states import confidence_of, current_status

_STATUS = {"not_found": 404, "conflict": 409}

router = APIRouter(route_class=JsonRoute, tags=["incidents"])
PROJECT = f"{API}/{{project}}"
IncidentStatus = Literal["open", "acknowledged", "resolved", "dismissed"]
IncidentId = Annotated[Id, Path(description="Id of the incident.")]


class MovedAnswer(Answer):
    """A series that moved in an incident."""

    series: str
    tier: str | None
    agent: str | None
    direction: str | None
    kind: Literal["mean", "spread", "further"]
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


class CountAnswer(ProjectAnswer):
    """The number of exchanges or runs with something before a change and since it, of how many."""

    name: str = Field(description="Check, reason, failure or sampling reason; empty for any.")
    before: int
    all_before: int
    after: int
    all_after: int


class ReasonAnswer(Answer):
    """A reason of an incident."""

    kind: str = Field(examples=["tier1_flags", "dimensions", "failures", "slice", "deployments"])
    text: str = Field(description="In a sentence. What coincides with the change is not called its cause.")
    counts: list[CountAnswer] = Field(description="The counts it rests on; empty for means and words.")


class TargetAnswer(Answer):
    """A link of an action."""

    title: str
    path: str = Field(description="Path on this server, or the address that was recorded with a deployment.")
    note: str
    command: str | None = Field(description="The same on the command line.")


class ActionAnswer(Answer):
    """A thing to do about an incident."""

    id: str = Field(examples=["read_sessions", "roll_back", "anchors"])
    title: str
    because: str = Field(description="The evidence that speaks for it.")
    links: list[TargetAnswer]
    command: str | None


class WhyAnswer(Answer):
    """The explanation of an incident and what to do about it; derived from its evidence."""

    summary: str = Field(description="The most telling reason.")
    reasons: list[ReasonAnswer] = Field(description="The most telling one first.")
    actions: list[ActionAnswer] = Field(description="The first thing to do first.")


class IncidentAnswer(ProjectAnswer):
    """A change that needs a person's attention."""

    id: str
    project: str
    type: IncidentType
    status: IncidentStatus
    severity: Literal["warning", "critical"]
    title: str
    description: str = Field(description="The finding, with its numbers.")
    why: WhyAnswer
    metadata: dict[str, Any] = Field(
        description="The evidence: findings of each rule by day, the baseline, the exchanges with the largest effect, the queries."
    )
    detected_at: Moment
    resolved_at: Moment | None
    resolved_by: str | None
    tier: str | None
    direction: str | None = Field(description="up or down.")
    rule: str = Field(description="Rule that found it.", examples=["sequential", "consecutive_days", "rate_ratio"])
    cause: str | None = Field(
        description="Cause: agent or judge, as far as anchors show; mix, if the shares of the traffic explain the change; history, if records that were imported later do."
    )
    confidence: Literal["suspected", "confirmed"] = Field(description="Only confirmed incidents send alerts.")
    confirmed_at: Moment | None
    resolution: str | None = Field(description="Why it is resolved: recovered, vanished, fixed or new_normal.")
    acknowledged_at: Moment | None
    acknowledged_by: str | None = Field(description="Person who works on it.")
    assignee: str | None = Field(description="Person whose it is; null: nobody. Who acknowledges one that nobody has gets it.")
    assigned_at: Moment | None = Field(description="When its assignee last changed.")
    agent: str | None = Field(description="Agent of the leading series; null for a series of the whole project.")
    first_day: str | None
    last_day: str | None = Field(description="Last day of the change, once it is over.")
    moved: list[MovedAnswer] = Field(description="Series that moved, the leading one first.")
    baseline_id: str | None
    checked_at: Moment | None
    revision: int


class EventAnswer(Answer):
    """An action of a person on an incident: by whom and when."""

    kind: Literal["decision", "assignment", "comment"]
    by: str
    at: Moment
    status: GivenStatus | Literal["new_normal"] | None = Field(description="Of a decision.")
    assignee: str | None = Field(description="Of an assignment; null: to nobody.")
    comment: str | None


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
    """An incident with its decisions, and everything that people did with it, oldest first."""

    incident: IncidentAnswer
    decisions: list[DecisionAnswer]
    history: list[EventAnswer] = Field(description="Decisions, assignments and comments.")


class FindingAnswer(Answer):
    """A finding of a rule, whether or not there is an incident of it already."""

    rule: str
    type: IncidentType
    tier: str | None
    direction: str | None
    severity: Literal["warning", "critical"]
    agent: str | None
    kind: Literal["mean", "spread", "further"]
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
    not_compared: list[str] = Field(description="What was not compared since when, and why, a sentence each.")
    baseline: dict[str, Any] | None = Field(description="As of `GET /api/audit/{project}/baseline`.")
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
        raise ApiError(404, "not_found", PROBLEMS["not_found"])
    return await _with_decisions(services, incident_document(found))


@router.put(f"{PROJECT}/incidents/{{incident_id}}", responses=documented(400, 404, 408, 409, 413, 415))
async def decide(
    caller: Reviewer, project: VisibleProject, services: Services, incident_id: IncidentId, body: ChangeBody
) -> OneIncidentAnswer:
    """Acknowledge, resolve, dismiss or reopen an incident, assign it, or comment on it.

    400 for newNormal with a state other than resolved, and for an assignee who may not see the project; 409 if another live
    incident is about the same change.
    """
    wanted, person = body.change(caller, services.engine.redactor)
    with durable_or_refused():
        (outcome,) = await change_selected(services, caller, [(project, incident_id)], wanted, person)
    if outcome.error is not None or outcome.incident is None:
        raise ApiError(_STATUS.get(outcome.code or "", 400), outcome.code or "invalid", outcome.error or "")
    return await _with_decisions(services, incident_document(outcome.incident))


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
    history = await services.ask(lambda reading: history_of(reading, document["id"]))
    decisions = [
        {name: one[name] for name in ("status", "by", "comment", "at")} for one in history if one["kind"] == "decision"
    ]
    return OneIncidentAnswer(
        incident=IncidentAnswer.model_validate(document),
        decisions=[DecisionAnswer.model_validate(one) for one in decisions],
        history=[EventAnswer.model_validate(one) for one in history],
    )


def _place(document: Document) -> Place:
    return Place(datetime.fromisoformat(document["detectedAt"]), document["id"])
