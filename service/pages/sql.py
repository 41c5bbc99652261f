"""The SQL page: an editor, with the views and queries beside it. Statements are sent to the API."""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.sandbox.snapshots import readable_catalogue
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.pages.worked_examples import worked_examples
from service.read.queries.protocol import DEFAULT_ROWS, MAX_ROWS
from service.web.authentication import Querier
from service.web.models import MAX_SQL

router = APIRouter(include_in_schema=False)
FIRST = "SELECT day, sum(exchanges) AS exchanges, sum(anomalies) AS anomalies\nFROM days\nGROUP BY day\nORDER BY day"
"""The statement in the editor at first."""
LIMITS = (100, 1000, DEFAULT_ROWS)
"""Row limits of the page; a download has the API's limit."""
Statement = Annotated[str, Query(max_length=MAX_SQL)]


@router.get("/sql")
async def sql(request: Request, viewer: Viewer, q: Statement = "", rows: int = 1000) -> HTMLResponse:
    """Show the editor with a statement, which runs on request; to others, why they may not use it.

    A snapshot is made meanwhile, so that the first statement finds one.
    """
    if "query" not in viewer.scopes or viewer.project is not None:
        why = "scope" if viewer.project is None else "project"
        return page(request, "sql_closed.html", {"why": why}, 403)
    request.app.state.query_pool.prepare()
    values = _snapshot(request) | {
        "statement": q or FIRST,
        "rows": rows if rows in LIMITS else LIMITS[1],
        "limits": LIMITS,
        "most": MAX_ROWS,
        "max_length": MAX_SQL,
        "catalogue": await anyio.to_thread.run_sync(readable_catalogue),
        "examples": worked_examples(),
    }
    return page(request, "sql.html", values)


@router.get("/sql/snapshot")
async def snapshot(request: Request, _: Querier) -> HTMLResponse:
    """Show how old the snapshot is and what is being done for the next one, as a part of the page; it has none made."""
    return page(request, "sql_snapshot.html", _snapshot(request))


def _snapshot(request: Request) -> dict[str, Any]:
    """Return the state of the snapshots, with the current one's age and the next one's build time so far, in seconds."""
    state, now = request.app.state.query_pool.snapshot_state(), request.app.state.context.engine.now()
    return {
        "state": state,
        "age": state.at and (now - state.at).total_seconds(),
        "taken": state.since and (now - state.since).total_seconds(),
    }
