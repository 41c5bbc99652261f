"""Projects visible to a caller, read with the context of an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from service.read.project import Project, read_projects, with_changes, with_levels
from service.web.context import ApiContext


async def projects_of(services: ApiContext, own: str | None, until: date | None = None) -> list[Project]:
    """Return every project, or only `own`, by name, including projects that only have a connection.

    `until` is the last of the days of their figures, today by default.
    """
    engine = services.engine
    connected = {project for project in services.access.connected_projects() if own in (None, project)}
    return await services.ask(
        lambda cursor: read_projects(cursor, engine.policy, engine.now(), project=own, until=until, connected=connected)
    )


async def worst_of(services: ApiContext, projects: Sequence[Project], own: str | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the worst incident of each project, worst first; `own` is the only visible project."""
    return await services.worst_incidents(own) if any(project.open_incidents for project in projects) else {}


async def with_their_changes(services: ApiContext, projects: Sequence[Project], own: str | None) -> list[Project]:
    """Return projects with their changes and daily levels; a change is None without data."""
    changed = with_changes(projects, await worst_of(services, projects, own))
    return await services.ask(lambda cursor: with_levels(cursor, changed, own))
