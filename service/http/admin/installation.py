"""The installation over HTTP: version, size, lag and dead letters, for admins of every project."""

from __future__ import annotations

from fastapi import APIRouter

from service.read.installation import Installation
from service.read.installation import installation as installation_of
from service.text.links import API
from service.web.answering import AnswerRoute
from service.web.authentication import FleetAdmin
from service.web.context import Services
from service.web.errors import documented

router = APIRouter(route_class=AnswerRoute, tags=["operations"])


@router.get(f"{API}/installation", responses=documented())
async def installation(_: FleetAdmin, services: Services) -> Installation:
    """Return the version, the sizes of the files, the lag of the stages, and the number of dead letters."""
    return await services.ask(lambda cursor: installation_of(cursor, services.engine, services.access))
