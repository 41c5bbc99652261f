"""Alerts and their delivery, for operators of every project."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from service.read.telemetry import AlertList, AlertStatus, TriedReceivers, alert_deliveries
from service.text.answers import Place, after, page_of
from service.text.links import API
from service.web.authentication import FleetAdmin, Reader, require_project
from service.web.context import Services
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.middleware import set_subject
from service.web.models import ConnectionName, Cursor, Limit, OperatorBody

router = APIRouter(route_class=JsonRoute, tags=["alerts"])


class ReceiverBody(OperatorBody):
    """The receiver to test."""

    receiver: ConnectionName | None = Field(None, description="Name of the receiver; by default all.")


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


@router.post(f"{API}/alerts/test", responses=documented(400, 404, 408, 409, 413, 415, 502))
async def try_alerts(_: FleetAdmin, services: Services, request: Request, body: ReceiverBody) -> TriedReceivers:
    """Send a test message to each receiver of alerts, or to one, without retries; 502 with the reasons if one was not delivered."""
    if services.try_receivers is None or not services.alert_receivers:
        raise ApiError(409, "conflict", "this server has no receiver of alerts; set DRIFTLINE_ALERT_RECEIVERS and restart it")
    set_subject(request, body.receiver or "all")
    tried = await services.try_receivers(body.receiver)
    if not tried:
        raise ApiError(404, "not_found", f"there is no receiver {body.receiver}")
    failures = [f"{outcome.receiver} did not get it: {outcome.error}" for outcome in tried if not outcome.delivered]
    if failures:
        raise ApiError(502, "not_delivered", "; ".join(failures))
    return TriedReceivers(receivers=tried)
