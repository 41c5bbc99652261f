"""Lists of a project with figures above them: anomalies with their reasons, costs by session, and wrap quality."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from analytics.queries import query_rows
from analytics.sums.daily import is_failure_behind
from audit.exchanges.wrap_quality import STEPS
from schemas.lazy import duckdb
from service.pages.charts import marks_within, share_bar
from service.pages.listing import Listing
from service.pages.lists import ANOMALIES, COSTS, WRAPS, build_list_values
from service.pages.periods import ListPeriod, Period, compared, range_control
from service.pages.project_charts import build_chart_window, draw_costs, read_costs, read_counts, sum_known_costs
from service.pages.projects.agent_health import NO_NAME
from service.pages.rendering import format_reason, number, page, usd
from service.pages.viewing import ShownProject, Viewer
from service.read.agent_costs import read_agent_costs, sum_agent_costs
from service.read.failures import MAX_GROUPS, read_failures
from service.read.runs import with_run_ids
from service.text.answers import Document
from service.text.window import Window, bounds, window_of
from service.web.context import Services

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_MAX_REASONS = 30
_AFTER_SCORE = re.compile(r"( scored| align at) [0-9.]+ or less$")
_MAX_FILTER = 200
"""Characters of a reason in the address of its exchanges."""
_MAX_FAILURES = 100
_MAX_AGENT_COSTS = 50
"""Rows of the table of agents; the query `agent_tokens` has all."""


@router.get("/projects/{project}/anomalies")
async def anomalies(request: Request, _: Viewer, project: ShownProject, services: Services, period: ListPeriod) -> HTMLResponse:
    """Show the anomalies of a project and their reasons."""

    def read_reasons(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        counts = [row["anomalies"] for row in read_counts(cursor, project, window)]
        comparison = f"{number(counts[0])} anomalies, {compared(counts[0], counts[1], number)}" if counts else None
        return {"comparison": comparison, "reasons": _read_reasons(cursor, project, window)}

    values = await build_list_values(request, services, project, period, ANOMALIES, read_more=read_reasons)
    return page(request, "project_anomalies.html", values)


def _read_reasons(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> list[Document]:
    """Return the most frequent reasons with their agents. Bars are relative to the first reason."""
    start, end = bounds(window)
    reasons = query_rows(cursor, "anomaly_reasons", {"project": project, "from": start, "to": end})
    rows = sorted(reasons, key=lambda row: -row["exchanges"])[:_MAX_REASONS]
    max_exchanges: int = max((row["exchanges"] for row in rows), default=1)
    return [
        {
            **row,
            "text": format_reason(row["reason"]),
            "bar": share_bar(row["exchanges"] / max_exchanges, "bad"),
            # The query leaves the score out of a reason, so only the text before it is in each exchange's reason.
            "filter": _AFTER_SCORE.sub(r"\1", row["reason"])[:_MAX_FILTER],
        }
        for row in rows
    ]


@router.get("/projects/{project}/failures")
async def failures(request: Request, _: Viewer, project: ShownProject, services: Services, period: Period) -> HTMLResponse:
    """Show what failed in a project, in groups."""
    now = services.engine.now()
    window = window_of(period, now).in_steps()
    groups, is_behind = await services.ask(
        lambda reading: (read_failures(reading, project, window.start, window.end), is_failure_behind(reading))
    )
    values = {
        "project": project,
        "window": window,
        "range": range_control(request, window, now, has_comparison=False),
        "groups": groups[:_MAX_FAILURES],
        "count": len(groups),
        "is_cut": len(groups) == MAX_GROUPS,
        "more": len(groups) > _MAX_FAILURES,
        "is_behind": is_behind,
    }
    return page(request, "project_failures.html", values)


@router.get("/projects/{project}/costs")
async def costs(request: Request, _: Viewer, project: ShownProject, services: Services, period: Period) -> HTMLResponse:
    """Show the sessions by the cost of judging them, most expensive first."""

    def read_total(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        if window is None:
            return {"total": None, "agent_costs": [], "agent_chart": None, "judging_usd": None}
        window = window.in_steps()
        judging = sum_known_costs(read_costs(cursor, project, window))
        unit = "hour" if window.is_hourly else "day"
        rows = read_agent_costs(cursor, project, window.start, window.end, services.engine.policy.prices, unit=unit)
        values: dict[str, Any] = {
            "window": window,
            "total": None,
            "judging_usd": judging,
            "agent_costs": sum_agent_costs(rows, ["agent", "version", "model"])[:_MAX_AGENT_COSTS],
            "agent_usd": sum_known_costs(rows),
            "agent_chart": _draw_agent_costs(cursor, project, window, rows),
        }
        if window.compare:
            previous = sum_known_costs(read_costs(cursor, project, window.before))
            values["total"] = f"Judging: {usd(judging)}, {compared(judging, previous, usd)}"
        return values

    return page(
        request, "project_costs.html", await build_list_values(request, services, project, period, COSTS, read_more=read_total)
    )


def _draw_agent_costs(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, rows: Sequence[Row]) -> Markup | None:
    """Draw the known costs of the agents by hour or day; None if no cost is known."""
    by_agent = [{**row, "model": row["agent"] or NO_NAME} for row in rows if row["cost_usd"] is not None]
    if not by_agent:
        return None
    totals: dict[tuple[str, datetime], float] = defaultdict(float)
    for row in by_agent:
        totals[row["model"], row["period"]] += row["cost_usd"]
    costs = [{"model": agent, "period": period, "cost_usd": cost} for (agent, period), cost in totals.items()]
    marks = marks_within(cursor, project, window.start, window.end, window.step)
    return draw_costs(build_chart_window(project, window, marks), costs, title="Cost of the agents")


_SESSIONS_PER_PAGE = 25


@router.get("/projects/{project}/wrap-quality")
async def wrap_quality(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    period: ListPeriod,
    limit: Annotated[int, Query(ge=1, le=_SESSIONS_PER_PAGE, description="Sessions per page.")] = _SESSIONS_PER_PAGE,
) -> HTMLResponse:
    """Show the sessions of a project with their wrap-up steps and runs."""
    is_on = services.engine.policy.for_project(project).expects_wrap_up
    values = await build_list_values(request, services, project, period, WRAPS, page_size=limit)
    listing: Listing = values["listing"]
    rows = await services.ask(lambda reading: with_run_ids(reading, project, listing.rows if is_on else []))
    shown = [{**row, "bar": share_bar(row["score"]), "has_ended": has_ended(row)} for row in rows]
    more = {
        "listing": dataclasses.replace(listing, rows=shown),
        "expected": len(STEPS),
        "mean": sum(row["score"] for row in shown) / len(shown) if shown else None,
        "is_on": is_on,
    }
    return page(request, "project_wrap_quality.html", {**values, **more})


def has_ended(session: Mapping[str, Any]) -> bool:
    """Return whether a session has had no exchange since it was closed. A continued session is open again."""
    return session["closed_at"] is not None and session["closed_at"] >= session["last_at"]
