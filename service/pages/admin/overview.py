"""The administration's first page: the available actions, and the state of the installation."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.pages.admin.viewing import Administrator
from service.pages.rendering import page
from service.read.installation import installation
from service.web.context import Services
from service.web.policy import is_in_force, policy_file, standing

router = APIRouter(include_in_schema=False)


@router.get("/admin")
async def overview(request: Request, _: Administrator, services: Services) -> HTMLResponse:
    """Show the state of the installation, and the ways to change it."""
    now = await asyncio.to_thread(standing, policy_file(services))
    values = {
        "installation": await services.ask(lambda cursor: installation(cursor, services.engine, services.access)),
        "people": sum(any(token.state == "live" for token in tokens) for _, tokens in services.access.holders("operator")),
        "connections": len(services.access.holders("connection")),
        "in_force": is_in_force(services, now.policy),
        "problem": now.problems[0].problem if now.problems else None,
    }
    return page(request, "admin/overview.html", values)
