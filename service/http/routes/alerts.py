"""Alerts and their delivery, for operators of every project."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.read.telemetry import AlertList, AlertStatus, alert_deliveries
from service.text.answers import Place, after, page_of
from service.text.links import API
from service.web.authentication import Reader, require_project
from service.web.context import Services
from service.web.errors import documented
from service.web.json_routes import AnswerRoute
from service.web.models import Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["alerts"])


@router.get(f"{API}/alerts", responses=documented(400))
async def alerts(
    *,
    caller: Reader,
    services: Services,
    status: Annotated[AlertStatus | None, Query(description="Only those.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AlertList:
    """List the alerts on incidents, silent sessions and judges of every project, newest first."""
    require_project(caller, None)
    deliveries = await services.ask(
        lambda connection: alert_deliveries(connection, limit + 1, status=status, before=after(cursor))
    )
    shown, following = page_of(deliveries, limit, lambda alert: Place(alert.created_at, alert.id))
    return AlertList(alerts=shown, count=len(shown), next_cursor=following)
