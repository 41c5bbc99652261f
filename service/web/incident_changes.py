"""Changes of selected incidents by a caller: each within what the caller may see, and each with how it went."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from schemas.errors import DriftlineError
from schemas.lazy.duckdb import duckdb
from schemas.records import Incident
from service.read.inbox.assignees import assignee_problem, people_of
from service.setup.access.access import Holder
from service.web.audit_trail import name_subject
from service.web.context import ApiContext
from streams.watch.watching import PROBLEMS, Change, Person, Which, change

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the change of one incident: the incident as it is now, or why it was not changed."""

    project: str
    incident_id: str
    incident: Incident | None
    code: str | None = None
    error: str | None = None


async def change_selected(
    services: ApiContext, caller: Holder, selected: Sequence[Which], wanted: Change, person: Person
) -> list[Outcome]:
    """Change incidents, each given by project and id, one after another; answers how each went, in their order.

    What keeps every record from being durable, such as a full disk, ends it with that error if nothing was changed before.
    """
    outcomes: list[Outcome] = []
    for which in dict.fromkeys(selected):
        try:
            outcomes.append(await _changed(services, caller, which, wanted, person))
        except (DriftlineError, duckdb.Error):
            if not any(one.error is None for one in outcomes):
                raise
            log.exception("an incident was not changed")
            outcomes.append(Outcome(*which, None, "log_unavailable", "the log cannot take records at the moment"))
    return outcomes


async def _changed(services: ApiContext, caller: Holder, which: Which, wanted: Change, person: Person) -> Outcome:
    project = which[0]
    if caller.project not in {None, project}:
        return Outcome(*which, None, "other_project", "the token is for another project")
    if wanted.assigns and wanted.assignee is not None:
        people = {*people_of(services.access, project), caller.name}
        if (problem := assignee_problem(wanted.assignee, people, project)) is not None:
            return Outcome(*which, None, "invalid", problem)
    made = await change(services.watch, which, wanted, person)
    if made.problem is not None:
        return Outcome(*which, made.incident, made.problem, PROBLEMS[made.problem])
    return Outcome(*which, made.incident)


def name_selected(request: Request, selected: Sequence[tuple[str, str]]) -> None:
    """Name the incidents that a call changes in its line of the audit log: how many, and as many ids as have room."""
    name_subject(request, f"{len(selected)} incidents: {' '.join(identity for _, identity in selected)}")
