"""Endpoints for operations: health, readiness, metrics, and for admins of every project the state of the installation."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from schemas.errors import DriftlineError
from schemas.lazy import duckdb
from service.read.installation import Installation
from service.read.installation import installation as installation_of
from service.read.telemetry import count_by_state, read_unused_spans
from service.setup.access import Holder
from service.text.links import API
from service.web.authentication import METRICS, FleetAdmin, caller_of, require_project
from service.web.context import CONTENT_TYPE, ApiContext, Services
from service.web.errors import ApiError, documented
from service.web.json_routes import AnswerRoute

router = APIRouter(route_class=AnswerRoute, tags=["operations"])
log = logging.getLogger(__name__)
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


@router.get("/healthz")
async def health() -> dict[str, str]:
    """Report that the process is running."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "It cannot take records at the moment"}})
async def readiness(services: Services) -> Response:
    """Report whether the server accepts records."""
    state = services.engine.state()
    body: dict[str, Any] = {"ready": state.ready}
    if not state.ready:
        body |= {"error": state.not_ready_reason, "code": "not_ready"}
    return JSONResponse(body, 200 if state.ready else 503)


@router.get(METRICS, responses=documented(), response_class=Response)
async def metrics(request: Request, services: Services) -> Response:
    """Return figures in Prometheus' text format."""
    if not _is_local(request):
        caller: Holder = caller_of(request)
        if caller.kind != "operator":
            raise ApiError(403, "operator_token_required", "this takes the token of an operator")
        require_project(caller, None)
    unused = await _count_unused_spans(services)
    return Response(services.metrics.text(services.engine.state(), unused), media_type=CONTENT_TYPE)


async def _count_unused_spans(services: ApiContext) -> Mapping[str, int] | None:
    """Return the number of unused spans by state; None if the tables cannot be read, which other metrics report."""
    now = services.engine.now()
    try:
        return count_by_state(await services.ask(lambda cursor: read_unused_spans(cursor, now)))
    except (DriftlineError, duckdb.Error):
        log.warning("the unused spans cannot be counted", exc_info=True)
        return None


def _is_local(request: Request) -> bool:
    """Return whether the call comes directly from this machine, not through a proxy."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


@router.get(f"{API}/installation", responses=documented())
async def installation(_: FleetAdmin, services: Services) -> Installation:
    """Return the version, the sizes of the files, the lag of the stages, and the number of dead letters."""
    return await services.ask(lambda cursor: installation_of(cursor, services.engine, services.access))
