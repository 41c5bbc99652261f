"""Deletion over HTTP: records past their retention, and all records of a session or connection on request."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import AliasChoices, Field

from analytics.deletion.plans import RetentionPlan, plan_erasure
from audit.policy.policy_fields import Days
from schemas.bounds.limits import EARLIEST
from service.text.cursors import Place, page_of
from service.text.paths import API
from service.web.audit_trail import name_subject
from service.web.authentication import FleetAdmin
from service.web.bodies import JsonRoute
from service.web.context import Services, durable_or_refused
from service.web.errors import documented
from service.web.models import MAX_COMMENT, ConnectionName, Id, OperatorBody, Text
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer
from streams.upkeep.erasing import Requested, erasure, erasures, remains, request_erasure
from streams.upkeep.retention import cutoff, plan_purge, purge

router = APIRouter(route_class=JsonRoute, tags=["retention"])


class RetentionBody(OperatorBody):
    """The days to keep; by default, those of each project's policy."""

    retention_days: Days | None = Field(None, alias="retentionDays", examples=[90])


class PurgedAnswer(Answer):
    """The deleted records."""

    exchanges_purged: int = Field(examples=[1200])
    scores_purged: int = Field(examples=[1200])
    cutoff_date: datetime | None = Field(
        description="Older records are deleted, in projects without their own retention; null: none are."
    )


class DoomedAnswer(Answer):
    """The exchanges of a project that would be deleted."""

    project: str
    exchanges: int
    first_day: date
    last_day: date
    kept_from: datetime = Field(description="Older ones are deleted.")


class RetentionPlanAnswer(Answer):
    """A dry run of retention; nothing was deleted."""

    projects: list[DoomedAnswer]
    rows: dict[str, int] = Field(description="Rows by table.", examples=[{"exchanges": 1200, "scores": 1200}])


class ErasurePlanAnswer(Answer):
    """A dry run of an erasure; nothing was deleted."""

    rows: dict[str, int] = Field(description="Rows by table.", examples=[{"exchanges": 3, "scores": 3}])
    sessions: int
    projects: list[str]
    first_at: datetime | None = Field(description="Time of the first exchange or event.")
    last_at: datetime | None


class ErasureBody(OperatorBody):
    """The session to erase, or without a session id the whole connection."""

    connection: ConnectionName = Field(examples=["north"])
    session_id: Id | None = Field(
        None, validation_alias=AliasChoices("sessionId", "session_id"), description="Only this session.", examples=["2f1c7f0e"]
    )
    comment: Annotated[Text, Field(max_length=MAX_COMMENT)] | None = Field(None, examples=["asked for by the user"])


class ErasureAnswer(Answer):
    """An erasure, and its progress."""

    id: str
    connection: str
    session_id: str | None
    requested_by: str = Field(examples=["root"])
    comment: str | None
    requested_at: datetime
    erased_at: datetime | None = Field(description="null: waiting for the record to return from Kafka.")
    deleted: dict[str, int] = Field(description="Rows deleted or redacted, by table.", examples=[{"exchanges": 3}])
    replays: list[str] = Field(description="Replays deleted because they held some of the records.")


class ErasedAnswer(Answer):
    """An erasure, and the copies that it does not reach."""

    erasure: ErasureAnswer
    remains: list[str] = Field(description="Copies that were not erased, and what to do about them.")


class ErasuresAnswer(Answer):
    """Erasures, newest first."""

    erasures: list[ErasureAnswer]
    count: int
    next_cursor: NextCursor


@router.post(f"{API}/retention/run", responses=documented(400, 408, 413, 415))
async def run_retention(_: FleetAdmin, services: Services, body: RetentionBody | None = None) -> PurgedAnswer:
    """Delete exchanges, events and scores past their retention, and their dependent records; baselines and incidents stay.

    `retentionDays` counts for every project in place of what the policy says.
    """
    engine, days = services.engine, body.retention_days if body else None
    now = engine.now()
    with durable_or_refused():
        purged = await asyncio.to_thread(purge, engine.store, engine.policy, now, days)
    kept_from = cutoff(now, days if days is not None else engine.policy.for_project("").settings.retention_days)
    return PurgedAnswer(
        exchanges_purged=purged.exchanges,
        scores_purged=purged.scores,
        cutoff_date=kept_from if kept_from >= EARLIEST else None,
    )


