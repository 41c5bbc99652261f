"""The installation over HTTP: version, size, lag and dead letters, for admins of every project."""

from __future__ import annotations

from fastapi import APIRouter

from service.text.paths import API
from service.web.authentication import FleetAdmin
from service.web.context import Services
from service.web.errors import documented
from service.web.installation import InstallationAnswer, installed

router = APIRouter(tags=["operations"])


@router.get(f"{API}/installation", responses=documented())
async def installation(_: FleetAdmin, services: Services) -> InstallationAnswer:
    """Tell the version, the sizes of the files, how far the stages are behind, and what was set aside."""
    return await installed(services)
