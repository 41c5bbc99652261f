"""The audit log as a page: changes and their authors, newest first."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.pages.admin.deeds import deed_of
from service.pages.admin.viewing import Administrator
from service.pages.rendering import page
from service.text.answers import Place, page_of
from service.text.links import Links
from service.web.context import Services
from service.web.models import ConnectionName
from service.web.parameters import Cursor

router = APIRouter(include_in_schema=False)
SHOWN = 100
"""Lines of a page."""


@router.get("/admin/audit-log")
async def audit_log(
    *,
    request: Request,
    _: Administrator,
    services: Services,
    name: ConnectionName | None = None,
    project: ConnectionName | None = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show changes by operators and commands: of one of them, of a project, or all."""
    before = None if cursor is None else cursor.number
    found = await asyncio.to_thread(services.access.audit_log.lines, SHOWN + 1, before, name=name, project=project)
    shown, following = page_of(found, SHOWN, lambda line: Place(line.at, "", line.id))
    values = {
        "deeds": [deed_of(line, services.access.holder) for line in shown],
        "name": name,
        "project": project,
        "paged": cursor is not None,
        "following": following and Links().audit_log(name=name, project=project, cursor=following),
    }
    return page(request, "admin/audit_log.html", values)
