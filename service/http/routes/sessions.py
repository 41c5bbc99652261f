"""Sessions for their senders: signs of life, and the end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from schemas.records import Heartbeat
from service.access.access import Holder
from service.http.auth.authentication import Caller
from service.http.bounds import API
from service.http.context import ApiContext, Services, durable_or_refused
from service.http.documents.bodies import JsonRoute
from service.http.documents.models import FinalizeBody, Id, SessionBody
from service.http.documents.response_models import Done
from service.http.errors import ApiError, documented
from service.http.routes.ingest import require_audit

router = APIRouter(route_class=JsonRoute, tags=["sessions"])


@router.post(f"{API}/heartbeat", responses=documented(400, 404, 408, 413, 415))
async def heartbeat(body: SessionBody, caller: Caller, services: Services) -> Done:
    """Record a sign of life of a session."""
    engine = services.engine
    owner = _owner(services, caller, body.connection)
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
    given = body.connection if body else None
    owner = _owner(services, caller, given)
    # What was imported is of connections that have no token; only who may see every project can end its sessions.
    name = owner.name if owner else given if caller.project is None else None
    with durable_or_refused():
        if name is None or not await services.engine.finalize(name, session_id):
            raise ApiError(404, "not_found", "the connection has no session with this id")
    return Done()


def _owner(services: ApiContext, caller: Holder, connection: str | None) -> Holder | None:
    """Return the connection: the caller itself, or the one an operator names and may see; None if there is none."""
    if caller.kind == "connection":
        return caller
    if connection is None:
        raise ApiError(400, "invalid", "connection: is missing; an operator must name the session's connection")
    owner = services.access.holder("connection", connection)
    return owner if owner and caller.project in (None, owner.project) else None
