"""Sessions: signs of life and the end, for their senders; one with its turns, for readers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from schemas.bounds import EARLIEST
from schemas.lazy import duckdb
from schemas.records import Heartbeat
from service.http.routes.ingest import require_audit
from service.read.cold_days import cold_days
from service.read.sessions import (
    SessionFilter,
    SessionList,
    SessionWithTurns,
    TurnRange,
    find_sessions,
    judgement_of_session,
    list_sessions,
    session_with_turns,
)
from service.setup.access import Holder
from service.text.answers import page_of
from service.text.links import API
from service.web.authentication import Caller, Reader, VisibleProject
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.models import (
    AgentFilter,
    ConnectionName,
    Cursor,
    FinalizeBody,
    Id,
    Limit,
    QueryMoment,
    SessionBody,
    ToolErrorFilter,
    ToolFilter,
    VersionFilter,
)
from service.write.outcomes import Done

router = APIRouter(route_class=JsonRoute, tags=["sessions"])
_DEFAULT_PERIOD = timedelta(days=14)
MOST_TURNS = 50
"""Maximum number of turns in an answer, because each may have half a megabyte of texts."""


@router.post(f"{API}/heartbeat", responses=documented(400, 404, 408, 413, 415))
async def heartbeat(body: SessionBody, caller: Caller, services: Services) -> Done:
    """Record a sign of life of a session."""
    engine = services.engine
    owner = _resolve_owner(services, caller, body.connection)
    if owner is None:
        raise ApiError(404, "not_found", "connection: there is no connection with this name")
    project, now = require_audit(engine, owner), engine.now()
    sign = Heartbeat(
        connection=owner.name, project=project, agent=owner.agent, session_id=body.session_id, occurred_at=now, ingested_at=now
    )
    with durable_or_refused():
        await engine.publish("heartbeats", [sign])
    return Done()


@router.post(f"{API}/sessions/{{session_id:path}}/finalize", responses=documented(400, 404, 408, 413, 415))
async def finalize(
    session_id: Annotated[Id, Path(description="Id of the session; slashes need no escaping.")],
    caller: Caller,
    services: Services,
    body: FinalizeBody | None = None,
) -> Done:
    """End a session: its last exchanges are scored and its events diagnosed."""
    connection = body.connection if body else None
    owner = _resolve_owner(services, caller, connection)
    # Imported sessions belong to connections without a token; only operators of every project can end them.
    name = owner.name if owner else connection if caller.project is None else None
    with durable_or_refused():
        if name is None or not await services.engine.finalize(name, session_id):
            raise ApiError(404, "not_found", "the connection has no session with this id")
    return Done()


@router.get(f"{API}/{{project}}/sessions", responses=documented(404))
async def sessions(
    *,
    _: Reader,
    project: VisibleProject,
    services: Services,
    response: Response,
    start: Annotated[
        QueryMoment | None,
        Query(alias="from", description="Only records at or after this time; 14 days before `to` by default."),
    ] = None,
    end: Annotated[QueryMoment | None, Query(alias="to", description="Only records before this time; now by default.")] = None,
    agent: AgentFilter = None,
    version: VersionFilter = None,
    tool: ToolFilter = None,
    tool_error: ToolErrorFilter = False,
    failure: Annotated[
        str | None, Query(max_length=128, description="Only sessions whose run has this primary failure.")
    ] = None,
    anomalies: Annotated[bool, Query(description="Only sessions with an anomaly.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> SessionList:
    """List the sessions of a project, newest record first, with their first question, scores and run."""
    until = end or services.engine.now()
    since = start or max(EARLIEST, until - _DEFAULT_PERIOD)
    if since > until:
        raise ApiError(400, "invalid", "from: must not be after to")
    filters = SessionFilter(
        start=since,
        end=until,
        agent=agent,
        version=version,
        tool=tool,
        tool_error=tool_error,
        failure=failure,
        anomalies=anomalies,
        limit=limit + 1,
        after=cursor,
    )
    entries, cold = await services.ask(
        lambda connection: (list_sessions(connection, project, filters), cold_days(connection, project, since, until))
    )
    page, next_cursor = page_of(entries, limit, lambda entry: entry.place)
    response.headers["Cache-Control"] = "no-store"
    return SessionList(sessions=page, count=len(page), next_cursor=next_cursor, cold_days=cold)


@router.get(f"{API}/{{project}}/sessions/{{session_id:path}}", responses=documented(404, 409))
async def session(
    *,
    _: Reader,
    project: VisibleProject,
    services: Services,
    response: Response,
    session_id: Annotated[Id, Path(description="Id of the session; slashes need no escaping.")],
    connection: Annotated[
        ConnectionName | None,
        Query(description="Connection of the session: ids are unique within one. Required if several have the id."),
    ] = None,
    turn: Annotated[int, Query(ge=1, le=2**31, description="Where to begin: the nextTurn of an earlier answer.")] = 1,
    limit: Annotated[int, Query(ge=1, le=MOST_TURNS, description="Maximum number of turns.")] = 20,
) -> SessionWithTurns:
    """Return a session with some of its turns: texts, scores, costs, its run, and the incidents that name it."""

    def read(cursor: duckdb.DuckDBPyConnection) -> SessionWithTurns:
        headers = find_sessions(cursor, session_id, [project], connection)
        if not headers:
            raise ApiError(404, "not_found", "the project has no session with this id")
        if len(headers) > 1:
            names = ", ".join(place.connection for place in headers[:5])
            raise ApiError(409, "ambiguous", f"connection: is missing; several have a session with this id: {names}")
        judgement = judgement_of_session(cursor, headers[0], services.engine)
        return session_with_turns(cursor, headers[0], TurnRange(skip=turn - 1, limit=limit), judgement)

    answer = await services.ask(read)
    response.headers["Cache-Control"] = "no-store"
    return answer


def _resolve_owner(services: ApiContext, caller: Holder, connection: str | None) -> Holder | None:
    """Return the connection: the caller itself, or a visible one named by an operator; None if no such connection exists."""
    if caller.kind == "connection":
        return caller
    if connection is None:
        raise ApiError(400, "invalid", "connection: is missing; an operator must name the session's connection")
    owner = services.access.holder("connection", connection)
    return owner if owner and caller.project in (None, owner.project) else None
