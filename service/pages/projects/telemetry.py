"""The telemetry page: open sessions, longest silent first, and alerts."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from audit.silence import Status
from service.pages.administration import is_administrator
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.telemetry import AlertDelivery, AlertStatus, ListedSession, alert_deliveries, listening_of, open_sessions
from service.setup.access import Holder
from service.text.answers import Place, after, page_of
from service.text.links import Links
from service.web.authentication import require_project
from service.web.context import ApiContext, Services, projects_of
from service.web.models import ConnectionName, Cursor

router = APIRouter(include_in_schema=False)
STATUSES: tuple[Status, ...] = ("red", "yellow", "green")
MAX_SESSIONS = 20_000
"""Open sessions that are read and counted, longest silent first."""
ROWS_PER_PAGE = 100
"""Sessions per page, and alerts per page."""


@router.get("/telemetry")
async def telemetry(
    *,
    request: Request,
    viewer: Viewer,
    services: Services,
    project: ConnectionName | None = None,
    status: Status | None = None,
    cursor: Cursor = None,
    alerts: AlertStatus | None = None,
    alerts_from: Annotated[Cursor, Query(alias="alertsFrom")] = None,
) -> HTMLResponse:
    """Show the open sessions of one project or all, and the alerts to operators of all projects."""
    if project is not None:
        require_project(viewer, project)
    filters = {"project": project, "status": status, "alerts": alerts}
    open_list = await _read_sessions(services, viewer)
    of_project = [entry for entry in open_list if project in (None, entry.session.project)]
    counts = Counter(entry.session.status for entry in of_project)
    matches = [entry for entry in of_project if status in (None, entry.session.status) and _is_after(entry, cursor)]
    shown, following = page_of(
        matches[: ROWS_PER_PAGE + 1], ROWS_PER_PAGE, lambda entry: Place(entry.session.last_received, entry.place)
    )
    values = {
        "sessions": [entry.session for entry in shown],
        "counts": {color: counts[color] for color in STATUSES},
        "is_cut": len(open_list) == MAX_SESSIONS,
        "projects": sorted({entry.session.project for entry in open_list} | ({project} if project else set())),
        "project": project,
        "status": status,
        "alert_status": alerts,
        "listening": listening_of(services.engine),
        "paged": cursor is not None,
        "following": following and Links().watched(**filters, cursor=following),
        "filters": filters,
        "receivers": services.alert_receivers,
        "can_test": is_administrator(viewer),
    }
    if not shown:
        projects = await projects_of(services, viewer.project)
        values["newest"] = max((entry.newest for entry in projects if entry.newest is not None), default=None)
        values["silent"] = len(projects)
    # Alerts concern all projects, so an operator of a single project sees none.
    deliveries = None
    following_alerts = None
    if viewer.project is None:
        deliveries, following_alerts = await _read_alerts(services, alerts, alerts_from)
    values |= {
        "alerts": deliveries,
        "following_alerts": following_alerts and Links().watched(**filters, alertsFrom=following_alerts),
    }
    return page(request, "telemetry.html", values)


async def _read_sessions(services: ApiContext, viewer: Holder) -> list[ListedSession]:
    engine = services.engine
    now = engine.now()
    listening = listening_of(engine)
    return await services.ask(
        lambda cursor: open_sessions(cursor, engine.policy, now, listening, project=viewer.project, limit=MAX_SESSIONS)
    )


async def _read_alerts(
    services: ApiContext, status: AlertStatus | None, start: Place | None
) -> tuple[list[AlertDelivery], str | None]:
    deliveries = await services.ask(
        lambda cursor: alert_deliveries(cursor, ROWS_PER_PAGE + 1, status=status, before=after(start))
    )
    return page_of(deliveries, ROWS_PER_PAGE, lambda alert: Place(alert.created_at, alert.id))


def _is_after(entry: ListedSession, cursor: Place | None) -> bool:
    return cursor is None or (entry.session.last_received, entry.place) > (cursor.at, cursor.id)
