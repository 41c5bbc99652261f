"""Authentication of requests by token or cookie, before the body is read. Every path under /api requires one.

1. The token is in the Authorization header (`Bearer dl_…`), never in the address. A browser has a cookie instead, after signing in.
2. A browser also sends its cookie with requests that other sites make. So an unsafe request with a cookie must come from one of our
   pages: it carries the page's mark, and the browser names no other origin. A form that works without a script has the mark in its
   body, which is checked when the form is read (`service.pages.viewing`).
3. Failures per address and minute are limited; beyond the limit the address has to wait (429). A valid token is always accepted, so
   that failures of others behind the same proxy do not lock it out. A token has 256 random bits, so it cannot be guessed.
4. Browsers share the cookies of a host among its ports. The cookie's name contains the port, so that two servers on one machine do
   not sign out each other's users.
5. A TLS proxy forwards plain HTTP, so the server recognizes an encrypted call by its public address. The cookie in the answer to
   an encrypted call is limited to encrypted calls to this host (`__Host-`: https://httpwg.org/specs/rfc6265.html).
6. A person with rights by project has in a request the rights of one project only: that of the address, or else the one in use.
7. The guest of a shared link has another cookie, whose path is the page of the link. Whatever a browser sends, a guest is the caller
   only of GET requests for exactly this page, never of the API, and never if an operator is signed in.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from fastapi import Depends, Path, Request, Response, Security
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.bounds import NAME
from service.setup.access import SIGN_IN_DURATION, AccessStore, Holder, SharedLink, is_mark, prefix_of
from service.text.links import API, CALLS
from service.web.bounds import FORMS, ApiSettings
from service.web.context import Services
from service.web.errors import ApiError, refuse
from service.web.middleware import SAFE_METHODS, header_values, is_same_origin

FAILURE_WINDOW = 60.0
"""Seconds over which failures are counted."""
MAX_ADDRESSES = 10_000
"""Maximum number of addresses whose failures are counted. The addresses with the oldest failures are dropped."""
PROJECTS = "/projects/"
"""Beginning of the paths that a shared link can open."""
_PROJECT_PATH = re.compile(f"^(?:/projects|{API})/([^/]+)")
"""Paths in a project. A person with rights by project has those in this one; an address without a project has the one in use."""
METRICS = "/metrics"
SIGN_IN = f"{API}/sign-in"
PAGE_MARK = "X-Driftline-Page"
"""The header in which a page repeats its mark in unsafe requests."""
TOKEN_REQUIRED = "a Bearer token is required: Authorization: Bearer dl_…"  # noqa: S105 - a message
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="driftline"'}


class Failures:
    """The number of failures of each address within the last minute; the clock is monotonic, in seconds."""

    def __init__(self, limit: int, clock: Any = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """Count one failure. Return the seconds that the address has to wait, 0 below the limit."""
        now = self._clock()
        start, failures = self._counts.pop(address, (now, 0))
        if now - start >= FAILURE_WINDOW:
            start, failures = now, 0
        self._counts[address] = start, failures + 1
        while len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)
        return 0 if failures < self._limit else int(start + FAILURE_WINDOW - now) + 1


class Authentication:
    """Finds the holder of a request's token, and refuses requests without a valid one."""

    def __init__(self, app: ASGIApp, access: AccessStore, settings: ApiSettings) -> None:
        self._app = app
        self._access = access
        self._encrypted_hosts = settings.encrypted_hosts
        self._failures = Failures(settings.max_failures)
        self._version: int | None = None
        """The version of the token file; None until it is read in this iteration of the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its caller, or refuse it with 401 or 429."""
        if scope["type"] == "http":
            credentials = list(header_values(scope, b"authorization"))
            cookie = _sign_in_cookie(scope, self._encrypted_hosts)
            if credentials or not cookie:
                error = self._authenticate_token(scope, credentials)
            else:
                error = self._authenticate_cookie(scope, cookie)
            if error is not None:
                await refuse(error, scope, receive, send)
                return
            if scope["method"] == "GET" and scope["path"].startswith(PROJECTS) and "caller" not in scope.get("state", {}):
                self._admit_guest(scope)
        await self._app(scope, receive, send)

    def _authenticate_token(self, scope: Scope, credentials: list[bytes]) -> ApiError | None:
        """Set the caller from the Authorization headers. Return the error if a token is required and none is valid."""
        if not (_is_api(scope) or (scope["path"] == METRICS and credentials)):
            return None
        if scope["path"] == SIGN_IN and scope["method"] == "POST" and (code := _credential(credentials, b"link")):
            state = scope.setdefault("state", {})
            followed = self._access.follow_link(code)
            if followed is not None:
                state.update(caller=followed[0], token=followed[1])
                return None
            link = self._access.shared_links.find(code)
            if link is None:
                return self._count_failure(scope, credentials)
            state.update(caller=_guest_of(link), shared_link=link, shared_code=code.decode())
            return None
        token = bearer_token(credentials)
        caller = self._access.find(token, self._file_version())
        if caller is None:
            return self._count_failure(scope, credentials)
        scope.setdefault("state", {}).update(caller=caller, token=prefix_of(token))
        return None

    def _file_version(self) -> int:
        """Return the version of the token file.

        Reading it takes a fifth of the time of an ingest request, so it is read once per iteration of the event loop. That is safe:
        a call sent after a revocation arrives in a later iteration.
        """
        if self._version is None:
            self._version = self._access.version()
            asyncio.get_running_loop().call_soon(self._forget_version)
        return self._version

    def _forget_version(self) -> None:
        self._version = None

    def _authenticate_cookie(self, scope: Scope, cookie: bytes) -> ApiError | None:
        """Set the caller from the cookie. Return the error if it is invalid or the call does not come from one of our pages."""
        signed_in = self._access.signed_in(cookie)
        if signed_in is None:
            return ApiError(401, "signed_out", "the sign-in has ended; sign in again") if _is_api(scope) else None
        caller, prefix = signed_in
        if caller.grants and (in_project := _PROJECT_PATH.match(scope["path"])):
            caller = caller.acting_on(in_project[1])
        if scope["method"] not in SAFE_METHODS and not _is_from_page(scope, cookie):
            return ApiError(403, "forged", "the call does not come from a page of this server; reload the page")
        scope.setdefault("state", {}).update(caller=caller, token=prefix, cookie=cookie)
        return None

    def _admit_guest(self, scope: Scope) -> None:
        """Set the caller of a request for the page of a shared link, if the cookie has the link's code."""
        code = _cookie_value(scope, guest_cookie_name_of(scope, self._encrypted_hosts))
        link = self._access.shared_links.find(code) if code else None
        if link is not None and scope["path"] == unquote(link.page) and _connections_in(scope) == {link.connection} - {None}:
            scope.setdefault("state", {}).update(caller=_guest_of(link), shared_link=link)

    def _count_failure(self, scope: Scope, credentials: list[bytes]) -> ApiError:
        """Count a failure of the client's address and return the error to answer."""
        wait = self._failures.count(_client_address(scope))
        if wait:
            return ApiError(429, "too_many_failures", f"too many wrong tokens; wait {wait} s", {"Retry-After": str(wait)})
        return ApiError(401, "unauthorized", explain_refusal(credentials), CHALLENGE)


