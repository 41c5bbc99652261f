"""Wrap quality of a project's sessions: the steps of a proper end they show, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import duckdb
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from audit.policy.policy import Policy
from service.documents.runs import with_run_ids, wrap_page
from service.http.context import Services
from service.http.paging import Cursor, Place, after
from service.http.routes.trends import session_place
from service.pages.charts.charts import share_bar
from service.pages.links import linked
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer
from service.pages.words import WORDS

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
    limit: Annotated[int, Query(ge=1, le=_SHOWN, description="Sessions per page.")] = _SHOWN,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show a page of sessions, the newest first, their steps of a wrap-up, and the run of each."""
    policy = services.engine.policy
    rows = await services.ask(lambda reading: _sessions(reading, policy, project, limit, cursor))
    shown, older = linked(rows, limit, session_place, f"?limit={limit}" if limit != _SHOWN else "")
    values = {
        "project": project,
        "sessions": shown,
        "older": older,
        "is_later_page": cursor is not None,
        "steps": WORDS["wrap_steps"],
        "mean": sum(row["score"] for row in shown) / len(shown) if shown else None,
        "is_on": policy.for_project(project).settings.wrap_quality_scoring,
    }
    return page(request, "project_wrap_quality.html", values)


def _sessions(
    reading: duckdb.DuckDBPyConnection, policy: Policy, project: str, limit: int, cursor: Place | None
) -> list[dict[str, Any]]:
    """Return the sessions of a page and one more, each with its run, if it became one, and whether it has ended."""
    rows = with_run_ids(reading, project, wrap_page(reading, policy, project, limit + 1, after(cursor)))
    return [{**row, "bar": share_bar(row["score"]), "has_ended": has_ended(row)} for row in rows]


def has_ended(session: Mapping[str, Any]) -> bool:
    """Tell whether a session has had no exchange since it was closed; one that continues is open again."""
    return session["closed_at"] is not None and session["closed_at"] >= session["last_at"]
