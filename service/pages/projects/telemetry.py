"""Telemetry as a page: the open sessions, the longest silent first, and the alerts."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from audit.silence import Status
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.telemetry import AlertDelivery, AlertStatus, ListedSession, alert_deliveries, listening_of, open_sessions
from service.setup.access import Holder
from service.text.answers import Place, after, page_of
from service.text.links import Links
from service.web.authentication import require_project
from service.web.context import ApiContext, Services
from service.web.models import ConnectionName, Cursor

router = APIRouter(include_in_schema=False)
STATUSES: tuple[Status, ...] = ("red", "yellow", "green")
MOST = 20_000
"""Maximum number of open sessions that are counted, longest silent first."""
SHOWN = 100
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
    """Show the watched sessions, of one project or all, and the alerts for operators of every project."""
    if project is not None:
        require_project(viewer, project)
    filters = {"project": project, "status": status, "alerts": alerts}
    everything = await _read_sessions(services, viewer)
    chosen = [one for one in everything if project in (None, one.session.project)]
    counts = Counter(one.session.status for one in chosen)
    wanted = [one for one in chosen if status in (None, one.session.status) and _is_after(one, cursor)]
    shown, following = page_of(wanted[: SHOWN + 1], SHOWN, lambda one: Place(one.session.last_received, one.place))
    values = {
        "sessions": [one.session for one in shown],
        "counts": {one: counts[one] for one in STATUSES},
        "is_cut": len(everything) == MOST,
        "projects": sorted({one.session.project for one in everything} | ({project} if project else set())),
        "project": project,
        "status": status,
        "alert_status": alerts,
        "listening": listening_of(services.engine),
        "paged": cursor is not None,
        "following": following and Links().watched(**filters, cursor=following),
        "asked": filters,
    }
    alert_values = None if viewer.project is not None else await _read_alerts(services, alerts, alerts_from)
    values |= {
        "told": alert_values and alert_values[0],
        "told_following": alert_values and alert_values[1] and Links().watched(**filters, alertsFrom=alert_values[1]),
    }
    return page(request, "telemetry.html", values)


async def _read_sessions(services: ApiContext, viewer: Holder) -> list[ListedSession]:
    engine = services.engine
    now, listening = engine.now(), listening_of(engine)
    return await services.ask(
        lambda cursor: open_sessions(cursor, engine.policy, now, listening, project=viewer.project, limit=MOST)
    )


async def _read_alerts(
    services: ApiContext, status: AlertStatus | None, start: Place | None
) -> tuple[list[AlertDelivery], str | None]:
    deliveries = await services.ask(lambda cursor: alert_deliveries(cursor, SHOWN + 1, status=status, before=after(start)))
    return page_of(deliveries, SHOWN, lambda alert: Place(alert.created_at, alert.id))


def _is_after(listed: ListedSession, cursor: Place | None) -> bool:
    return cursor is None or (listed.session.last_received, listed.place) > (cursor.at, cursor.id)
