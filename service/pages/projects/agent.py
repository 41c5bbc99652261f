"""An agent over all its projects: its figures, versions, behaviour, incidents and newest sessions."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from starlette.datastructures import QueryParams

from analytics.queries import query_rows
from audit.drift.watched_series import TIERS
from schemas.bounds import EARLIEST, LATEST
from schemas.lazy import duckdb
from service.pages.listing import Listing, parse_list_request, read_page
from service.pages.lists import FLEET_LISTS
from service.pages.periods import ListPeriod, range_control
from service.pages.project_charts import draw_agent_quality
from service.pages.projects.agent_health import compare_behaviour, limit_behaviour, read_trust_chart
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.cold_days import cold_days
from service.read.incidents import ANY, filter_of, inbox
from service.read.versions import AgentVersions, agent_versions
from service.text.links import AGENT_PAGE, FLEET_SESSIONS
from service.text.window import USUAL, listed_window, quarter_to
from service.web.context import Services
from service.web.errors import ApiError

router = APIRouter(include_in_schema=False)
_SESSIONS = FLEET_LISTS["sessions"].showing(agent=False, project=True)
"""Sessions of an agent, whose name needs no column."""
_MAX_PROJECTS = 100
"""Projects in the table."""
_MAX_DETAILED = 5
"""Projects whose versions and behaviour are read: those of most exchanges."""
_MAX_BEHAVIOUR = 250
"""Measures in the tables of what it does."""
_MAX_SESSIONS = 10
_MAX_INCIDENTS = 10


@router.get(f"{AGENT_PAGE}/{{name:path}}")
async def agent(
    request: Request, viewer: Viewer, services: Services, period: ListPeriod, name: Annotated[str, Path(max_length=512)]
) -> HTMLResponse:
    """Show an agent over all projects that the viewer may see."""
    now = services.engine.now()
    window = listed_window(period, now)
    since, until = (window.start, window.end) if window else (EARLIEST, LATEST)
    last = min(until, now)
    quarter = quarter_to(last - timedelta(microseconds=1))
    shown_window = (window or quarter).in_steps()
    # Quality is drawn by day.
    is_daily = window is not None and not window.is_hourly
    chart_window = shown_window if is_daily else dataclasses.replace(quarter, length=USUAL)
    sessions_request = parse_list_request(_SESSIONS, QueryParams({"agent": name}), FLEET_SESSIONS)
    filters = filter_of({"agent": [name], "status": [ANY]}, viewer.project, viewer.name)

    def read_projects(cursor: duckdb.DuckDBPyConnection) -> tuple[list[dict[str, Any]], list[Any], dict[str, Any], list[Any]]:
        params = {"agent": name, "project": viewer.project, "since": since, "until": until}
        projects = query_rows(cursor, "agent_projects", params)
        versions: list[tuple[str, AgentVersions]] = []
        behaviour: dict[str, list[dict[str, Any]]] = {}
        charts: list[tuple[str, list[tuple[str, Markup]]]] = []
        for number, row in enumerate(projects[:_MAX_DETAILED]):
            project = row["project"]
            drawn = (
                ("Trust by run", read_trust_chart(cursor, project, name, (since, until), number=number)),
                (f"{TIERS['tier2']} by day", draw_agent_quality(cursor, project, name, chart_window)),
            )
            charts.append((project, [(title, chart) for title, chart in drawn if chart]))
            compared = agent_versions(cursor, project, quarter.start, quarter.end, name).agents
            versions += [(project, entry) for entry in compared]
            if measures := compare_behaviour(cursor, project, shown_window, name).get(name):
                behaviour[project] = measures
        return projects, versions, limit_behaviour(behaviour, _MAX_BEHAVIOUR), charts

    def read_sessions(cursor: duckdb.DuckDBPyConnection) -> Listing:
        return read_page(cursor, viewer.project, sessions_request, (since, until), page_size=_MAX_SESSIONS)

    (projects, versions, behaviour, charts), sessions, incidents, cold = await asyncio.gather(
        services.ask(read_projects),
        services.ask(read_sessions),
        services.ask(lambda cursor: inbox(cursor, filters, None, _MAX_INCIDENTS, outlined=True)),
        services.ask(lambda cursor: cold_days(cursor, viewer.project, quarter.start, quarter.end)),
    )
    if not (projects or sessions.rows or incidents.listed):
        raise ApiError(404, "not_found", "no project has records of this agent in the period")
    values = {
        "agent": name,
        "behaviour_words": shown_window.words,
        "range": range_control(request, window, now, has_all=True, has_comparison=False),
        "projects": projects[:_MAX_PROJECTS],
        "more_projects": max(len(projects) - _MAX_PROJECTS, 0),
        "has_more_details": len(projects) > _MAX_DETAILED,
        "max_detailed": _MAX_DETAILED,
        "versions": versions,
        "cold": cold,
        **behaviour,
        "charts": [entry for entry in charts if entry[1]],
        "listing": sessions,
        "incidents": [entry.incident for entry in incidents.listed],
        "total_incidents": incidents.total,
        "project": None,
    }
    return page(request, "agent.html", values)
