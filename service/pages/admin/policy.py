"""The policy as a page: the settings in force for a project, and changing the file after a trial."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from audit.policy import Policy
from audit.settings_files import MAX_FILE_BYTES
from service.pages.admin.viewing import Administrator, Sender
from service.pages.rendering import page
from service.read.known_projects import known_projects, named_projects
from service.text.links import POLICY_TRIAL_PART
from service.web.bodies import JsonRoute
from service.web.context import Services
from service.web.models import ConnectionName
from service.web.policy import TrialBody, is_in_force, policy_file, standing, tried
from service.write.policy_effect import DAYS, MOST
from service.write.policy_file import EVERY_OTHER, FLEET, changes, effective, fingerprint
from streams.log.ownership import is_fed_by_kafka

router = APIRouter(include_in_schema=False, route_class=JsonRoute)
NAMES = {EVERY_OTHER: "all other projects", FLEET: "the whole server"}
"""The words of a page for projects without a name."""


@router.get("/admin/policy")
async def policy(request: Request, _: Administrator, services: Services, project: ConnectionName | None = None) -> HTMLResponse:
    """Show the policy in force for a project, and the file to change."""
    file = policy_file(services)
    now = await asyncio.to_thread(standing, file)
    running = services.engine.policy
    named = named_projects(running, services.access)
    values = {
        "file": file,
        "standing": now,
        "read_only": await asyncio.to_thread(file.why_read_only),
        "base": fingerprint(now.text),
        "has_previous": await asyncio.to_thread(file.previous) is not None,
        "in_force": is_in_force(services, now.policy),
        "pending": changes(running, now.policy) if now.policy else [],
        "may_restart": services.restart is not None,
        "kafka": is_fed_by_kafka(services.engine.store),
        "project": project,
        "projects": await services.ask(lambda cursor: known_projects(cursor, named)),
        "settings": _settings(running, project or EVERY_OTHER),
        "digest": running.for_project(project or EVERY_OTHER).digest,
        "max_length": MAX_FILE_BYTES,
        "names": NAMES,
        "written": written,
    }
    return page(request, "admin/policy.html", values)


@router.post(POLICY_TRIAL_PART)
async def trial(request: Request, _: Sender, services: Services, body: TrialBody) -> Response:
    """Show what a text would do in place of the file, as a part of the page."""
    values = {"found": await tried(services, body.text), "days": DAYS, "most": MOST, "names": NAMES, "written": written}
    return page(request, "admin/trial.html", values)


def written(value: Any) -> str:
    """Format a setting's value as YAML on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _settings(running: Policy, project: str) -> list[tuple[str, Any, Any]]:
    """Return the settings in force by name, each with its value and Driftline's default."""
    shipped = effective(Policy(), EVERY_OTHER)
    return [(name, value, shipped.get(name)) for name, value in effective(running, project).items()]