@router.post(f"{API}/retention/plan", responses=documented(400, 408, 413, 415))
async def plan_retention(_: FleetAdmin, services: Services, body: RetentionBody | None = None) -> RetentionPlanAnswer:
    """Count what `POST retention/run` would delete with the same body: a dry run."""
    engine = services.engine
    await engine.flush()
    days = body.retention_days if body else None
    return plan_answer(await asyncio.to_thread(plan_purge, engine.store, engine.policy, engine.now(), days))


def plan_answer(plan: RetentionPlan) -> RetentionPlanAnswer:
    """Return a dry run of retention as an answer."""
    projects = [
        DoomedAnswer(
            project=one.project, exchanges=one.exchanges, first_day=one.first, last_day=one.last, kept_from=one.kept_from
        )
        for one in plan.projects
    ]
    return RetentionPlanAnswer(projects=projects, rows=plan.rows)


@router.post(f"{API}/erasures/plan", responses=documented(400, 408, 413, 415))
async def plan_one_erasure(_: FleetAdmin, services: Services, body: ErasureBody) -> ErasurePlanAnswer:
    """Count what `POST erasures` would delete with the same body: a dry run.

    An erasure also takes out what incidents, alerts and dead letters tell of it, and deletes replays that hold any of it.
    """
    engine = services.engine
    erasure(body.connection, body.session_id, "", None, engine.now())
    await engine.flush()
    plan = await asyncio.to_thread(plan_erasure, engine.store, body.connection, body.session_id)
    return ErasurePlanAnswer(
        rows=plan.rows, sessions=plan.sessions, projects=list(plan.projects), first_at=plan.first, last_at=plan.last
    )


@router.post(f"{API}/erasures", status_code=202, responses=documented(400, 408, 413, 415))
async def erase(caller: FleetAdmin, services: Services, request: Request, body: ErasureBody) -> ErasedAnswer:
    """Erase all records of a session or a connection for good; later records of it are refused."""
    engine = services.engine
    name_subject(request, body.connection if body.session_id is None else f"{body.connection}/{body.session_id}")
    comment = engine.redactor.redact(body.comment)[0] if body.comment else None
    wanted = erasure(body.connection, body.session_id, caller.name, comment, engine.now())
    with durable_or_refused():
        await request_erasure(engine, wanted)
        listed = await asyncio.to_thread(erasures, engine.store)
    found = next((one for one in listed if one.erasure["erasure_id"] == wanted.erasure_id), None)
    return ErasedAnswer(
        erasure=_answer(found or Requested(msgspec.structs.asdict(wanted), None)),
        remains=await asyncio.to_thread(remains, engine.store),
    )


@router.get(f"{API}/erasures", responses=documented(400))
def list_erasures(
    *,
    _: FleetAdmin,
    services: Services,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ErasuresAnswer:
    """List the requested erasures and their progress, newest first."""
    listed = [one for one in erasures(services.engine.store) if cursor is None or _place(one) < cursor]
    shown, following = page_of(listed, limit, _place)
    return ErasuresAnswer(erasures=[_answer(one) for one in shown], count=len(shown), next_cursor=following)


def _answer(found: Requested) -> ErasureAnswer:
    record, done = found.erasure, found.done
    told = {"id": record["erasure_id"], "requested_at": record["occurred_at"], "erased_at": done and done.erased_at}
    reached = {"deleted": dict(done.deleted) if done else {}, "replays": list(done.replays) if done else []}
    return ErasureAnswer.model_validate({**record, **told, **reached})


def _place(found: Requested) -> Place:
    return Place(found.erasure["occurred_at"], found.erasure["erasure_id"])
