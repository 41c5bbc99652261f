"""Live sessions, for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from schemas.lazy import duckdb
from service.read.telemetry import ListedSession, Telemetry, listening_of, open_sessions
from service.text.answers import Place, after, page_of
from service.text.links import API
from service.web.authentication import Reader, require_project
from service.web.context import Services
from service.web.errors import documented
from service.web.json_routes import AnswerRoute
from service.web.models import ConnectionName, Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["telemetry"])


@router.get(f"{API}/telemetry", responses=documented(400))
async def telemetry(
    *,
    caller: Reader,
    services: Services,
    project: Annotated[ConnectionName | None, Query(description="Only sessions of this project.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Telemetry:
    """List the open sessions with the duration of their silence, longest silence first."""
    if project is not None:
        require_project(caller, project)
    engine = services.engine
    visible_project = caller.project or project
    now = engine.now()
    listening = listening_of(engine)

    def read(reading: duckdb.DuckDBPyConnection) -> list[ListedSession]:
        return open_sessions(
            reading, engine.policy, now, listening, project=visible_project, after=after(cursor), limit=limit + 1
        )

    page, next_cursor = page_of(await services.ask(read), limit, lambda item: Place(item.session.last_received, item.place))
    return Telemetry(sessions=[item.session for item in page], count=len(page), next_cursor=next_cursor)
