"""Wrap quality of a project's sessions: the steps of a proper wrap-up, newest first or in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from audit.exchanges.wrap_quality import STEPS
from service.pages.charts.spark import share_bar
from service.pages.lists.listing import Listing
from service.pages.lists.pages import listed
from service.pages.lists.tables import WRAPS
from service.pages.rendering import page
from service.pages.times.asked import AskedOfList
from service.pages.viewing import ShownProject, Viewer
from service.read.runs import with_run_ids
from service.web.context import Services

router = APIRouter(include_in_schema=False)
_SHOWN = 25
"""Sessions of a page, at most."""


@router.get("/projects/{project}/wrap-quality")
async def wrap_quality(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    asked: AskedOfList,
    limit: Annotated[int, Query(ge=1, le=_SHOWN, description="Sessions per page.")] = _SHOWN,
) -> HTMLResponse:
    """Show a page of sessions, the newest first or in another order, their steps of a wrap-up, and the run of each."""
    is_on = services.engine.policy.for_project(project).settings.wrap_quality_scoring
    values = await listed(request, services, project, asked, WRAPS, most=limit)
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
    """Tell whether a session has had no exchange since it was closed; a continued session is open again."""
    return session["closed_at"] is not None and session["closed_at"] >= session["last_at"]
