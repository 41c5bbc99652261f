"""Signing in to the pages with an operator's token, and out again."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request, Response

from service.setup.access.sign_ins import LASTS
from service.text.links import API
from service.web.authentication import Reader, is_encrypted, name_in
from service.web.bodies import JsonRoute
from service.web.context import Services, durable_or_refused
from service.web.errors import documented

router = APIRouter(route_class=JsonRoute, tags=["access"])


@router.post(f"{API}/sign-in", status_code=204, responses=documented(408, 413, 415))
async def sign_in(request: Request, _: Reader, services: Services) -> Response:
    """Sign in to the pages: the answer sets a cookie that lasts twelve hours, or until the token ends."""
    prefix: str = request.state.token
    with durable_or_refused():
        secret = await anyio.to_thread.run_sync(services.access.sign_ins.begin, prefix)
    response = Response(status_code=204)
    hosts = services.settings.encrypted_hosts
    response.set_cookie(
        name_in(request.scope, hosts),
        secret,
        max_age=int(LASTS.total_seconds()),
        httponly=True,
        samesite="lax",  # with "strict", people who follow a link from an alert would appear signed out
        secure=is_encrypted(request.scope, hosts),
    )
    return response


@router.post(f"{API}/sign-out", status_code=204, responses=documented(408, 413, 415))
async def sign_out(request: Request, _: Reader, services: Services) -> Response:
    """Sign out: the cookie is not valid any more."""
    cookie: bytes = getattr(request.state, "cookie", b"")
    with durable_or_refused():
        await anyio.to_thread.run_sync(services.access.sign_ins.end, cookie)
    response = Response(status_code=204)
    hosts = services.settings.encrypted_hosts
    name, secure = name_in(request.scope, hosts), is_encrypted(request.scope, hosts)
    response.delete_cookie(name, httponly=True, samesite="lax", secure=secure)
    return response
