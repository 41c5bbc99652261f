"""A session as a page: the conversation turn by turn with scores, events and its run. Also the redirect from a bare id."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.pages.rendering import day, page
from service.pages.sessions.view import Asked, session_values, shown_part
from service.pages.viewing import ShownProject, Viewer
from service.read.sessions import SessionPlace, read_session, session_places
from service.text.links import Links
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import ConnectionName, Id

router = APIRouter(include_in_schema=False)
SessionId = Annotated[Id, Path()]
OfConnection = Annotated[ConnectionName | None, Query()]
Place = Annotated[int, Query(ge=1, le=2**31)]
Part = Annotated[int | None, Query(ge=0, le=2**31)]
Only = Annotated[str | None, Query(pattern="^(anomalies)?$")]
_GONE = "There is no session with this id. What was erased or is older than the retention leaves nothing behind."
_links = Links()


@router.get("/projects/{project}/sessions/{session_id:path}")
async def session(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    session_id: SessionId,
    connection: OfConnection = None,
    only: Only = None,
    turn: Place = 1,
    exchange: Annotated[Id | None, Query()] = None,
    part: Part = None,
    step: Place = 1,
) -> HTMLResponse:
    """Show a session: some of its turns, or the events of one part of it."""
    asked = Asked(only=only or None, turn=turn, exchange=exchange, part=part, step=step)
    places = await services.ask(lambda cursor: session_places(cursor, session_id, [project], connection))
    if not places:
        raise ApiError(404, "not_found", await _why_gone(services, project, session_id))
    if len(places) > 1:
        return _choice(request, session_id, places)
    # Read in two threads: half of the time is DuckDB's planning, which is single-threaded.
    read, shown = await asyncio.gather(
        services.ask(lambda cursor: read_session(cursor, places[0])),
        services.ask(lambda cursor: shown_part(cursor, places[0], asked)),
    )
    answer = page(request, "session.html", session_values(read, shown, asked))
    # The page quotes agents' conversations, so no cache may store it.
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.get("/sessions/{session_id:path}")
async def session_by_id(request: Request, *, viewer: Viewer, services: Services, session_id: SessionId) -> Response:
    """Lead to the session of an id, or to those of the projects that the viewer may see."""
    projects = None if viewer.project is None else [viewer.project]
    places = await services.ask(lambda cursor: session_places(cursor, session_id, projects))
    if not places:
        raise ApiError(404, "not_found", _GONE)
    if len(places) > 1:
        return _choice(request, session_id, places)
    return RedirectResponse(_links.session(places[0].project, session_id), 303)


def _choice(request: Request, session_id: str, places: list[SessionPlace]) -> HTMLResponse:
    return page(request, "session_choice.html", {"session_id": session_id, "places": places})


async def _why_gone(services: ApiContext, project: str, session_id: str) -> str:
    """Report that a session was erased, with the time, if a connection of the project had it; otherwise that it does not exist."""

    def asked(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, object]]:
        return [row for row in query_rows(cursor, "erasures") if row["session_id"] == session_id]

    for row in await services.ask(asked):
        owner = services.access.holder("connection", str(row["connection"]))
        if owner is not None and owner.project == project:
            return f"This session was erased: {row['requested_by']} asked for that on {day(row['occurred_at'])}."  # type: ignore[arg-type]
    return _GONE
