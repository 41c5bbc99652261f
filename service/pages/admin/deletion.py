"""Retention and erasure as a page: dry runs, then the deletion itself, and all erasures so far."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from schemas.errors import InputError
from service.pages.admin.viewing import Administrator
from service.pages.rendering import page
from service.read.known_projects import known_projects, named_projects
from service.text.answers import page_of
from service.text.links import Links
from service.web.context import Services
from service.web.models import MAX_COMMENT, ConnectionName, Id
from service.web.parameters import Cursor
from service.write.deletion import all_erasures, erasure_dry_run, purge_dry_run
from streams.upkeep.erasing import erasure, remains

router = APIRouter(include_in_schema=False)
SHOWN = 50
"""Erasures of a page."""
Days = Annotated[int | None, Query(ge=1, le=3650)]


@router.get("/admin/deletion")
async def deletion(
    *,
    request: Request,
    _: Administrator,
    services: Services,
    days: Days = None,
    connection: ConnectionName | None = None,
    session: Id | None = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show what is kept for how long, a plan of an erasure if one is asked for, and the erasures so far."""
    engine = services.engine
    named = named_projects(engine.policy, services.access)
    projects = await services.ask(lambda asked: known_projects(asked, named))
    everything = await asyncio.to_thread(all_erasures, engine.store)
    listed = [request for request in everything if cursor is None or request.place < cursor]
    shown, following = page_of(listed, SHOWN, lambda request: request.place)
    plan, refusal = None, ""
    if connection is not None:
        try:
            erasure(connection, session, "", None, engine.now())
            await engine.flush()
            plan = await asyncio.to_thread(erasure_dry_run, engine.store, connection, session)
        except InputError as error:
            refusal = f"{error}. {error.hint}"
    values = {
        "kept": [(project, engine.policy.for_project(project).settings.retention_days) for project in projects],
        "kept_otherwise": engine.policy.for_project("").settings.retention_days,
        "days": days,
        "connection": connection,
        "session": session,
        "plan": plan,
        "refusal": refusal,
        "erasures": shown,
        "following": following and Links().deletion(cursor=following),
        "remains": await asyncio.to_thread(remains, engine.store),
        "connections": [holder.name for holder, _ in services.access.holders("connection")],
        "max_comment": MAX_COMMENT,
    }
    return page(request, "admin/deletion.html", values)


@router.get("/admin/deletion/plan")
async def retention_plan(request: Request, _: Administrator, services: Services, days: Days = None) -> HTMLResponse:
    """Show what a run of retention would delete at this moment."""
    engine = services.engine
    await engine.flush()
    plan = await asyncio.to_thread(purge_dry_run, engine.store, engine.policy, engine.now(), days)
    return page(request, "admin/retention_plan.html", {"plan": plan, "days": days})
