"""Costs by session: the most expensive sessions of some days, by the days of their exchanges."""

from __future__ import annotations

from typing import Annotated, Any

import duckdb
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import run_query
from service.documents.runs import with_run_ids
from service.http.context import Services
from service.pages.projects.days import shown_window
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer
from service.pages.window import Asked, Window

router = APIRouter(include_in_schema=False)
MOST = 100


@router.get("/projects/{project}/costs")
async def costs(
    request: Request,
    _: Viewer,
    project: ShownProject,
    services: Services,
    asked: Asked,
    limit: Annotated[int, Query(ge=1, le=MOST, description="Maximum number.")] = MOST,
) -> HTMLResponse:
    """Show the sessions that cost most."""
    today = services.engine.now().date()

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[Window, list[dict[str, Any]]]:
        window = shown_window(cursor, project, asked, today)
        return window, _most_expensive(cursor, project, window, limit)

    window, sessions = await services.ask(read)
    return page(request, "project_costs.html", {"project": project, "window": window, "sessions": sessions, "most": limit})


def _most_expensive(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, limit: int) -> list[dict[str, Any]]:
    """Return the most expensive sessions first, each with its run if it became one."""
    values = {"by": "session", "project": project, "from": window.start, "to": window.end}
    found = run_query(cursor, "window_costs", values).head(limit).to_dicts()
    return with_run_ids(cursor, project, found)
