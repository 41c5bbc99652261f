"""Administration as pages, for admins of every project: the state of the installation, the policy, retention and erasure.

Other viewers see which scope they need and who can grant it.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from audit.drift.watched_series import TIERS
from audit.policy import Policy
from audit.settings_files import MAX_FILE_BYTES
from schemas.errors import InputError
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.installation import installation
from service.read.known_projects import known_projects, named_projects
from service.setup.access import SCOPES, AccessStore, Holder
from service.text.answers import page_of
from service.text.links import POLICY_TRIAL_PART, Links
from service.web.context import Services
from service.web.errors import ApiError
from service.web.json_routes import JsonRoute
from service.web.models import MAX_COMMENT, ConnectionName, Cursor, Id
from service.web.policy import TrialBody, is_in_force, policy_file, read_current, try_text
from service.write.deletion import all_erasures, erasure_dry_run, purge_dry_run
from service.write.policy_file import (
    EFFECT_DAYS,
    MAX_EFFECT_PROJECTS,
    OTHER_PROJECTS,
    SERVER_WIDE,
    compare_policies,
    fingerprint,
    settings_in_force,
)
from streams.log.log import is_fed_by_kafka
from streams.upkeep.deletion import erasure, remains

MAX_NAMED_ADMINS = 3


def is_administrator(holder: Holder) -> bool:
    """Return whether a holder is an admin of all projects."""
    return holder.kind == "operator" and "admin" in holder.scopes and holder.project is None


def _require_administrator(viewer: Viewer, services: Services) -> Holder:
    if is_administrator(viewer):
        return viewer
    scopes = ", ".join(scope for scope in SCOPES if scope in viewer.scopes)
    extent = f"for the project {viewer.project}" if viewer.project else "for every project"
    message = f"Administration needs the scope admin for every project. {viewer.name} has {scopes} {extent}. {_name_administrators(services.access)}"
    raise ApiError(HTTPStatus.FORBIDDEN, "scope_required", message)


def _name_administrators(access: AccessStore) -> str:
    """Return who can grant the scope: an admin, or a command on the server."""
    live = [
        operator.name
        for operator, tokens in access.holders("operator")
        if is_administrator(operator) and any(token.state == "live" for token in tokens)
    ]
    others = f" or {len(live) - MAX_NAMED_ADMINS} more" if len(live) > MAX_NAMED_ADMINS else ""
    advice = f"Ask {' or '.join(live[:MAX_NAMED_ADMINS])}{others}, or run" if live else "Run"
    return f"{advice} on the server: driftline operators add NAME"


def _require_sender(request: Request, services: Services) -> Holder:
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None:
        raise ApiError(HTTPStatus.UNAUTHORIZED, "signed_out", "the sign-in has ended; sign in again")
    return _require_administrator(caller, services)


Administrator = Annotated[Holder, Depends(_require_administrator)]
"""The admin who views a page; 403 for others, with the names of people who can help."""
Sender = Annotated[Holder, Depends(_require_sender)]
"""The admin who sends a change. Without a sign-in the answer is an error, because scripts follow no redirects."""


router = APIRouter(include_in_schema=False, route_class=JsonRoute)


@router.get("/admin")
async def overview(request: Request, _: Administrator, services: Services) -> HTMLResponse:
    """Show the state of the installation, and the ways to change it."""
    file = policy_file(services)
    now = await asyncio.to_thread(read_current, file)
    values = {
        "saved_at": await asyncio.to_thread(_read_save_time, file.path),
        "installation": await services.ask(lambda cursor: installation(cursor, services.engine, services.access)),
        "people": sum(any(token.state == "live" for token in tokens) for _, tokens in services.access.holders("operator")),
        "connections": len(services.access.holders("connection")),
        "in_force": is_in_force(services, now.policy),
        "problem": now.problems[0].problem if now.problems else None,
    }
    return page(request, "admin/overview.html", values)


def _read_save_time(path: FilePath | None) -> datetime | None:
    try:
        return None if path is None else datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None


NAMES = {OTHER_PROJECTS: "all other projects", SERVER_WIDE: "the whole server"}
"""Labels of settings that belong to no single project."""


@router.get("/admin/policy")
async def policy(request: Request, _: Administrator, services: Services, project: ConnectionName | None = None) -> HTMLResponse:
    """Show the policy in force for a project, and the file to change."""
    file = policy_file(services)
    now = await asyncio.to_thread(read_current, file)
    running = services.engine.policy
    named = named_projects(running, services.access)
    values = {
        "file": file,
        "standing": now,
        "read_only": await asyncio.to_thread(file.why_read_only),
        "base": fingerprint(now.text),
        "has_previous": await asyncio.to_thread(file.previous) is not None,
        "in_force": is_in_force(services, now.policy),
        "pending": compare_policies(running, now.policy) if now.policy else [],
        "may_restart": services.restart is not None,
        "kafka": is_fed_by_kafka(services.engine.store),
        "project": project,
        "projects": await services.ask(lambda cursor: known_projects(cursor, named)),
        "settings": _list_settings(running, project or OTHER_PROJECTS),
        "alerting": _describe_alerting(running, project or OTHER_PROJECTS),
        "digest": running.for_project(project or OTHER_PROJECTS).digest,
        "max_length": MAX_FILE_BYTES,
        "names": NAMES,
        "written": format_setting,
    }
    return page(request, "admin/policy.html", values)


@router.post(POLICY_TRIAL_PART)
async def trial(request: Request, _: Sender, services: Services, body: TrialBody) -> Response:
    """Show the effect that a text would have as the policy file, as a part of the page."""
    values = {
        "found": await try_text(services, body.text),
        "days": EFFECT_DAYS,
        "most": MAX_EFFECT_PROJECTS,
        "names": NAMES,
        "written": format_setting,
    }
    return page(request, "admin/trial.html", values)


def format_setting(value: Any) -> str:
    """Format a setting's value as YAML on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _describe_alerting(running: Policy, project: str) -> list[str]:
    """Return in sentences what becomes an incident of a project, and which incidents alert."""
    settings = running.for_project(project).settings
    smallest = settings.min_alerted_change
    windows = dict.fromkeys((*settings.maintenance, *running.defaults.maintenance))
    points = "".join(f"; of {TIERS[tier]}, {size:g} points" for tier, size in smallest.points.items())
    severities = "critical incidents" if settings.alert_from == "critical" else "warnings and critical incidents"
    confidence = "confirmed or only suspected" if settings.alert_on_suspected else "once they are confirmed"
    size = (
        f"{smallest.sigmas:g} standard deviations of a session or {smallest.share:.0%} of the scale, whichever is less{points}"
    )
    return [
        f"A change of a tier is confirmed from {size}. Smaller ones stay suspected (minAlertedChange).",
        f"Incidents come from the rules {', '.join(settings.incident_rules) or 'none'} (incidentRules).",
        f"Alerts are sent for {severities} (alertFrom), {confidence} (alertOnSuspected), unless a receiver has its own choice.",
        *(
            f"Maintenance{' each week' if window.weekly else ''} from {window.start.astimezone(UTC):%Y-%m-%d %H:%M} to "
            f"{window.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {window.reason} (maintenance)."
            for window in windows
        ),
    ]


