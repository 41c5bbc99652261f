"""The anomalies of a project: its newest anomalous exchanges, and the reasons they share."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.pages.charts.spark import share_bar
from service.pages.lists.pages import listed
from service.pages.lists.tables import ANOMALIES
from service.pages.projects.days import counts_of
from service.pages.rendering import number, page
from service.pages.times.asked import AskedOfList
from service.pages.times.comparison import compared
from service.pages.viewing import ShownProject, Viewer
from service.text.answers import Document
from service.text.window import Window, bounds
from service.web.context import Services

router = APIRouter(include_in_schema=False)
_REASONS = 30
"""Reasons that are listed."""


@router.get("/projects/{project}/anomalies")
async def anomalies(request: Request, _: Viewer, project: ShownProject, services: Services, asked: AskedOfList) -> HTMLResponse:
    """Show the anomalies of a project, newest exchange first or in another order, and why exchanges are anomalous."""

    def beside(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        counts = [row["anomalies"] for row in counts_of(cursor, project, window)]
        told = f"{number(counts[0])} anomalies, {compared(counts[0], counts[1], number)}" if counts else None
        return {"told": told, "reasons": _reasons(cursor, project, window)}

    values = await listed(request, services, project, asked, ANOMALIES, beside=beside)
    return page(request, "project_anomalies.html", values)


def _reasons(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> list[Document]:
    """Return the reasons with their most frequent agents; bars are relative to the most frequent reason."""
    start, end = bounds(window)
    found = query_rows(cursor, "anomaly_reasons", {"project": project, "from": start, "to": end})
    rows = sorted(found, key=lambda row: -row["exchanges"])[:_REASONS]
    most: int = max((row["exchanges"] for row in rows), default=1)
    return [_reason(row, most) for row in rows]


def _reason(row: dict[str, Any], most: int) -> Document:
    return {**row, "bar": share_bar(row["exchanges"] / most, "bad")}
