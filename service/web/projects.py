"""Projects with their health and what changed about each, as a caller may see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from analytics.sums.whole_days import query_days
from service.read.fleet.changes import with_changes, with_levels
from service.read.fleet.rows import rows_of_fleet
from service.read.project_checks import asked_of_projects
from service.text.window import recent_window
from service.web.context import ApiContext

Row = dict[str, Any]


async def project_rows(services: ApiContext, own: str | None, until: date | None = None) -> list[Row]:
    """Return every project, or `own`, by name, with its health: also those that only have a connection.

    `until` is the last of the days of their figures, today by default.
    """
    now = services.engine.now()
    values = asked_of_projects(own, now, until)
    found: Sequence[Row] = await services.ask(lambda cursor: query_days(cursor, "projects", values))
    connected = {project for project in services.access.connected_projects() if own in (None, project)}
    return rows_of_fleet(found, connected, services.engine.policy, recent_window(now, until).last)


async def worst_of(services: ApiContext, rows: Sequence[Row], own: str | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the incident that says most about each project, the worst first; `rows` are those of projects, `own` the only one to be seen."""
    return await services.worst_incidents(own) if any(row["open_incidents"] for row in rows) else {}


async def rows_with_changes(services: ApiContext, rows: Sequence[Row], own: str | None) -> list[Row]:
    """Return rows of projects, each with its `change` and the levels of that by day; None where nothing is known."""
    changed = with_changes(rows, await worst_of(services, rows, own))
    return await services.ask(lambda cursor: with_levels(cursor, changed, own))


async def project_row(services: ApiContext, project: str) -> Row:
    """Return one project with its health; that of an empty one if it is unknown."""
    return row_of(services, project, await project_rows(services, project))


def row_of(services: ApiContext, project: str, rows: Sequence[Row]) -> Row:
    """Return the one row of a project, or that of an empty one."""
    return (
        rows[0] if rows else rows_of_fleet((), {project}, services.engine.policy, recent_window(services.engine.now()).last)[0]
    )
