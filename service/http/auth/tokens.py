"""Tokens of connections and operators: listed, added, rotated, revoked by admins of every project.

A token is answered once, where it is made, and is kept nowhere. A token cannot grant what it does not have: an operator's scopes are the
caller's own or fewer, and a token with more scopes cannot be rotated into one's hands.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, StringConstraints

from schemas.errors import InputError
from service.http.answers.project_answers import Moment
from service.setup.access.access import MARK, SCOPES, AccessStore, Holder, Kind, Scope, TokenState
from service.text.paths import API
from service.web.audit_trail import name_subject
from service.web.authentication import FleetAdmin
from service.web.bodies import JsonRoute
from service.web.context import Services
from service.web.errors import ApiError, documented
from service.web.models import ConnectionName, Id, OperatorBody
from service.web.response_models import Answer

router = APIRouter(route_class=JsonRoute, tags=["access"])
WRITES = (400, 408, 413, 415)
PREFIX = f"^{MARK}_[0-9a-f]{{12}}$"
Name = Annotated[ConnectionName, Path(description="Name of the connection or operator.", examples=["north"])]
InProject = Annotated[ConnectionName | None, Query(description="Only connections of this project.")]


class TokenAnswer(Answer):
    """A token, without its secret."""

    token: str = Field(description="Its public prefix.", examples=["dl_0f3a77c1b2d4"])
    state: Literal["live", "expired", "revoked"]
    created_at: Moment
    expires_at: Moment | None = Field(description="When the token expires.")
    last_used_at: Moment | None = Field(description="When it last opened anything, to the minute; null: not yet.")


class ConnectionAnswer(Answer):
    """A connection: its token decides what its records are filed under."""

    name: str
    project: str | None
    agent: str | None = Field(description="Agent of all its records.")
    tokens: list[TokenAnswer]


class OperatorAnswer(Answer):
    """An operator."""

    name: str
    project: str | None = Field(description="Project of the token; null: every project.")
    scopes: list[Scope]
    tokens: list[TokenAnswer]


class ConnectionsAnswer(Answer):
    """Connections by name."""

    connections: list[ConnectionAnswer]
    count: int


class OperatorsAnswer(Answer):
    """Operators by name."""

    operators: list[OperatorAnswer]
    count: int


class IssuedAnswer(Answer):
    """A token that was made: this is the only time it is shown."""

    name: str
    token: str = Field(examples=["dl_0f3a77c1b2d4_cGxlYXNlLWRvLW5vdC11c2UtdGhpcy1vbmUtYXQtYWxs"])


class RevokedAnswer(Answer):
    """The number of tokens that were revoked."""

    name: str
    revoked: int


Lasts = Annotated[
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
    expires_in_days: Lasts = None


class RotateBody(OperatorBody):
    """The time that the old token stays valid."""

    grace_hours: Annotated[float, Field(ge=0, le=8760)] | None = Field(
        None,
        alias="graceHours",
        description="Hours after which the old token expires; by default it is valid until it is revoked.",
        examples=[24],
    )
    expires_in_days: Lasts = None


class RevokeBody(OperatorBody):
    """The token to revoke."""

    token: Annotated[str, StringConstraints(pattern=PREFIX)] | None = Field(
        None, description="Prefix of one token; all tokens by default.", examples=["dl_0f3a77c1b2d4"]
    )


@router.get(f"{API}/connections", responses=documented())
def connections(_: FleetAdmin, services: Services, response: Response, project: InProject = None) -> ConnectionsAnswer:
    """List the connections and the state of their tokens."""
    response.headers["Cache-Control"] = "no-store"
    found = [
        ConnectionAnswer(name=one.name, project=one.project, agent=one.agent, tokens=_states(tokens))
        for one, tokens in services.access.holders("connection")
        if project in (None, one.project)
    ]
    return ConnectionsAnswer(connections=found, count=len(found))


@router.get(f"{API}/operators", responses=documented())
def operators(_: FleetAdmin, services: Services, response: Response, project: InProject = None) -> OperatorsAnswer:
    """List the operators, their scopes and the state of their tokens."""
    response.headers["Cache-Control"] = "no-store"
    found = [
        OperatorAnswer(name=one.name, project=one.project, scopes=_listed(one.scopes), tokens=_states(tokens))
        for one, tokens in services.access.holders("operator")
        if project in (None, one.project)
    ]
    return OperatorsAnswer(operators=found, count=len(found))


@router.post(f"{API}/connections", status_code=201, responses=documented(*WRITES, 409))
def add_connection(_: FleetAdmin, services: Services, request: Request, body: NewConnection) -> IssuedAnswer:
    """Add a connection; the answer shows its token once."""
    return _added(services.access, request, Holder("connection", body.name, body.project, body.agent))


@router.post(f"{API}/operators", status_code=201, responses=documented(*WRITES, 409))
def add_operator(caller: FleetAdmin, services: Services, request: Request, body: NewOperator) -> IssuedAnswer:
    """Add an operator with scopes that you have; the answer shows the token once."""
    scopes = frozenset(body.scopes)
    _require_scopes(caller, scopes)
    if body.project is not None and "query" in scopes:
        raise ApiError(400, "invalid", "scopes: query is only for operators of every project; leave out query, or the project")
    holder = Holder("operator", body.name, body.project, scopes=scopes)
    return _added(services.access, request, holder, _days(body.expires_in_days))


@router.post(f"{API}/connections/{{name}}/rotate", responses=documented(*WRITES, 404, 409))
def rotate_connection(_: FleetAdmin, services: Services, name: Name, body: RotateBody | None = None) -> IssuedAnswer:
    """Issue another token of a connection; the answer shows it once. 409 if two are live: revoke one first."""
    require_holder(services.access, "connection", name)
    return _rotated(services.access, "connection", name, body)


@router.post(f"{API}/operators/{{name}}/rotate", responses=documented(*WRITES, 404, 409))
def rotate_operator(caller: FleetAdmin, services: Services, name: Name, body: RotateBody | None = None) -> IssuedAnswer:
    """Issue another token of an operator with no more scopes than yours; the answer shows it once. 409 if two are live."""
    _require_scopes(caller, require_holder(services.access, "operator", name).scopes)
    return _rotated(services.access, "operator", name, body)


@router.post(f"{API}/connections/{{name}}/revoke", responses=documented(*WRITES, 404))
def revoke_connection(_: FleetAdmin, services: Services, name: Name, body: RevokeBody | None = None) -> RevokedAnswer:
    """Revoke one token of a connection, or all of them, at once."""
    return _revoked(services.access, "connection", name, body)


@router.post(f"{API}/operators/{{name}}/revoke", responses=documented(*WRITES, 404))
def revoke_operator(_: FleetAdmin, services: Services, name: Name, body: RevokeBody | None = None) -> RevokedAnswer:
    """Revoke one token of an operator, or all of them, at once, your own as well."""
    return _revoked(services.access, "operator", name, body)


def _added(access: AccessStore, request: Request, holder: Holder, lasts: timedelta | None = None) -> IssuedAnswer:
    name_subject(request, holder.name)
    if access.holder(holder.kind, holder.name):
        raise ApiError(409, "conflict", "name: is taken; names are not reused")
    return IssuedAnswer(name=holder.name, token=_told(lambda: access.add(holder, lasts), 400))


def _rotated(access: AccessStore, kind: Kind, name: str, body: RotateBody | None) -> IssuedAnswer:
    hours = body.grace_hours if body else None
    grace = None if hours is None else timedelta(hours=hours)
    lasts = _days(body.expires_in_days if body else None)
    return IssuedAnswer(name=name, token=_told(lambda: access.rotate(kind, name, grace, lasts), 409))


def _days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _revoked(access: AccessStore, kind: Kind, name: str, body: RevokeBody | None) -> RevokedAnswer:
    require_holder(access, kind, name)
    which = body.token if body and body.token else name
    own = {token.prefix for one, tokens in access.holders(kind) if one.name == name for token in tokens}
    if which != name and which.removeprefix(f"{MARK}_") not in own:
        raise ApiError(404, "not_found", "token: this name has no token with this prefix")
    return RevokedAnswer(name=name, revoked=access.revoke(kind, which))


def _told(made: Callable[[], str], status: int) -> str:
    """Return what is made; a refusal of the file becomes an answer with this status."""
    try:
        return made()
    except InputError as error:
        raise ApiError(status, "conflict" if status == 409 else "invalid", f"{error}. {error.hint}") from None


def require_holder(access: AccessStore, kind: Kind, name: str) -> Holder:
    """Return the holder of a name; 404 without one."""
    holder = access.holder(kind, name)
    if holder is None:
        raise ApiError(404, "not_found", f"name: there is no {kind} with this name")
    return holder


def _require_scopes(caller: Holder, scopes: frozenset[str]) -> None:
    if not scopes <= caller.scopes:
        raise ApiError(403, "scope_required", "scopes: a token cannot grant scopes that it does not have")


def _listed(scopes: frozenset[str]) -> list[Scope]:
    return [scope for scope in SCOPES if scope in scopes]


def _states(tokens: list[TokenState]) -> list[TokenAnswer]:
    return [
        TokenAnswer(
            token=f"{MARK}_{one.prefix}",
            state=one.state,
            created_at=one.created_at,
            expires_at=one.expires_at,
            last_used_at=one.last_used_at,
        )
        for one in tokens
    ]