def _list_settings(running: Policy, project: str) -> list[tuple[str, Any, Any]]:
    """Return the settings in force by name, each with its value and Driftline's default."""
    shipped = settings_in_force(Policy(), OTHER_PROJECTS)
    return [(name, value, shipped.get(name)) for name, value in settings_in_force(running, project).items()]


ERASURES_PER_PAGE = 50
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
    """Show the retention periods, the dry run of an erasure if requested, and the erasures so far."""
    engine = services.engine
    named = named_projects(engine.policy, services.access)
    projects = await services.ask(lambda asked: known_projects(asked, named))
    everything = await asyncio.to_thread(all_erasures, engine.store)
    listed = [request for request in everything if cursor is None or request.place < cursor]
    shown, following = page_of(listed, ERASURES_PER_PAGE, lambda request: request.place)
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
        "remains": await asyncio.to_thread(remains, engine.store, are_encrypted=engine.forget_texts is not None),
        "connections": [holder.name for holder, _ in services.access.holders("connection")],
        "max_comment": MAX_COMMENT,
    }
    return page(request, "admin/deletion.html", values)


@router.get("/admin/deletion/plan")
async def retention_plan(request: Request, _: Administrator, services: Services, days: Days = None) -> HTMLResponse:
    """Show what a run of retention would delete now."""
    engine = services.engine
    await engine.flush()
    plan = await asyncio.to_thread(purge_dry_run, engine.store, engine.policy, engine.now(), days)
    return page(request, "admin/retention_plan.html", {"plan": plan, "days": days})
