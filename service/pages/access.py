"""Pages of access: people and connections, the form that gives access, a person's tokens and sign-ins, and the audit log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from http import HTTPStatus
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from service.pages.administration import Administrator
from service.pages.rendering import page
from service.read.known_projects import known_projects, named_projects
from service.setup.access import MAX_LIVE_TOKENS, SCOPES, AuditLine, Holder, Kind, Scope, Token
from service.text.answers import Place, page_of
from service.text.links import Links
from service.text.window import read_day
from service.text.words import WORDS
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import ConnectionName, Cursor

router = APIRouter(include_in_schema=False)
EXPIRIES = ((365, "In a year"), (90, "In 90 days"), (30, "In 30 days"), (7, "In a week"), (None, "Never"))
"""Lifetimes of a token in days, with labels. The first one is preselected."""
MAX_PERSON_LINES = 10
"""Audit log lines on a person's page."""
Name = Annotated[ConnectionName, Path()]


@dataclass(frozen=True, slots=True)
class HolderTokens:
    """A holder with its tokens, newest first."""

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
        """The scopes, or the name of the role that has exactly these scopes; of a person of several projects, one for each."""
        return role_of(self.holder)

    @property
    def projects(self) -> str:
        """The projects of an operator."""
        return ", ".join(project or "all projects" for project in self.holder.grants or [self.holder.project])


@router.get("/admin/access")
async def people(request: Request, _: Administrator, services: Services) -> HTMLResponse:
    """Show who has access, who is signed in, who reviews, and the connections."""
    signed_in = Counter(sign_in.name for sign_in in services.access.sign_ins.active())
    reviewers = await services.ask(lambda cursor: query_rows(cursor, "reviewers"))
    operators = _list_holders(services, "operator", signed_in)
    values = {
        "people": sorted(operators, key=lambda entry: not entry.live),
        "connections": _list_holders(services, "connection", signed_in),
        "reviewers": reviewers,
        "shared_links": services.access.shared_links.listed(),
    }
    return page(request, "admin/people.html", values)


@router.get("/admin/access/new")
async def give(request: Request, viewer: Administrator, services: Services) -> HTMLResponse:
    """Show the form that gives access. Viewers can grant only rights that they have."""
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
    entry = _require_holder(services, "operator", name)
    values = {
        "one": entry,
        "sign_ins": [one for one in services.access.sign_ins.active() if one.name == name],
        "deeds": [
            build_entry(line, services.access.holder) for line in services.access.audit_log.lines(MAX_PERSON_LINES, name=name)
        ],
        "may_rotate": entry.holder.scopes <= viewer.scopes,
        "is_full": len(entry.live) >= MAX_LIVE_TOKENS,
        "expiries": EXPIRIES,
    }
    return page(request, "admin/person.html", values)


@router.get("/admin/access/connections/{name}")
async def connection(request: Request, _: Administrator, services: Services, name: Name) -> HTMLResponse:
    """Show a connection and its tokens."""
    entry = _require_holder(services, "connection", name)
    values = {"one": entry, "is_full": len(entry.live) >= MAX_LIVE_TOKENS, "expiries": EXPIRIES}
    return page(request, "admin/connection.html", values)


def _list_holders(services: ApiContext, kind: Kind, signed_in: Counter[str]) -> list[HolderTokens]:
    return [
        HolderTokens(holder, tuple(reversed(tokens)), signed_in[holder.name] if kind == "operator" else 0)
        for holder, tokens in services.access.holders(kind)
    ]


def _require_holder(services: ApiContext, kind: Kind, name: str) -> HolderTokens:
    matching: Sequence[HolderTokens] = [
        entry for entry in _list_holders(services, kind, Counter()) if entry.holder.name == name
    ]
    if not matching:
        raise ApiError(404, "not_found", f"There is no {kind} {name}.")
    return matching[0]


LINES_PER_PAGE = 100


