"""Lists of a project with figures above them: anomalies and the reasons they share, costs by session, and wrap quality."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from audit.exchanges.wrap_quality import STEPS
from schemas.lazy import duckdb
from service.pages.charts import share_bar
from service.pages.listing import Listing
from service.pages.lists import ANOMALIES, COSTS, WRAPS, listed
from service.pages.periods import ListPeriod, Period, compared
from service.pages.project_charts import costs_of, counts_of, known_sum
from service.pages.rendering import number, page, usd
from service.pages.viewing import ShownProject, Viewer
from service.read.runs import with_run_ids
from service.text.answers import Document
from service.text.window import Window, bounds
from service.web.context import Services

router = APIRouter(include_in_schema=False)
_REASONS = 30
"""Maximum number of reasons listed."""


@router.get("/projects/{project}/anomalies")
async def anomalies(request: Request, _: Viewer, project: ShownProject, services: Services, period: ListPeriod) -> HTMLResponse:
    """Show the anomalies of a project, newest exchange first or in another order, and why exchanges are anomalous."""

    def beside(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        counts = [row["anomalies"] for row in counts_of(cursor, project, window)]
        comparison = f"{number(counts[0])} anomalies, {compared(counts[0], counts[1], number)}" if counts else None
        return {"told": comparison, "reasons": _read_reasons(cursor, project, window)}

    values = await listed(request, services, project, period, ANOMALIES, beside=beside)
    return page(request, "project_anomalies.html", values)


def _read_reasons(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> list[Document]:
    """Return the reasons with their most frequent agents; bars are relative to the most frequent reason."""
    start, end = bounds(window)
    reasons = query_rows(cursor, "anomaly_reasons", {"project": project, "from": start, "to": end})
    rows = sorted(reasons, key=lambda row: -row["exchanges"])[:_REASONS]
    most: int = max((row["exchanges"] for row in rows), default=1)
    return [_build_reason(row, most) for row in rows]


def _build_reason(row: dict[str, Any], most: int) -> Document:
    return {**row, "bar": share_bar(row["exchanges"] / most, "bad")}


@router.get("/projects/{project}/costs")
async def costs(request: Request, _: Viewer, project: ShownProject, services: Services, period: Period) -> HTMLResponse:
    """Show the sessions by the cost of judging them, most expensive first."""

    def beside(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        if window is None or not window.compare:
            return {"spent": None}
        now, before = (known_sum(costs_of(cursor, project, one)) for one in (window, window.before))
        return {"spent": f"{usd(now)} in all, {compared(now, before, usd)}"}

    return page(request, "project_costs.html", await listed(request, services, project, period, COSTS, beside=beside))


_SHOWN = 25
"""Sessions per page."""


@router.get("/projects/{project}/wrap-quality")
async def wrap_quality(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    period: ListPeriod,
    limit: Annotated[int, Query(ge=1, le=_SHOWN, description="Sessions per page.")] = _SHOWN,
) -> HTMLResponse:
    """Show a page of sessions, the newest first or in another order, their steps of a wrap-up, and the run of each."""
    is_on = services.engine.policy.for_project(project).settings.wrap_quality_scoring
    values = await listed(request, services, project, period, WRAPS, most=limit)
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
    """Return whether a session has had no exchange since it was closed; a continued session is open again."""
    return session["closed_at"] is not None and session["closed_at"] >= session["last_at"]
