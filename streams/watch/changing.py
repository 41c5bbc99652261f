"""A change that a person makes to an incident: a decision, an assignee, a comment, alone or together.

1. A change is applied in this order: the decision, which carries the comment; then the assignee; the comment alone where there is neither.
2. What is so already is no failure: nothing is written, and the comment is kept as one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.records import Incident
from streams.watch.incidents.states import shows
from streams.watch.watching import Watch

Which = tuple[str, str]
"""An incident, by project and id."""
Problem = Literal["not_found", "conflict"]
PROBLEMS: dict[str, str] = {
    "not_found": "the project has no incident with this id",
    "conflict": "another live incident is about the same tier and direction",
}
"""Why an incident was not changed, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of an incident; at least one of its parts is given."""

    decision: str | None = None
    """One of `states.DECISIONS`."""
    assigns: bool = False
    """Whether the assignee changes."""
    assignee: str | None = None
    """The person whose it is to be; None for nobody."""
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome of a change of one incident: the incident as it is now, or why it was not changed."""

    incident: Incident | None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """The person who changes it. `entered_by` is the person who enters that for another."""

    name: str
    entered_by: str | None = None


async def change(watch: Watch, which: Which, wanted: Change, person: Person, now: datetime | None = None) -> Changed:
    """Change one incident, at the present unless `now` is given."""
    project, incident_id = which
    before = await watch.incident(project, incident_id)
    if before is None:
        return Changed(None, "not_found")
    made, told = before, False
    if wanted.decision is not None:
        who, entered_by = person.name, person.entered_by
        decided = await watch.decide(project, incident_id, wanted.decision, who, wanted.comment, entered_by=entered_by, now=now)
        if decided is None or not shows(decided, wanted.decision):
            return Changed(decided or before, "conflict")
        made, told = decided, decided.revision != before.revision
    if wanted.assigns:
        comment = None if told else wanted.comment
        assigned = await watch.assign(made, wanted.assignee, person.name, comment, entered_by=person.entered_by, now=now)
        made, told = assigned, told or assigned.revision != made.revision
    if wanted.comment and not told:
        await watch.comment(made, person.name, wanted.comment, entered_by=person.entered_by, now=now)
    return Changed(made)
