"""Viewers of the administration: admins of every project. Others see the required scope and the people who can grant it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request

from service.pages.viewing import Viewer
from service.setup.access.access import SCOPES, AccessStore, Holder
from service.web.context import Services
from service.web.errors import ApiError

NAMED = 3
"""Admins that are named."""


def is_administrator(holder: Holder) -> bool:
    """Tell whether a holder is an admin of every project, not of one."""
    return holder.kind == "operator" and "admin" in holder.scopes and holder.project is None


def _administrator(viewer: Viewer, services: Services) -> Holder:
    if is_administrator(viewer):
        return viewer
    scopes = ", ".join(scope for scope in SCOPES if scope in viewer.scopes)
    whose = f"for the project {viewer.project}" if viewer.project else "for every project"
    words = f"Administration needs the scope admin for every project. {viewer.name} has {scopes} {whose}. {_who_gives(services.access)}"
    raise ApiError(HTTPStatus.FORBIDDEN, "scope_required", words)


def _who_gives(access: AccessStore) -> str:
    """Name who can grant the scope: an admin, or a command on the server."""
    live = [
        one.name
        for one, tokens in access.holders("operator")
        if is_administrator(one) and any(token.state == "live" for token in tokens)
    ]
    others = f" or {len(live) - NAMED} more" if len(live) > NAMED else ""
    asked = f"Ask {' or '.join(live[:NAMED])}{others}, or run" if live else "Run"
    return f"{asked} on the server: driftline operators add NAME"


def _sender(request: Request, services: Services) -> Holder:
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None:
        raise ApiError(HTTPStatus.UNAUTHORIZED, "signed_out", "the sign-in has ended; sign in again")
    return _administrator(caller, services)


Administrator = Annotated[Holder, Depends(_administrator)]
"""The admin of every project who views a page; 403 for others, naming people who can help."""
Sender = Annotated[Holder, Depends(_sender)]
"""The same for writing requests: without a sign-in the answer is an error, because scripts follow no redirects."""
