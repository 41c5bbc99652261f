"""Bodies of changes of incidents: a decision, an assignee, a comment, of one incident or of many."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from audit.redaction import Redactor
from service.read.inbox.incident_list import ME, NOBODY
from service.setup.access.access import Holder
from service.web.bounds import MAX_SELECTED
from service.web.errors import ApiError
from service.web.models import ConnectionName, Id, OperatorBody, Text
from streams.upkeep.reviewing import MAX_COMMENT
from streams.watch.lifecycle import ACCEPTED, RESOLVED, decision_of
from streams.watch.watching import Change, Person

GivenStatus = Literal["open", "acknowledged", "resolved", "dismissed", "accepted"]
"""States as callers name them; `accepted` is the earlier name of resolved as the new normal."""


class ChangeBody(OperatorBody):
    """A change of an incident: a decision, an assignee, a comment, or several of them."""

    status: GivenStatus | None = Field(
        None,
        description="acknowledged: you work on it, and it stays red; resolved: it is over or fixed; dismissed: it does not matter; "
        "open: reopened. accepted is the earlier name of resolved with newNormal.",
    )
    new_normal: bool = Field(
        False,
        alias="newNormal",
        description="With resolved: the change is the new normal, and comparisons begin with its first day.",
    )
    assignee: Id | None = Field(
        None,
        description="Person whose it is from now on: an operator who may see the project, or me; null or nobody: nobody. "
        "Left out: unchanged, except that who acknowledges an incident that nobody has gets it.",
    )
    resolved_by: Id | None = Field(None, alias="resolvedBy", description="Person who does this; by default the operator.")
    comment: Annotated[Text, StringConstraints(max_length=MAX_COMMENT)] | None = Field(
        None, description="Why; without a status and an assignee, a comment alone."
    )

    def change(self, caller: Holder, redactor: Redactor) -> tuple[Change, Person]:
        """Return the change and the person who makes it; ApiError (400) that names a field if it says nothing, or contradicts itself."""
        assigns = "assignee" in self.model_fields_set
        comment = self.comment.strip() if self.comment else ""
        if self.status is None and not assigns and not comment:
            raise ApiError(400, "invalid", "status: give a status, an assignee or a comment")
        if self.new_normal and self.status not in {RESOLVED, ACCEPTED}:
            raise ApiError(400, "invalid", "newNormal: needs the status resolved")
        wanted = Change(
            decision=None if self.status is None else decision_of(self.status, new_normal=self.new_normal),
            assigns=assigns,
            assignee=_assignee(self.assignee, caller),
            comment=redactor.redact(comment)[0] if comment else None,
        )
        return wanted, Person(redactor.redact(self.resolved_by or caller.name)[0], caller.name)


class Selected(OperatorBody):
    """An incident of a project."""

    project: ConnectionName
    id: Id


class BulkBody(ChangeBody):
    """One change of many incidents, with one reason for all."""

    incidents: Annotated[list[Selected], Field(min_length=1, max_length=MAX_SELECTED)]


def _assignee(given: str | None, caller: Holder) -> str | None:
    return {None: None, NOBODY: None, ME: caller.name}.get(given, given)
