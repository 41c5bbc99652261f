"""Access as pages: the list of holders, the form that gives access, and one person's tokens and sign-ins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from service.pages.admin.deeds import deed_of
from service.pages.admin.roles import CHOICES, role_of
from service.pages.admin.viewing import Administrator
from service.pages.rendering import page
from service.read.known_projects import known_projects, named_projects
from service.setup.access.access import MAX_LIVE, Holder, Kind, Token
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import ConnectionName

router = APIRouter(include_in_schema=False)
EXPIRIES = ((365, "In a year"), (90, "In 90 days"), (30, "In 30 days"), (7, "In a week"), (None, "Never"))
"""Days after which a token expires, and how the page says so; the first is chosen."""
SHOWN_LINES = 10
"""Lines of the audit log on a person's page."""
Name = Annotated[ConnectionName, Path()]


@dataclass(frozen=True, slots=True)
class Shown:
    """A holder of tokens for a page, with the newest token first."""

    holder: Holder
    tokens: tuple[Token, ...]
    sign_ins: int = 0

    @property
    def live(self) -> tuple[Token, ...]:
        """The live tokens."""
        return tuple(token for token in self.tokens if token.state == "live")

    @property
    def last_used_at(self) -> datetime | None:
        """The last use of any of the tokens."""
        return max((token.last_used_at for token in self.tokens if token.last_used_at), default=None)

    @property
    def words(self) -> str:
        """The scopes, or the name of the role that has exactly these scopes."""
        return role_of(self.holder)


@router.get("/admin/access")
async def people(request: Request, _: Administrator, services: Services) -> HTMLResponse:
    """Show who has access, who is signed in, who reviews, and the connections."""
    signed_in = Counter(one.name for one in services.access.sign_ins.going_on())
    reviewers = await services.ask(lambda cursor: query_rows(cursor, "reviewers"))
    operators = _shown(services, "operator", signed_in)
    values = {
        "people": sorted(operators, key=lambda one: not one.live),
        "connections": _shown(services, "connection", signed_in),
        "reviewers": reviewers,
    }
    return page(request, "admin/people.html", values)


@router.get("/admin/access/new")
async def give(request: Request, viewer: Administrator, services: Services) -> HTMLResponse:
    """Show the form that gives access, within what the viewer has."""
    named = named_projects(services.engine.policy, services.access)
    values = {
        "choices": [choice for choice in CHOICES if set(choice.scopes) <= viewer.scopes],
        "projects": await services.ask(lambda cursor: known_projects(cursor, named)),
        "expiries": EXPIRIES,
    }
    return page(request, "admin/give.html", values)


@router.get("/admin/access/people/{name}")
async def person(request: Request, viewer: Administrator, services: Services, name: Name) -> HTMLResponse:
    """Show an operator: its tokens, sign-ins and last changes."""
    found = _one(services, "operator", name)
    values = {
        "one": found,
        "sign_ins": [one for one in services.access.sign_ins.going_on() if one.name == name],
        "deeds": [deed_of(line, services.access.holder) for line in services.access.audit_log.lines(SHOWN_LINES, name=name)],
        "may_rotate": found.holder.scopes <= viewer.scopes,
        "is_full": len(found.live) >= MAX_LIVE,
        "expiries": EXPIRIES,
    }
    return page(request, "admin/person.html", values)


@router.get("/admin/access/connections/{name}")
async def connection(request: Request, _: Administrator, services: Services, name: Name) -> HTMLResponse:
    """Show a connection and its tokens."""
    found = _one(services, "connection", name)
    values = {"one": found, "is_full": len(found.live) >= MAX_LIVE, "expiries": EXPIRIES}
    return page(request, "admin/connection.html", values)


def _shown(services: ApiContext, kind: Kind, signed_in: Counter[str]) -> list[Shown]:
    return [
        Shown(holder, tuple(reversed(tokens)), signed_in[holder.name] if kind == "operator" else 0)
        for holder, tokens in services.access.holders(kind)
    ]


def _one(services: ApiContext, kind: Kind, name: str) -> Shown:
    found: Sequence[Shown] = [one for one in _shown(services, kind, Counter()) if one.holder.name == name]
    if not found:
        raise ApiError(404, "not_found", f"There is no {kind} {name}.")
    return found[0]
