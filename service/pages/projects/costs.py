"""Costs by session: the sessions of a period (by the time of their exchanges), most expensive first or in another order."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from schemas.lazy import duckdb
from service.pages.charts.projects import known_sum
from service.pages.lists.pages import listed
from service.pages.lists.tables import COSTS
from service.pages.projects.days import costs_of
from service.pages.rendering import page, usd
from service.pages.times.asked import Asked
from service.pages.times.comparison import compared
from service.pages.viewing import ShownProject, Viewer
from service.text.window import Window
from service.web.context import Services

router = APIRouter(include_in_schema=False)


@router.get("/projects/{project}/costs")
async def costs(request: Request, _: Viewer, project: ShownProject, services: Services, asked: Asked) -> HTMLResponse:
    """Show the sessions by what judging them cost, the most expensive first."""

    def beside(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        if window is None or not window.compare:
            return {"spent": None}
        now, before = (known_sum(costs_of(cursor, project, one)) for one in (window, window.before))
        return {"spent": f"{usd(now)} in all, {compared(now, before, usd)}"}

    return page(request, "project_costs.html", await listed(request, services, project, asked, COSTS, beside=beside))
