"""Access over HTTP: tokens of connections and operators, sign-ins to the pages, and the audit log.

Admins of every project can list, add, rotate and revoke tokens, and end sign-ins.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, StringConstraints

from schemas.errors import InputError
from service.read.access import (
    AuditLines,
    ConnectionList,
    EndedSignIns,
    IssuedLink,
    IssuedToken,
    OperatorList,
    RevokedTokens,
    SharedLinkList,
    SignInList,
)
from service.read.access import connections as connection_list
from service.read.access import operators as operator_list
from service.setup.access import (
    MAX_SHARED_DAYS,
    SCOPES,
    SHARED_DAYS,
    TOKEN_TAG,
    AccessStore,
    Holder,
    Kind,
    Scope,
    SharedLink,
)
from service.text.answers import Place, page_of
from service.text.links import API, Links, read_shared_page
from service.web.authentication import (
    SIGN_IN,
    Entrant,
    FleetAdmin,
    Reader,
    Reviewer,
    cookie_name_of,
    guest_cookie_name_of,
    is_encrypted,
    require_project,
    set_sign_in_cookie,
)
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.json_routes import JsonRoute
from service.web.middleware import set_subject
from service.web.models import ConnectionName, Cursor, Id, Limit, OperatorBody

router = APIRouter(route_class=JsonRoute, tags=["access"])
WRITES = (400, 408, 413, 415)
PREFIX = f"^{TOKEN_TAG}_[0-9a-f]{{12}}$"
Name = Annotated[ConnectionName, Path(description="Name of the connection or operator.", examples=["north"])]
InProject = Annotated[ConnectionName | None, Query(description="Only connections of this project.")]


@router.get(f"{API}/audit-log", responses=documented(400))
def audit_log(
    *,
    _: FleetAdmin,
    services: Services,
    response: Response,
    name: Annotated[ConnectionName | None, Query(description="Only changes by this operator or account.")] = None,
    project: Annotated[ConnectionName | None, Query(description="Only changes in this project.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditLines:
    """List the changes by operators, including refused ones, newest first, without request bodies."""
    before = None if cursor is None else cursor.number
    lines = services.access.audit_log.lines(limit + 1, before, name=name, project=project)
    page, next_cursor = page_of(lines, limit, lambda line: Place(line.at, "", line.id))
    response.headers["Cache-Control"] = "no-store"
    return AuditLines(lines=page, count=len(page), next_cursor=next_cursor)


@router.post(SIGN_IN, status_code=204, responses=documented(408, 413, 415))
async def sign_in(request: Request, entrant: Entrant, services: Services) -> Response:
    """Sign in to the pages: the answer sets a cookie that lasts twelve hours, or until the token ends.

    The code of a sign-in link takes the place of a token: `Authorization: Link CODE`. It works once, within ten minutes.
    The code of a shared link opens its page only, until the link expires: the header Location has the path of the page.
    """
    if entrant.kind == "guest":
        return await _open_shared_link(request, services)
    prefix: str = request.state.token
    with durable_or_refused():
        secret = await anyio.to_thread.run_sync(services.access.sign_ins.begin, prefix)
    response = Response(status_code=204)
    set_sign_in_cookie(response, request, services.settings.encrypted_hosts, secret)
    return response


async def _open_shared_link(request: Request, services: Services) -> Response:
    """Set the cookie of a shared link, which is limited to its page."""
    link: SharedLink = request.state.shared_link
    with durable_or_refused():
        await anyio.to_thread.run_sync(services.access.shared_links.record_opening, link.id)
    response = Response(status_code=204, headers={"Location": link.address})
    hosts = services.settings.encrypted_hosts
    response.set_cookie(
        guest_cookie_name_of(request.scope, hosts),
        request.state.shared_code,
        max_age=max(int((link.expires_at - services.engine.now()).total_seconds()), 0),
        path=link.page,
        httponly=True,
        samesite="strict",
        secure=is_encrypted(request.scope, hosts),
    )
    return response


@router.post(f"{API}/sign-out", status_code=204, responses=documented(408, 413, 415))
async def sign_out(request: Request, _: Reader, services: Services) -> Response:
    """Sign out: the cookie becomes invalid."""
    cookie: bytes = getattr(request.state, "cookie", b"")
    with durable_or_refused():
        await anyio.to_thread.run_sync(services.access.sign_ins.end, cookie)
    response = Response(status_code=204)
    hosts = services.settings.encrypted_hosts
    response.delete_cookie(
        cookie_name_of(request.scope, hosts), httponly=True, samesite="lax", secure=is_encrypted(request.scope, hosts)
    )
    return response


@router.post(f"{API}/sign-in/project", status_code=204, responses=documented(400, 408, 413, 415))
async def use_project(
    request: Request,
    caller: Reader,
    services: Services,
    project: Annotated[ConnectionName | None, Query(description="The project; without one, every project.")] = None,
) -> Response:
    """Choose the project that lists show, for a person who signed in at the identity provider with rights in several."""
    cookie: bytes = getattr(request.state, "cookie", b"")
    set_subject(request, project or "every project")
    if project not in (caller.grants or {caller.project}):
        raise ApiError(403, "other_project", "project: you have no rights of your own in it")
    with durable_or_refused():
        await anyio.to_thread.run_sync(services.access.sign_ins.use_project, cookie, project)
    return Response(status_code=204)


@router.get(f"{API}/sign-ins", responses=documented())
def list_sign_ins(_: FleetAdmin, services: Services, response: Response) -> SignInList:
    """List who is signed in to the pages, newest first."""
    response.headers["Cache-Control"] = "no-store"
    sign_ins = services.access.sign_ins.active()
    return SignInList(sign_ins=sign_ins, count=len(sign_ins))


@router.post(f"{API}/operators/{{name}}/sign-out", responses=documented(*WRITES, 404))
def end_sign_ins(_: FleetAdmin, services: Services, name: Name) -> EndedSignIns:
    """End every sign-in of an operator, your own included.

    The operator's tokens stay valid: revoke them to prevent new sign-ins.
    """
    require_holder(services.access, "operator", name)
    return EndedSignIns(name=name, ended=services.access.sign_ins.end_all(name))


LinkId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="Public id of the link.", examples=["3f9a77c1b2d4"])]


class NewLink(OperatorBody):
    """A page to share."""

    page: Annotated[str, StringConstraints(max_length=2000)] = Field(
        description="Path of an incident, an exchange, a session or a run, as in its address.",
        examples=["/projects/ops/incidents/1a2b3c4d"],
    )
    expires_in_days: Annotated[int, Field(ge=1, le=MAX_SHARED_DAYS)] = Field(SHARED_DAYS, alias="expiresInDays")


@router.post(f"{API}/shared-links", status_code=201, responses=documented(*WRITES))
def share_page(caller: Reviewer, services: Services, request: Request, body: NewLink) -> IssuedLink:
    """Create a link that opens one page, read-only, to people without an account. Its address is shown once.

    It opens an incident, an exchange, a session or a run, and no other page; it expires, by default after 7 days, can be revoked,
    and ends with the token that made it. The scope review is needed, because what is shared leaves the installation.
    """
    try:
        page = read_shared_page(body.page)
        require_project(caller, page.project)
        with durable_or_refused():
            link, code = services.access.shared_links.create(page, caller.name, request.state.token, body.expires_in_days)
    except InputError as error:
        raise ApiError(400, "invalid", f"{error}. {error.hint}") from None
    set_subject(request, page.path)
    return IssuedLink(link=link, path=f"{Links.sign_in}#{code}")


@router.get(f"{API}/shared-links", responses=documented())
def list_shared_links(caller: Reviewer, services: Services, response: Response) -> SharedLinkList:
    """List the shared links of the caller's projects, live ones first. Their codes are not stored, so they cannot be shown again."""
    response.headers["Cache-Control"] = "no-store"
    links = services.access.shared_links.listed(caller.project)
    return SharedLinkList(links=links, count=len(links))


