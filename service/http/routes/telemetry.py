"""Live sessions, for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.read.telemetry import Telemetry, listening_of, open_sessions
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
    """List the open sessions with the duration of their silence, longest silent first."""
    if project is not None:
        require_project(caller, project)
    engine = services.engine
    wanted = project if caller.project is None else caller.project
    now, listening = engine.now(), listening_of(engine)
    listed = await services.ask(
        lambda asked: open_sessions(asked, engine.policy, now, listening, project=wanted, after=after(cursor), limit=limit + 1)
    )
    shown, following = page_of(listed, limit, lambda one: Place(one.session.last_received, one.place))
    return Telemetry(sessions=[listed.session for listed in shown], count=len(shown), next_cursor=following)
