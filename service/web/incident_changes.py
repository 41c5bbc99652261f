"""Changes of incidents by a caller: request bodies, changes limited to visible projects, and saved views of the inbox."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Request
from pydantic import Field, StringConstraints

from audit.redaction import Redactor
from schemas.errors import DriftlineError
from schemas.lazy import duckdb
from schemas.records import Incident
from service.read.incidents import ME, NOBODY, assignee_problem, people_of, query_of, read_query, read_snooze_end
from service.setup.access import Holder, View
from service.web.authentication import require_project
from service.web.bounds import MAX_SELECTED
from service.web.context import ApiContext, durable_or_refused
from service.web.errors import ApiError
from service.web.middleware import set_subject
from service.web.models import ConnectionName, Id, OperatorBody, Text
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.lifecycle import ACCEPTED, RESOLVED, decision_of
from streams.watch.watching import PROBLEMS, Change, IncidentKey, Person, apply_change

GivenStatus = Literal["open", "acknowledged", "resolved", "dismissed", "accepted"]
"""The states in requests; `accepted` is the former name of "resolved as the new normal"."""


class ChangeBody(OperatorBody):
    """A change of an incident: any combination of a decision, an assignee, a snooze and a comment."""

    status: GivenStatus | None = Field(
        None,
        description="acknowledged: you are working on it, and it stays open; resolved: it is over or fixed; dismissed: it is unimportant; "
        "open: reopened. accepted is the earlier name of resolved with newNormal.",
    )
    new_normal: bool = Field(
        False,
        alias="newNormal",
        description="With resolved: the change is the new normal, and comparisons start at its first day.",
    )
    assignee: Id | None = Field(
        None,
        description="New assignee: an operator who may see the project, or me; null or nobody unassigns it. If left out, it is "
        "unchanged, except that acknowledging an unassigned incident assigns it.",
    )
    snooze: Annotated[str, StringConstraints(max_length=40)] | None = Field(
        None,
        description="Snoozes a live incident: until a time, for 3d (days) or 8h (hours), at most a year, or until it gets worse, whichever is "
        "first; worse: only until it gets worse; now: ends the snooze.",
        examples=["3d", "worse"],
    )
    resolved_by: Id | None = Field(None, alias="resolvedBy", description="Person who does this; by default the operator.")
    comment: Annotated[Text, StringConstraints(max_length=MAX_COMMENT)] | None = Field(
        None, description="The reason of the change. A body without a status, an assignee and a snooze is only a comment."
    )

    def change(self, caller: Holder, redactor: Redactor, now: datetime) -> tuple[Change, Person]:
        """Return the change and its author. Raises ApiError (400) if the body is empty or contradicts itself."""
        assigns = "assignee" in self.model_fields_set
        comment = self.comment.strip() if self.comment else ""
        if self.status is None and not assigns and not comment and self.snooze is None:
            raise ApiError(400, "invalid", "status: give a status, an assignee, a snooze or a comment")
        if self.new_normal and self.status not in {RESOLVED, ACCEPTED}:
            raise ApiError(400, "invalid", "newNormal: needs the status resolved")
        try:
            until = None if self.snooze is None else read_snooze_end(self.snooze, now)
        except DriftlineError as error:
            raise ApiError(400, "invalid", f"{error}. {error.hint}") from None
        change = Change(
            snoozes=self.snooze is not None,
            until=until,
            decision=None if self.status is None else decision_of(self.status, new_normal=self.new_normal),
            assigns=assigns,
            assignee=_resolve_assignee(self.assignee, caller),
            comment=redactor.redact(comment)[0] if comment else None,
        )
        return change, Person(redactor.redact(self.resolved_by or caller.name)[0], caller.name)


class Selected(OperatorBody):
    """An incident of a project."""

    project: ConnectionName
    id: Id


class BulkBody(ChangeBody):
    """The same change for many incidents, with one reason."""

    incidents: Annotated[list[Selected], Field(min_length=1, max_length=MAX_SELECTED)]


def _resolve_assignee(assignee: str | None, caller: Holder) -> str | None:
    return {None: None, NOBODY: None, ME: caller.name}.get(assignee, assignee)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one incident: its new state, or the reason why it was not changed."""

    project: str
    incident_id: str
    incident: Incident | None
    code: str | None = None
    error: str | None = None


async def change_selected(
    services: ApiContext, caller: Holder, selected: Sequence[IncidentKey], change: Change, person: Person
) -> list[Outcome]:
    """Apply a change to incidents, one after another, and return the outcomes in the same order.

    An error that affects all records, such as a full disk, is raised if no incident has been changed before.
    """
    outcomes: list[Outcome] = []
    for key in dict.fromkeys(selected):
        try:
            outcomes.append(await _change_incident(services, caller, key, change, person))
        except (DriftlineError, duckdb.Error):
            if all(outcome.error is not None for outcome in outcomes):
                raise
            log.exception("an incident was not changed")
            outcomes.append(Outcome(*key, None, "log_unavailable", "the log cannot accept records at the moment"))
    return outcomes


async def _change_incident(services: ApiContext, caller: Holder, key: IncidentKey, change: Change, person: Person) -> Outcome:
    """Apply a change to an incident, if the caller may make it."""
    project = key[0]
    if caller.project not in {None, project}:
        return Outcome(*key, None, "other_project", "the token is for another project")
    if change.assigns and change.assignee is not None:
        people = {*people_of(services.access, project), caller.name}
        problem = assignee_problem(change.assignee, people, project)
        if problem is not None:
            return Outcome(*key, None, "invalid", problem)
    result = await apply_change(services.watch, key, change, person)
    if result.problem is not None:
        return Outcome(*key, result.incident, result.problem, PROBLEMS[result.problem])
    return Outcome(*key, result.incident)


def name_selected(request: Request, selected: Sequence[tuple[str, str]]) -> None:
    """Write the incidents of a call into its line of the audit log: their number, and as many ids as fit."""
    set_subject(request, f"{len(selected)} incidents: {' '.join(identity for _, identity in selected)}")


def views_of(services: ApiContext, caller: Holder) -> list[View]:
    """Return the caller's own views, and shared views unless they name a project that the caller may not see."""
    views = services.access.saved_views.visible_to(caller.name)
    return [view for view in views if view.owner == caller.name or _is_within_project(view, caller)]


def store_view(services: ApiContext, caller: Holder, name: str, query: str, *, is_shared: bool) -> View:
    """Save a view. Raises InputError for an invalid field, and ApiError (403) if the caller may not save it."""
    params = read_query(query)
    for project in params.get("project", ()):
        require_project(caller, project)
    if is_shared and "review" not in caller.scopes:
        raise ApiError(403, "scope_required", "shared: the token lacks the scope review")
    view = View(name.strip(), caller.name, query_of(params), is_shared)
    with durable_or_refused():
        services.access.saved_views.save(view)
    return view


def remove_view(services: ApiContext, caller: Holder, name: str) -> None:
    """Delete a view of the caller. Raises ApiError (404) if no view has this name."""
    with durable_or_refused():
        if not services.access.saved_views.delete(caller.name, name):
            raise ApiError(404, "not_found", "you have no view of this name")


def _is_within_project(view: View, caller: Holder) -> bool:
    return caller.project is None or set(read_query(view.query).get("project", ())) <= {caller.project}