@router.delete(f"{API}/shared-links/{{link_id}}", status_code=204, responses=documented(404, 408, 413, 415))
def revoke_shared_link(caller: Reviewer, services: Services, link_id: LinkId) -> Response:
    """Revoke a shared link: its page closes at once for everybody who has opened it."""
    with durable_or_refused():
        if not services.access.shared_links.revoke(link_id, caller.project):
            raise ApiError(404, "not_found", "there is no shared link with this id")
    return Response(status_code=204)


ExpiryDays = Annotated[
    Annotated[int, Field(ge=1, le=3650)] | None,
    Field(alias="expiresInDays", description="Days after which the token expires; null: never.", examples=[30]),
]


class NewConnection(OperatorBody):
    """A connection to add."""

    name: ConnectionName = Field(examples=["north"])
    project: ConnectionName = Field(description="Project of its records.", examples=["ops"])
    agent: Id | None = Field(None, description="Agent of all its records.", examples=["cleo"])


class NewOperator(OperatorBody):
    """An operator to add."""

    name: ConnectionName = Field(examples=["wall"])
    project: ConnectionName | None = Field(None, description="Only this project; null: every project.")
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(SCOPES))] = Field(
        ["read"], description="Scopes of the token.", examples=[["read", "review"]]
    )
    expires_in_days: ExpiryDays = None


class RotateBody(OperatorBody):
    """The time that the old token stays valid."""

    grace_hours: Annotated[float, Field(ge=0, le=8760)] | None = Field(
        None,
        alias="graceHours",
        description="Hours after which the old token expires; by default it is valid until it is revoked.",
        examples=[24],
    )
    expires_in_days: ExpiryDays = None


class RevokeBody(OperatorBody):
    """The token to revoke."""

    token: Annotated[str, StringConstraints(pattern=PREFIX)] | None = Field(
        None, description="Prefix of one token; all tokens by default.", examples=["dl_0f3a77c1b2d4"]
    )


@router.get(f"{API}/connections", responses=documented())
def connections(_: FleetAdmin, services: Services, response: Response, project: InProject = None) -> ConnectionList:
    """List the connections and the state of their tokens."""
    response.headers["Cache-Control"] = "no-store"
    connections_found = connection_list(services.access, project)
    return ConnectionList(connections=connections_found, count=len(connections_found))


