"""Deletion over HTTP: records past their retention, and all records of a session or connection on request."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import AliasChoices, Field

from audit.policy import Days
from service.text.answers import page_of
from service.text.links import API
from service.web.authentication import FleetAdmin
from service.web.context import Services, durable_or_refused
from service.web.errors import documented
from service.web.json_routes import JsonRoute
from service.web.middleware import set_subject
from service.web.models import MAX_COMMENT, ConnectionName, Cursor, Id, Limit, OperatorBody, Text
from service.write.deletion import (
    ErasureDryRun,
    ErasureList,
    PurgedRecords,
    PurgeDryRun,
    RequestedErasure,
    all_erasures,
    erasure_dry_run,
    progress_of,
    purge_dry_run,
    purged_records,
)
from streams.upkeep.deletion import erasure, purge, remains, request_erasure

router = APIRouter(route_class=JsonRoute, tags=["retention"])


class RetentionBody(OperatorBody):
    """The days to keep; by default, those of each project's policy."""

    retention_days: Days | None = Field(None, alias="retentionDays", examples=[90])


class ErasureBody(OperatorBody):
    """The session to erase, or without a session id the whole connection."""

    connection: ConnectionName = Field(examples=["north"])
    session_id: Id | None = Field(
        None, validation_alias=AliasChoices("sessionId", "session_id"), description="Only this session.", examples=["2f1c7f0e"]
    )
    comment: Annotated[Text, Field(max_length=MAX_COMMENT)] | None = Field(None, examples=["asked for by the user"])


@router.post(f"{API}/retention/run", responses=documented(400, 408, 413, 415))
async def run_retention(_: FleetAdmin, services: Services, body: RetentionBody | None = None) -> PurgedRecords:
    """Delete exchanges, events and scores past their retention, and their dependent records; baselines and incidents stay.

    `retentionDays` replaces the policy's days for every project.
    """
    engine, days = services.engine, body.retention_days if body else None
    now = engine.now()
    with durable_or_refused():
        purged = await asyncio.to_thread(purge, engine.store, engine.policy, now, days)
    return purged_records(purged, engine.policy, now, days)


@router.post(f"{API}/retention/plan", responses=documented(400, 408, 413, 415))
async def plan_retention(_: FleetAdmin, services: Services, body: RetentionBody | None = None) -> PurgeDryRun:
    """Count what `POST retention/run` would delete with the same body: a dry run."""
    engine = services.engine
    await engine.flush()
    days = body.retention_days if body else None
    return await asyncio.to_thread(purge_dry_run, engine.store, engine.policy, engine.now(), days)


@router.post(f"{API}/erasures/plan", responses=documented(400, 408, 413, 415))
async def plan_one_erasure(_: FleetAdmin, services: Services, body: ErasureBody) -> ErasureDryRun:
    """Count what `POST erasures` would delete with the same body: a dry run.

    An erasure also removes mentions in incidents, alerts and dead letters, and deletes replays that contain any of it.
    """
    engine = services.engine
    erasure(body.connection, body.session_id, "", None, engine.now())
    await engine.flush()
    return await asyncio.to_thread(erasure_dry_run, engine.store, body.connection, body.session_id)


@router.post(f"{API}/erasures", status_code=202, responses=documented(400, 408, 413, 415))
async def erase(caller: FleetAdmin, services: Services, request: Request, body: ErasureBody) -> RequestedErasure:
    """Erase all records of a session or a connection permanently. Later records of it are rejected."""
    engine = services.engine
    set_subject(request, body.connection if body.session_id is None else f"{body.connection}/{body.session_id}")
    comment = engine.redactor.redact(body.comment)[0] if body.comment else None
    record = erasure(body.connection, body.session_id, caller.name, comment, engine.now())
    with durable_or_refused():
        await request_erasure(engine, record)
        progress = await asyncio.to_thread(progress_of, engine.store, record)
    are_encrypted = engine.forget_texts is not None
    return RequestedErasure(
        erasure=progress, remains=await asyncio.to_thread(remains, engine.store, are_encrypted=are_encrypted)
    )


@router.get(f"{API}/erasures", responses=documented(400))
def list_erasures(
    *,
    _: FleetAdmin,
    services: Services,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ErasureList:
    """List the requested erasures and their progress, newest first."""
    listed = [request for request in all_erasures(services.engine.store) if cursor is None or request.place < cursor]
    shown, following = page_of(listed, limit, lambda request: request.place)
    return ErasureList(erasures=shown, count=len(shown), next_cursor=following)