@router.get("/admin/audit-log")
async def audit_log(
    *,
    request: Request,
    _: Administrator,
    services: Services,
    name: ConnectionName | None = None,
    project: ConnectionName | None = None,
    show: Literal["changes", "sign-ins", "all"] = "changes",
    since: str = "",
    day: str = "",
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the audit log, optionally only of one operator or one project, or from and up to a day (UTC)."""
    before = None if cursor is None else cursor.number
    first_day, last_day = _parse_day("since", since), _parse_day("day", day)
    lines = await asyncio.to_thread(
        services.access.audit_log.lines,
        LINES_PER_PAGE + 1,
        before,
        name=name,
        project=project,
        since=None if first_day is None else datetime.combine(first_day, time(), UTC),
        until=None if last_day is None else datetime.combine(last_day + timedelta(days=1), time(), UTC),
        signing={"changes": False, "sign-ins": True, "all": None}[show],
    )
    shown, following = page_of(lines, LINES_PER_PAGE, lambda line: Place(line.at, "", line.id))
    values = {
        "deeds": [build_entry(line, services.access.holder) for line in shown],
        "name": name,
        "project": project,
        "show": show,
        "kinds": (("changes", "Changes"), ("sign-ins", "Sign-ins"), ("all", "All")),
        "since": first_day,
        "day": last_day,
        "paged": cursor is not None,
        "following": following
        and Links().audit_log(name=name, project=project, show=show, since=since or None, day=day or None, cursor=following),
    }
    return page(request, "admin/audit_log.html", values)


def _parse_day(name: str, text: str) -> date | None:
    """Parse a day of the filter; None if it is empty. Raises ApiError (400) if it is no day."""
    try:
        return read_day(text or None)
    except ValueError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, "bad_request", f"{name}: {error}") from None


HolderFinder = Callable[[Kind, str], Holder | None]
"""Returns the holder with a name. The rights of a holder never change."""


class AuditEntry(NamedTuple):
    """A line of the audit log, its description, and its endpoint or command."""

    line: AuditLine
    words: str
    path: str


def build_entry(line: AuditLine, find_holder: HolderFinder) -> AuditEntry:
    """Describe a line of the audit log. An action without a description is named by its endpoint or command."""
    path = f"{line.method} {line.route}"
    template = WORDS["deeds"].get(path)
    if template is None:
        return AuditEntry(line, path, path)
    subject = line.subject or "something unnamed"
    description = template.replace("{project}", line.project or "every project").replace(
        "{grant}", _describe_grant(line, find_holder)
    )
    description = description.replace("{subject}", subject)
    return AuditEntry(line, description if line.outcome == "done" else _describe_attempt(description), path)


def _describe_attempt(description: str) -> str:
    """Describe a refused, failed or unfinished action as an attempt."""
    verb, _, rest = description.partition(" ")
    return " ".join(filter(None, ("Tried to", WORDS["verbs"].get(verb, verb.lower()), rest)))


def _describe_grant(line: AuditLine, find_holder: HolderFinder) -> str:
    """Describe the rights of a new operator or connection; empty if there is no holder with that name."""
    kind: Kind = "connection" if "connections" in line.route else "operator"
    holder = find_holder(kind, line.subject) if line.subject and line.outcome == "done" else None
    if holder is None:
        return ""
    if kind == "connection":
        return f" of {holder.project}"
    return f": {role_of(holder)} on {holder.project or 'every project'}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A role in the form that gives access."""

    name: str
    words: str
    scopes: tuple[Scope, ...]
    may: str
    """The rights in words that follow "may"; `{where}` is a project, or every project."""


CHOICES = (
    Choice("Read", "View all pages; no changes.", ("read",), "read {where}"),
    Choice(
        "Review", "Read, score exchanges, and decide on incidents.", ("read", "review"), "read, review and decide in {where}"
    ),
    Choice("Query", "View all pages and run SQL; no scoring.", ("read", "query"), "read {where} and run SQL on it"),
    Choice("Admin", "Everything, including administration.", SCOPES, "do everything in {where}"),
)


def role_of(holder: Holder) -> str:
    """Return the name of the role with an operator's scopes, or the list of scopes if there is no such role."""
    if len(holder.grants) > 1:
        roles = (replace(holder, scopes=scopes, grants={}) for scopes in holder.grants.values())
        return "; ".join(
            f"{role_of(role)} in {project or 'all projects'}" for project, role in zip(holder.grants, roles, strict=True)
        )
    held = [scope for scope in SCOPES if scope in holder.scopes]
    return next((choice.name for choice in CHOICES if set(choice.scopes) == holder.scopes), ", ".join(held))