@router.get(f"{API}/operators", responses=documented())
def operators(_: FleetAdmin, services: Services, response: Response, project: InProject = None) -> OperatorList:
    """List the operators, their scopes and the state of their tokens."""
    response.headers["Cache-Control"] = "no-store"
    operators_found = operator_list(services.access, project)
    return OperatorList(operators=operators_found, count=len(operators_found))


@router.post(f"{API}/connections", status_code=201, responses=documented(*WRITES, 409))
def add_connection(_: FleetAdmin, services: Services, request: Request, body: NewConnection) -> IssuedToken:
    """Add a connection; the answer shows its token once."""
    return _add_holder(services.access, request, Holder("connection", body.name, body.project, body.agent))


@router.post(f"{API}/operators", status_code=201, responses=documented(*WRITES, 409))
def add_operator(caller: FleetAdmin, services: Services, request: Request, body: NewOperator) -> IssuedToken:
    """Add an operator with at most your own scopes; the answer shows the token once."""
    scopes = frozenset(body.scopes)
    _require_scopes(caller, scopes)
    holder = Holder("operator", body.name, body.project, scopes=scopes)
    return _add_holder(services.access, request, holder, _days_to_duration(body.expires_in_days))


@router.post(f"{API}/connections/{{name}}/rotate", responses=documented(*WRITES, 404, 409))
def rotate_connection(_: FleetAdmin, services: Services, name: Name, body: RotateBody | None = None) -> IssuedToken:
    """Issue another token of a connection; the answer shows it once. 409 if two are live: revoke one first."""
    require_holder(services.access, "connection", name)
    return _rotate_token(services.access, "connection", name, body)


@router.post(f"{API}/operators/{{name}}/rotate", responses=documented(*WRITES, 404, 409))
def rotate_operator(caller: FleetAdmin, services: Services, name: Name, body: RotateBody | None = None) -> IssuedToken:
    """Issue another token of an operator with no more scopes than yours; the answer shows it once. 409 if two are live."""
    _require_scopes(caller, require_holder(services.access, "operator", name).scopes)
    return _rotate_token(services.access, "operator", name, body)


@router.post(f"{API}/connections/{{name}}/revoke", responses=documented(*WRITES, 404))
def revoke_connection(_: FleetAdmin, services: Services, name: Name, body: RevokeBody | None = None) -> RevokedTokens:
    """Revoke one token of a connection, or all of its tokens."""
    return _revoke_tokens(services.access, "connection", name, body)


@router.post(f"{API}/operators/{{name}}/revoke", responses=documented(*WRITES, 404))
def revoke_operator(_: FleetAdmin, services: Services, name: Name, body: RevokeBody | None = None) -> RevokedTokens:
    """Revoke one token of an operator, or all of the operator's tokens, your own included."""
    return _revoke_tokens(services.access, "operator", name, body)


def _add_holder(access: AccessStore, request: Request, holder: Holder, lifetime: timedelta | None = None) -> IssuedToken:
    set_subject(request, holder.name)
    if holder.kind != "guest" and access.holder(holder.kind, holder.name):
        raise ApiError(409, "conflict", "name: is taken; names are not reused")
    return IssuedToken(name=holder.name, token=_answer_token(lambda: access.add(holder, lifetime), 400))


def _rotate_token(access: AccessStore, kind: Kind, name: str, body: RotateBody | None) -> IssuedToken:
    hours = body.grace_hours if body else None
    grace = None if hours is None else timedelta(hours=hours)
    lifetime = _days_to_duration(body.expires_in_days if body else None)
    return IssuedToken(name=name, token=_answer_token(lambda: access.rotate(kind, name, grace, lifetime), 409))


def _days_to_duration(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _revoke_tokens(access: AccessStore, kind: Kind, name: str, body: RevokeBody | None) -> RevokedTokens:
    require_holder(access, kind, name)
    prefix = body.token if body else None
    if not prefix:
        return RevokedTokens(name=name, revoked=access.revoke(kind, name))
    prefixes = {token.token for holder, tokens in access.holders(kind) if holder.name == name for token in tokens}
    if prefix not in prefixes:
        raise ApiError(404, "not_found", "token: this name has no token with this prefix")
    return RevokedTokens(name=name, revoked=access.revoke(kind, prefix))


def _answer_token(issue_token: Callable[[], str], status: int) -> str:
    """Return the issued token. An InputError becomes an ApiError with this status."""
    try:
        return issue_token()
    except InputError as error:
        raise ApiError(status, "conflict" if status == 409 else "invalid", f"{error}. {error.hint}") from None


def require_holder(access: AccessStore, kind: Kind, name: str) -> Holder:
    """Return the holder of a name. Raises ApiError (404) if there is none."""
    holder = access.holder(kind, name)
    if holder is None:
        raise ApiError(404, "not_found", f"name: there is no {kind} with this name")
    return holder


def _require_scopes(caller: Holder, scopes: frozenset[str]) -> None:
    if not scopes <= caller.scopes:
        raise ApiError(403, "scope_required", "scopes: a token cannot grant scopes that it does not have")
