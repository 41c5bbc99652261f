"""What judging cost by session: the dearest sessions of some days, by the day on which the judge answered."""

from __future__ import annotations

from typing import Annotated, Any

import duckdb
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import run_query
from service.api.context import Services
from service.dashboard.rendering import page
from service.dashboard.viewing import ShownProject, Viewer
from service.dashboard.window import Asked, Window, window_of
from service.runs import with_run_ids

router = APIRouter(include_in_schema=False)
MOST = 100


@router.get("/projects/{project}/costs")
async def costs(
    request: Request,
    _: Viewer,
    project: ShownProject,
    services: Services,
    asked: Asked,
    limit: Annotated[int, Query(ge=1, le=MOST, description="At most so many.")] = MOST,
) -> HTMLResponse:
    """The sessions that cost most."""
    window = window_of(asked, services.engine.now().date())
    sessions = await services.ask(lambda cursor: _dearest(cursor, project, window, limit))
    return page(request, "project_costs.html", {"project": project, "window": window, "sessions": sessions, "most": limit})


def _dearest(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, limit: int) -> list[dict[str, Any]]:
    """The sessions that cost most, the dearest first, each with its run where it is finished."""
    values = {"by": "session", "project": project, "from": window.start, "to": window.end}
    found = run_query(cursor, "judge_costs", values).head(limit).to_dicts()
    return with_run_ids(cursor, project, found)
