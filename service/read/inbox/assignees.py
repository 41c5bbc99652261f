"""The people to whom an incident can be assigned: operators who may see its project and hold a live token."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from service.setup.access.access import AccessStore

NAMED = 10
"""People that a message lists."""


def people_of(access: AccessStore, project: str | None) -> list[str]:
    """Return the people to whom incidents of a project can be assigned, by name; None: of at least one project."""
    return [
        one.name
        for one, tokens in access.holders("operator")
        if (project is None or one.project in {None, project})
        and "read" in one.scopes
        and any(token.state == "live" for token in tokens)
    ]


def assignee_problem(name: str, people: Collection[str], project: str) -> str | None:
    """Return why an incident of a project cannot be assigned to this person, with the nearest names; None if it can."""
    if name in people:
        return None
    near = difflib.get_close_matches(name, people, n=1)
    known = ", ".join(sorted(people)[:NAMED]) + (f" and {len(people) - NAMED} more" if len(people) > NAMED else "")
    return f"assignee: no operator of this name may see project {project}; " + (
        f"did you mean {near[0]}?" if near else f"there are {known}"
    )
