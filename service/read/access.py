"""Access: connections, operators, and the outcomes of changes to them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from service.setup.access import SCOPES, AccessStore, AuditLine, Scope, SharedLink, SignIn, Token
from service.text.answers import Answer, NextCursor


class ConnectionAccess(Answer, frozen=True):
    """A connection. Its token decides the connection and project of the records it sends."""

    name: str
    project: str | None
    agent: Annotated[str | None, Meta(description="Agent of all its records.")]
    tokens: list[Token]


class OperatorAccess(Answer, frozen=True):
    """An operator."""

    name: str
    project: Annotated[str | None, Meta(description="Project of the token; null: every project.")]
    scopes: list[Scope]
    tokens: list[Token]
    grants: Annotated[
        dict[str, list[Scope]],
        Meta(description="Of a person who signs in at the identity provider: the scopes by project; *: every project."),
    ] = field(default_factory=dict)


class ConnectionList(Answer, frozen=True):
    """Connections by name."""

    connections: list[ConnectionAccess]
    count: int


class OperatorList(Answer, frozen=True):
    """Operators by name."""

    operators: list[OperatorAccess]
    count: int


class IssuedToken(Answer, frozen=True):
    """A new token. It is shown only this once."""

    name: str
    token: Annotated[str, Meta(examples=["dl_0f3a77c1b2d4_cGxlYXNlLWRvLW5vdC11c2UtdGhpcy1vbmUtYXQtYWxs"])]


class SharedLinkList(Answer, frozen=True):
    """Shared links, live ones first."""

    links: list[SharedLink]
    count: int


class IssuedLink(Answer, frozen=True):
    """A new shared link. Its address is shown only this once."""

    link: SharedLink
    path: Annotated[
        str, Meta(description="The address on this server. The code in the fragment is sent in no request for a page.")
    ]


class RevokedTokens(Answer, frozen=True):
    """The number of revoked tokens."""

    name: str
    revoked: int


class SignInList(Answer, frozen=True):
    """Active sign-ins, newest first."""

    sign_ins: list[SignIn]
    count: int


class EndedSignIns(Answer, frozen=True):
    """The number of ended sign-ins."""

    name: str
    ended: int


class AuditLines(Answer, frozen=True):
    """Changes, newest first."""

    lines: list[AuditLine]
    count: int
    next_cursor: NextCursor


def connections(access: AccessStore, project: str | None = None) -> list[ConnectionAccess]:
    """Return the connections of one project or all, by name."""
    return [
        ConnectionAccess(name=holder.name, project=holder.project, agent=holder.agent, tokens=tokens)
        for holder, tokens in access.holders("connection")
        if project in (None, holder.project)
    ]


def operators(access: AccessStore, project: str | None = None) -> list[OperatorAccess]:
    """Return the operators of one project or all, by name."""
    return [
        OperatorAccess(
            name=holder.name,
            project=holder.project,
            scopes=[scope for scope in SCOPES if scope in holder.scopes],
            tokens=tokens,
            grants={name or "*": [scope for scope in SCOPES if scope in scopes] for name, scopes in holder.grants.items()},
        )
        for holder, tokens in access.holders("operator")
        if project is None or project in (holder.grants or [holder.project])
    ]
