"""The anomalies of a project: its newest anomalous exchanges, and the reasons they share."""

from __future__ import annotations

import asyncio
from typing import Any

import duckdb
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from service.documents.members import Document
from service.documents.scores import Wanted, project_scores
from service.http.context import Services
from service.http.paging import Cursor
from service.http.routes.scores import score_place
from service.pages.charts.charts import share_bar
from service.pages.links import linked
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer

router = APIRouter(include_in_schema=False)
_SHOWN, _REASONS = 25, 30
"""Exchanges per page, and reasons that are listed."""


@router.get("/projects/{project}/anomalies")
async def anomalies(
    request: Request, _: Viewer, project: ShownProject, services: Services, cursor: Cursor = None
) -> HTMLResponse:
    """Show a page of anomalies, newest exchange first, and why exchanges are anomalous."""
    after = None if cursor is None else (cursor.at, cursor.id, cursor.number)
    wanted = Wanted(anomalies=True, limit=_SHOWN + 1, after=after)
    found, reasons = await asyncio.gather(
        services.ask(lambda reading: project_scores(reading, project, wanted)),
        services.ask(lambda reading: _reasons(reading, project)),
    )
    shown, older = linked(found, _SHOWN, score_place)
    values = {"project": project, "scores": shown, "older": older, "is_later_page": cursor is not None, "reasons": reasons}
    return page(request, "project_anomalies.html", values)


def _reasons(cursor: duckdb.DuckDBPyConnection, project: str) -> list[Document]:
    """Return reasons with their most frequent agents; a bar compares them with the most frequent one."""
    rows = sorted(query_rows(cursor, "anomaly_reasons", {"project": project}), key=lambda row: -row["exchanges"])[:_REASONS]
    most: int = max((row["exchanges"] for row in rows), default=1)
    return [_reason(row, most) for row in rows]


def _reason(row: dict[str, Any], most: int) -> Document:
    return {**row, "bar": share_bar(row["exchanges"] / most, "bad")}