def _client_address(scope: Scope) -> str:
    return counted_address(scope["client"][0] if scope.get("client") else "")


def counted_address(host: str) -> str:
    """Return the address under which a host's failures are counted: for IPv6, its network (64 bits)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)[:64]
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def bearer_token(values: list[bytes]) -> bytes:
    """Return the token of the only Authorization header; empty without one, or if there are several."""
    return _credential(values, b"bearer")


def _credential(values: list[bytes], expected_scheme: bytes) -> bytes:
    """Return the credential of the only Authorization header; empty without one, with several, or of another scheme."""
    if len(values) != 1:
        return b""
    scheme, credential = _parse_credentials(values[0])
    return credential if scheme == expected_scheme else b""


def _parse_credentials(value: bytes) -> tuple[bytes, bytes]:
    """Split a header into its scheme, in lower case, and its token.

    Some exporters send values of OTEL_EXPORTER_OTLP_HEADERS without decoding their percent-encoding: `Bearer%20…`. No token
    contains a percent sign.
    """
    if b"%" in value:
        value = unquote_to_bytes(value)
    scheme, _, token = value.partition(b" ")
    return scheme.lower(), token.strip()


def _is_api(scope: Scope) -> bool:
    return bool(scope["path"].startswith(CALLS))


def _is_from_page(scope: Scope, cookie: bytes) -> bool:
    """Return whether one of our pages made the call: it carries the mark, and the browser names no other origin."""
    if scope["path"] in FORMS:
        return is_same_origin(scope)
    marks = list(header_values(scope, PAGE_MARK.lower().encode()))
    return len(marks) == 1 and is_mark(marks[0], cookie) and is_same_origin(scope)


def explain_refusal(values: list[bytes]) -> str:
    """Explain why these Authorization headers are refused."""
    if not values:
        return TOKEN_REQUIRED
    if len(values) > 1:
        return "Authorization: must be given once"
    scheme, _ = _parse_credentials(values[0])
    if scheme == b"link":
        return "the link was used or has expired; sign in with a token"
    return "the token is wrong, expired or revoked" if scheme == b"bearer" else f"{TOKEN_REQUIRED}; no other scheme is accepted"


def caller_of(request: Request) -> Holder:
    """Return the caller. Raises ApiError (401) without a token or sign-in."""
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None:
        raise ApiError(401, "unauthorized", TOKEN_REQUIRED, CHALLENGE)
    return caller


_CONNECTION = HTTPBearer(scheme_name="connectionToken", description="Token of a connection.", auto_error=False)
_OPERATOR = HTTPBearer(scheme_name="operatorToken", description="Token of an operator.", auto_error=False)


async def _require_connection(request: Request, _: Annotated[Any, Security(_CONNECTION)]) -> Holder:
    caller = caller_of(request)
    if caller.kind != "connection":
        raise ApiError(403, "connection_token_required", "this needs the token of a connection")
    return caller


def _require_scope(caller: Holder, scope: str) -> Holder:
    if caller.kind != "operator":
        raise ApiError(403, "operator_token_required", "this needs the token of an operator")
    if scope not in caller.scopes:
        raise ApiError(403, "scope_required", f"the token lacks the scope {scope}")
    return caller


async def _require_connection_or_admin(
    request: Request, _: Annotated[Any, Security(_CONNECTION)], __: Annotated[Any, Security(_OPERATOR, scopes=["admin"])]
) -> Holder:
    caller = caller_of(request)
    return caller if caller.kind == "connection" else _require_scope(caller, "admin")


async def _require_operator(request: Request, _: Annotated[Any, Security(_OPERATOR)]) -> Holder:
    caller = caller_of(request)
    if caller.kind != "operator":
        raise ApiError(403, "operator_token_required", "this needs the token of an operator")
    return caller


async def _require_scopes(request: Request, required: SecurityScopes, _: Annotated[Any, Security(_OPERATOR)]) -> Holder:
    caller = caller_of(request)
    for scope in required.scopes:
        _require_scope(caller, scope)
    return caller


async def _require_entrant(request: Request, required: SecurityScopes, _: Annotated[Any, Security(_OPERATOR)]) -> Holder:
    caller = caller_of(request)
    return caller if caller.kind == "guest" else _require_scope(caller, required.scopes[0])


async def _require_every_project(caller: Annotated[Holder, Depends(_require_scopes)]) -> Holder:
    require_project(caller, None)
    return caller


Connection = Annotated[Holder, Depends(_require_connection)]
"""The calling connection; 403 for an operator."""
Caller = Annotated[Holder, Depends(_require_connection_or_admin)]
"""The caller: a connection, or an operator with the scope admin."""
Operator = Annotated[Holder, Depends(_require_operator)]
"""The calling operator, with any scopes; 403 for a connection."""
Reader = Annotated[Holder, Security(_require_scopes, scopes=["read"])]
"""An operator who may read."""
Entrant = Annotated[Holder, Security(_require_entrant, scopes=["read"])]
"""An operator who may read, or the guest of a shared link."""
Reviewer = Annotated[Holder, Security(_require_scopes, scopes=["review"])]
"""An operator who may score exchanges and decide on incidents."""
Admin = Annotated[Holder, Security(_require_scopes, scopes=["admin"])]
"""An operator who may change, purge and rejudge records in the projects of the token."""
FleetAdmin = Annotated[Holder, Security(_require_every_project, scopes=["admin"])]
"""An admin of every project, who may also manage access."""
Querier = Annotated[Holder, Security(_require_scopes, scopes=["query"])]
"""An operator who may run SQL. Statements see the projects in which the operator has the scope."""


def require_project(caller: Holder, project: str | None) -> None:
    """Raise ApiError (403) if the caller may not see the project (None: all projects), whether or not it exists."""
    if caller.project is not None and caller.project != project:
        raise ApiError(403, "other_project", "the token is for another project")


async def _require_visible_project(
    request: Request,
    caller: Operator,
    services: Services,
    project: Annotated[str, Path(pattern=f"^{NAME}$", description="Name of the project.", examples=["ops"])],
) -> str:
    require_project(caller, project)
    await services.require_project(project)
    await services.fetch_cold(project, request.path_params)
    return project


VisibleProject = Annotated[str, Depends(_require_visible_project)]
"""The project in the address, if the operator may see it; 404 for an unknown project.

