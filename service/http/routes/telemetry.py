"""Live sessions, for operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from audit.silence import Status
from service.http.answers.project_answers import Moment
from service.read.silence import Listed, listening_of, open_sessions
from service.text.cursors import Place, after, page_of
from service.text.paths import API
from service.web.authentication import Reader, require_project
from service.web.context import Services
from service.web.errors import documented
from service.web.models import ConnectionName
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer

router = APIRouter(tags=["telemetry"])
_MILLISECOND = timedelta(milliseconds=1)


class SessionAnswer(Answer):
    """An open session."""

    session_id: str
    project: str
    status: Status = Field(
        description="green up to one interval without a sign of life, yellow up to three, red beyond; green while it waits for its user."
    )
    last_received: Moment = Field(description="Time of its last sign of life.")
    missed_intervals: int
    elapsed_ms: int = Field(description="Milliseconds of silence while this server was running.")
    connection: str


class TelemetryAnswer(Answer):
    """Open sessions, the longest silent first."""

    sessions: list[SessionAnswer]
    count: int
    next_cursor: NextCursor


@router.get(f"{API}/telemetry", responses=documented(400))
async def telemetry(
    *,
    caller: Reader,
    services: Services,
    project: Annotated[ConnectionName | None, Query(description="Only sessions of this project.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> TelemetryAnswer:
    """List the open sessions with how long each has been silent, the longest silent first."""
    if project is not None:
        require_project(caller, project)
    engine = services.engine
    wanted = project if caller.project is None else caller.project
    now, listening = engine.now(), listening_of(engine)
    listed = await services.ask(
        lambda asked: open_sessions(asked, engine.policy, now, listening, project=wanted, after=after(cursor), limit=limit + 1)
    )
    shown, following = page_of(listed, limit, lambda one: Place(one.session.last_received, one.place))
    return TelemetryAnswer(sessions=[_answer(one) for one in shown], count=len(shown), next_cursor=following)


def _answer(listed: Listed) -> SessionAnswer:
    session, silence = listed.session, listed.session.silence
    told = {"status": silence.status, "missed_intervals": silence.missed, "elapsed_ms": silence.elapsed // _MILLISECOND}
    fields = ("session_id", "project", "last_received", "connection")
    return SessionAnswer.model_validate({name: getattr(session, name) for name in fields} | told)
