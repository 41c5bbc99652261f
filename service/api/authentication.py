"""Who calls: the token of a request, before its body is read. Nothing under /api is answered without one.

1. The token is in the Authorization header (`Bearer dl_…`), never in the address.
2. Each address may fail so many times a minute; beyond that it is told to wait (429). A right token is always let in: no failures
   of others behind the same proxy lock it out, and 256 random bits need no lock.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from typing import Annotated, Any

from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.limits import NAME
from service.access import AccessStore, Holder
from service.api.errors import ApiError, refuse
from service.api.limits import header_values
from service.api.settings import ApiSettings
from service.tokens import prefix_of

WINDOW = 60.0
"""Seconds over which failures are counted."""
MAX_ADDRESSES = 10_000
"""Addresses whose failures are remembered: those that failed last."""
METRICS = "/metrics"
NEEDED = "a Bearer token is needed: Authorization: Bearer dl_…"
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="driftline"'}


class Failures:
    """How often each address has failed within the last minute; the clock is monotonic, in seconds."""

    def __init__(self, limit: int, clock: Any = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """Count one failure; answers how many seconds the address has to wait, 0 while it has not failed too often."""
        now = self._clock()
        start, failed = self._counts.pop(address, (now, 0))
        if now - start >= WINDOW:
            start, failed = now, 0
        self._counts[address] = start, failed + 1
        while len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)
        return 0 if failed < self._limit else int(start + WINDOW - now) + 1


class Authentication:
    """Finds whose token a request brings, and refuses the others."""

    def __init__(self, app: ASGIApp, access: AccessStore, settings: ApiSettings) -> None:
        self._app = app
        self._access = access
        self._failures = Failures(settings.max_failures)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its caller, or refuse it with 401 or 429."""
        if scope["type"] == "http":
            given = list(header_values(scope, b"authorization"))
            if scope["path"].startswith("/api/") or (scope["path"] == METRICS and given):
                token = _token(given)
                caller = self._access.find(token)
                if caller is None:
                    await refuse(self._refusal(scope, given), scope, receive, send)
                    return
                scope.setdefault("state", {}).update(caller=caller, token=prefix_of(token))
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, given: list[bytes]) -> ApiError:
        wait = self._failures.count(client_address(scope))
        if wait:
            return ApiError(429, "too_many_failures", f"too many wrong tokens; wait {wait} s", {"Retry-After": str(wait)})
        return ApiError(401, "unauthorized", _why(given), CHALLENGE)


def client_address(scope: Scope) -> str:
    """Where a request comes from: the address, of IPv6 the network of one client (64 bits)."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)[:64]
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def _token(values: list[bytes]) -> bytes:
    """The token of the one Authorization header; nothing where there is none, or several."""
    scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _why(values: list[bytes]) -> str:
    """Why these Authorization headers open nothing, in words."""
    if not values:
        return NEEDED
    if len(values) > 1:
        return "Authorization: is there more than once"
    scheme = values[0].partition(b" ")[0].lower()
    return "the token is wrong, expired or revoked" if scheme == b"bearer" else f"{NEEDED}; no other scheme is taken"


def caller_of(request: Request) -> Holder:
    """Who calls; 401 when nobody has said."""
    caller: Holder | None = getattr(request.state, "caller", None)
    if caller is None:
        raise ApiError(401, "unauthorized", NEEDED, CHALLENGE)
    return caller


_CONNECTION = HTTPBearer(scheme_name="connectionToken", description="Token of a connection.", auto_error=False)
_OPERATOR = HTTPBearer(scheme_name="operatorToken", description="Token of an operator.", auto_error=False)


def _connection(request: Request, _: Annotated[Any, Security(_CONNECTION)]) -> Holder:
    caller = caller_of(request)
    if caller.kind != "connection":
        raise ApiError(403, "connection_token_required", "this takes the token of a connection")
    return caller


def _holds(caller: Holder, scope: str) -> Holder:
    if caller.kind != "operator":
        raise ApiError(403, "operator_token_required", "this takes the token of an operator")
    if scope not in caller.scopes:
        raise ApiError(403, "scope_required", f"the token lacks the scope {scope}")
    return caller


def _either(
    request: Request, _: Annotated[Any, Security(_CONNECTION)], __: Annotated[Any, Security(_OPERATOR, scopes=["admin"])]
) -> Holder:
    caller = caller_of(request)
    return caller if caller.kind == "connection" else _holds(caller, "admin")


def _operator(request: Request, _: Annotated[Any, Security(_OPERATOR)]) -> Holder:
    caller = caller_of(request)
    if caller.kind != "operator":
        raise ApiError(403, "operator_token_required", "this takes the token of an operator")
    return caller


def _scoped(request: Request, needed: SecurityScopes, _: Annotated[Any, Security(_OPERATOR)]) -> Holder:
    caller = caller_of(request)
    for scope in needed.scopes:
        _holds(caller, scope)
    return caller


def _everywhere(caller: Annotated[Holder, Depends(_scoped)]) -> Holder:
    require_project(caller, None)
    return caller


Connection = Annotated[Holder, Depends(_connection)]
"""The connection that calls; 403 for an operator."""
Caller = Annotated[Holder, Depends(_either)]
"""Whoever calls: a connection, or an operator with the scope admin."""
Operator = Annotated[Holder, Depends(_operator)]
"""The operator that calls, whatever its scopes; 403 for a connection."""
Reader = Annotated[Holder, Security(_scoped, scopes=["read"])]
"""An operator who may read."""
Reviewer = Annotated[Holder, Security(_scoped, scopes=["review"])]
"""An operator who may score and decide as a person."""
Admin = Annotated[Holder, Security(_scoped, scopes=["admin"])]
"""An operator who may change, purge and judge again, in the projects the token is for."""
FleetAdmin = Annotated[Holder, Security(_everywhere, scopes=["admin"])]
"""An operator who may do so in every project, and give access."""
Querier = Annotated[Holder, Security(_everywhere, scopes=["query"])]
"""An operator of every project who may ask SQL of their own: it sees all there is."""


def require_project(caller: Holder, project: str | None) -> None:
    """403 when the caller may not see the project; `None` stands for all of them. Whether it exists is not told."""
    if caller.project is not None and caller.project != project:
        raise ApiError(403, "other_project", "the token is for another project")


def _visible_project(
    caller: Operator, project: Annotated[str, Path(pattern=f"^{NAME}$", description="Name of the project.", examples=["ops"])]
) -> str:
    require_project(caller, project)
    return project


VisibleProject = Annotated[str, Depends(_visible_project)]
"""The project in the address, which the operator may see. What may be done there another dependency says: Reader, Reviewer, Admin."""
