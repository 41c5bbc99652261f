"""Viewers of pages: a signed-in operator who may read; others are led to the sign-in and come back."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Path, Request

from schemas.bounds import NAME
from service.setup.access.access import Holder
from service.text.links import Links
from service.web.authentication import require_project
from service.web.context import Services
from service.web.errors import ApiError


async def _viewer(request: Request, services: Services) -> Holder:
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        place = {"Location": f"{Links.sign_in}?next={quote(here, safe='')}"}
        raise ApiError(HTTPStatus.SEE_OTHER, "signed_out", "sign in first", place)
    if caller.kind != "operator" or "read" not in caller.scopes:
        raise ApiError(HTTPStatus.FORBIDDEN, "scope_required", "the token lacks the scope read")
    request.state.open_incidents = await services.open_incidents(caller.project)
    request.state.unreadable_judges = await services.unreadable_judges(caller.project)
    return caller


Viewer = Annotated[Holder, Depends(_viewer)]
"""The operator who views a page; without one the answer redirects to the sign-in."""


async def _shown_project(viewer: Viewer, services: Services, project: Annotated[str, Path(pattern=f"^{NAME}$")]) -> str:
    require_project(viewer, project)
    await services.require_project(project)
    return project


ShownProject = Annotated[str, Depends(_shown_project)]
"""The project in the address, which the viewer may see; 404 for an unknown one."""


def local_path(address: str) -> str:
    """Return the address to open after the sign-in: the requested one if it is a path of this server, otherwise the fleet."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_ours else Links.fleet