Another dependency checks the scope: Reader, Reviewer or Admin.
"""


def is_encrypted(scope: Scope, encrypted_hosts: Collection[str]) -> bool:
    """Return whether a call was encrypted up to the server, or up to a proxy that answers for its host."""
    hosts = [value.decode("latin-1").lower() for value in header_values(scope, b"host")]
    return scope["scheme"] == "https" or (len(hosts) == 1 and hosts[0] in encrypted_hosts)


def cookie_name(port: int | None, *, encrypted: bool) -> str:
    """Return the name of the sign-in cookie of the server at this port."""
    return f"{'__Host-' if encrypted else ''}driftline-{port or 0}"


def cookie_name_of(scope: Scope, encrypted_hosts: Collection[str]) -> str:
    """Return the name of the sign-in cookie in a call and its answer."""
    _, port = scope.get("server") or ("", 0)
    return cookie_name(port, encrypted=is_encrypted(scope, encrypted_hosts))


def set_sign_in_cookie(response: Response, request: Request, encrypted_hosts: Collection[str], secret: str) -> None:
    """Set the cookie of a sign-in."""
    response.set_cookie(
        cookie_name_of(request.scope, encrypted_hosts),
        secret,
        max_age=int(SIGN_IN_DURATION.total_seconds()),
        httponly=True,
        samesite="lax",  # with "strict", people who follow a link from an alert would appear signed out
        secure=is_encrypted(request.scope, encrypted_hosts),
    )


def guest_cookie_name_of(scope: Scope, encrypted_hosts: Collection[str]) -> str:
    """Return the name of the cookie of a shared link. Its path is a page, which the prefix `__Host-` does not allow."""
    _, port = scope.get("server") or ("", 0)
    return f"{'__Secure-' if is_encrypted(scope, encrypted_hosts) else ''}driftline-shared-{port or 0}"


def _guest_of(link: SharedLink) -> Holder:
    """Return the caller who has opened a shared link. The name is the link's public id."""
    return Holder("guest", link.id, link.project, scopes=frozenset({"read"}))


def _connections_in(scope: Scope) -> set[str]:
    """Return the connections that an address names: those of one session id are different sessions."""
    return {value for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == "connection"}


def _sign_in_cookie(scope: Scope, encrypted_hosts: Collection[str]) -> bytes:
    """Return the sign-in cookie; empty without one, or if there are several."""
    return _cookie_value(scope, cookie_name_of(scope, encrypted_hosts))


def _cookie_value(scope: Scope, cookie_name: str) -> bytes:
    """Return the value of a cookie; empty without one, or if there are several."""
    cookie = cookie_name.encode()
    pairs = [pair.strip().partition(b"=") for value in header_values(scope, b"cookie") for pair in value.split(b";")]
    values = [value for name, _, value in pairs if name == cookie]
    return values[0] if len(values) == 1 else b""
