"""Signing in at the identity provider: the way there, and the provider's answer."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import quote, unquote

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse

from service.pages.viewing import local_path
from service.setup.access import Write
from service.setup.oidc import Attempt, Identity, IdentityProvider, SignInRefusedError
from service.text.links import Links
from service.web.authentication import Failures, cookie_name_of, counted_address, is_encrypted, set_sign_in_cookie
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError

router = APIRouter(include_in_schema=False)
ATTEMPT_SECONDS = 600
"""Seconds that a person has to sign in at the provider."""
_ATTEMPT = re.compile(r"([A-Za-z0-9_-]{43})\.(.*)")
_NO_STORE = {"Cache-Control": "no-store"}


@router.get(Links.provider_sign_in)
async def begin(request: Request, services: Services, next: str = "/") -> RedirectResponse:  # noqa: A002 - the name in the address
    """Lead to the provider, and remember the attempt in a cookie of this browser."""
    provider = _require_provider(services)
    attempt = Attempt.begin()
    try:
        address = await provider.authorization_url(attempt, _redirect_uri(request, services))
    except SignInRefusedError as error:
        raise ApiError(HTTPStatus.BAD_GATEWAY, "no_provider", str(error)) from None
    answer = RedirectResponse(address, HTTPStatus.SEE_OTHER, _NO_STORE)
    hosts = services.settings.encrypted_hosts
    answer.set_cookie(
        _attempt_cookie(request, services),
        f"{attempt.secret}.{quote(local_path(next), safe='')}",
        max_age=ATTEMPT_SECONDS,
        httponly=True,
        samesite="lax",  # the provider's answer comes from another site
        secure=is_encrypted(request.scope, hosts),
    )
    return answer


@router.get(Links.provider_answer)
async def finish(request: Request, services: Services) -> RedirectResponse:
    """Sign in the person whom the provider has identified, with the rights of the person's groups."""
    provider = _require_provider(services)
    cookie = _ATTEMPT.fullmatch(request.cookies.get(_attempt_cookie(request, services), ""))
    try:
        identity = await _identify(request, services, provider, cookie and cookie[1])
    except SignInRefusedError as error:
        failures: Failures = request.app.state.refused_sign_ins
        wait = failures.count(counted_address(request.client.host if request.client else ""))
        if wait:
            raise ApiError(
                429, "too_many_failures", f"too many refused sign-ins; wait {wait} s", {"Retry-After": str(wait)}
            ) from None
        raise ApiError(403, "sign_in_refused", f"{error}. Sign in again: {Links.sign_in}", _forget(request, services)) from None
    if not identity.grants:
        with durable_or_refused():
            await anyio.to_thread.run_sync(services.access.dismiss, identity.issuer, identity.subject)
        message = "the identity provider knows you, but none of your groups has a role here; ask for one of the groups"
        raise ApiError(403, "no_role", message, _forget(request, services))
    with durable_or_refused():
        secret = await anyio.to_thread.run_sync(_sign_in, request, services, identity)
    answer = RedirectResponse(local_path(unquote(cookie[2] if cookie else "")), HTTPStatus.SEE_OTHER, _NO_STORE)
    answer.delete_cookie(
        _attempt_cookie(request, services), secure=is_encrypted(request.scope, services.settings.encrypted_hosts)
    )
    set_sign_in_cookie(answer, request, services.settings.encrypted_hosts, secret)
    return answer


async def _identify(request: Request, services: ApiContext, provider: IdentityProvider, secret: str | None) -> Identity:
    values = request.query_params
    if secret is None:
        raise SignInRefusedError("this sign-in was not begun in this browser, has taken too long, or was used already")
    if values.get("iss", provider.issuer) != provider.issuer:
        raise SignInRefusedError("the answer is from another identity provider")
    if "error" in values:
        kind = re.sub(r"[^a-z_]", "", values["error"])[:64]
        raise SignInRefusedError(f"the identity provider did not sign you in ({kind})")
    state, code = values.get("state", ""), values.get("code", "")
    return await provider.identify(Attempt(secret), state, code, _redirect_uri(request, services))


def _sign_in(request: Request, services: ApiContext, identity: Identity) -> str:
    """Set the person's rights, and return the cookie of a new sign-in. The audit log has a line for it."""
    access = services.access
    holder, prefix = access.admit(identity.issuer, identity.subject, identity.name, identity.grants)
    write = Write(
        kind="operator",
        name=holder.name,
        token=prefix,
        method="GET",
        route=Links.provider_answer,
        project=holder.project,
        request_id=request.state.request_id,
    )
    line = access.audit_log.begin(write)
    secret = access.sign_ins.begin(prefix, holder.project)
    access.audit_log.end(line, "done", int(HTTPStatus.SEE_OTHER))
    return secret


def _require_provider(services: ApiContext) -> IdentityProvider:
    provider = services.settings.identity_provider
    if provider is None:
        raise ApiError(404, "not_found", "this server has no identity provider; sign in with a token")
    return provider


def _redirect_uri(request: Request, services: ApiContext) -> str:
    return f"{(services.settings.public_url or str(request.base_url)).rstrip('/')}{Links.provider_answer}"


def _attempt_cookie(request: Request, services: ApiContext) -> str:
    return f"{cookie_name_of(request.scope, services.settings.encrypted_hosts)}-oidc"


def _forget(request: Request, services: ApiContext) -> dict[str, str]:
    """Return the headers of a refusal, which end the attempt."""
    secure = "; Secure" if is_encrypted(request.scope, services.settings.encrypted_hosts) else ""
    return {"Set-Cookie": f"{_attempt_cookie(request, services)}=; Max-Age=0; Path=/; HttpOnly; SameSite=lax{secure}"}
