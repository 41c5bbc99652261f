"""How the sessions of a project were wrapped up: which steps of a proper end they show, the newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.api.context import Services
from service.api.paging import Cursor, after
from service.api.trends import session_place
from service.dashboard.charts import share_bar
from service.dashboard.paged import linked
from service.dashboard.project_words import WRAP_STEPS
from service.dashboard.rendering import page
from service.dashboard.viewing import ShownProject, Viewer
from service.runs import wrap_page

router = APIRouter(include_in_schema=False)
_SHOWN = 25


@router.get("/projects/{project}/wrap-quality")
async def wrap_quality(
    request: Request, _: Viewer, project: ShownProject, services: Services, cursor: Cursor = None
) -> HTMLResponse:
    """A page of sessions, the newest first, and which steps of a wrap-up their last exchanges show."""
    policy = services.engine.policy
    rows = await services.ask(lambda reading: wrap_page(reading, policy, project, _SHOWN + 1, after(cursor)))
    shown, older = linked([_wrap(row) for row in rows], _SHOWN, session_place)
    values = {
        "project": project,
        "sessions": shown,
        "older": older,
        "is_later_page": cursor is not None,
        "steps": WRAP_STEPS,
        "mean": sum(row["score"] for row in shown) / len(shown) if shown else None,
        "is_on": policy.for_project(project).settings.wrap_quality_scoring,
    }
    return page(request, "project_wrap_quality.html", values)


def _wrap(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "bar": share_bar(row["score"])}
