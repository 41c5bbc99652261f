"""The inbox: the incidents of all projects visible to the viewer, filtered and ordered by the address, and the actions of its forms."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from audit.redaction import Redactor
from schemas.errors import InputError
from service.pages.incidents import USUAL, since_of
from service.pages.periods import range_control
from service.pages.rendering import page
from service.pages.viewing import Fields, Form, Viewer
from service.read.incidents import (
    ANY,
    FIELDS,
    MAX_TEXT,
    ME,
    NOBODY,
    SEVERITIES,
    TYPES,
    AddressParams,
    choices,
    filter_of,
    inbox,
    people_of,
    query_of,
    read_address,
    read_query,
)
from service.setup.access import MAX_VIEW_NAME, Holder
from service.text.answers import Place, encode_place, page_of
from service.text.links import INBOX_PAGE, INBOX_VIEWS_PAGE, Links
from service.text.window import bounds, listed_window, range_of
from service.web.authentication import require_project
from service.web.bounds import MAX_SELECTED
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError
from service.web.incident_changes import Outcome, change_selected, deleted_view, name_selected, saved_view, views_of
from service.web.models import Cursor
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.lifecycle import ACKNOWLEDGED, DISMISSED, NEW_NORMAL, OPEN, RESOLVED, STATUSES
from streams.watch.watching import Change, Person

router = APIRouter(include_in_schema=False)
PAGE = 50
"""Incidents per page."""
MOST_CHOICES = 500
"""Maximum number of names suggested for a field."""
HEADINGS = (
    ("Incident", "worst", None),
    ("Project", "project", None),
    ("State", "state", None),
    ("Assignee", "assignee", None),
    ("Since", "since", None),
    ("Detected", "newest", "oldest"),
)
"""The columns with the order that a click selects, and the order that a second click selects."""
ORDERS = {
    "worst": "worst first",
    "newest": "newest first",
    "oldest": "oldest first",
    "since": "latest change first",
    "project": "by project",
    "state": "by state",
    "assignee": "by assignee",
}
"""The names of the orders."""
USUAL_VIEWS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Open", {}),
    ("Mine", {"assignee": ME}),
    ("Without an assignee", {"assignee": NOBODY}),
    ("Confirmed", {"confirmed": "true"}),
    ("Newest", {"sort": "newest"}),
    ("All", {"status": ANY}),
)
"""Built-in views: names and filters."""


class Heading(NamedTuple):
    """A heading of the list: its words, its link, and whether the list is ordered by it."""

    words: str
    address: str
    order: str | None
    """ascending or descending, for assistive technology; None if the list is ordered by another column."""


@router.get(INBOX_PAGE)
async def show_inbox(request: Request, viewer: Viewer, services: Services, cursor: Cursor = None) -> HTMLResponse:
    """Show the incidents that match, worst first or in another order."""
    view = asked_of(request, viewer)
    return page(request, "inbox.html", await inbox_values(request, services, viewer, view, cursor), forms=True)


def asked_of(request: Request, viewer: Holder) -> AddressParams:
    """Return the request in an address; ApiError 400 names a wrong field, 403 for a project that the viewer may not see."""
    try:
        fields = read_address(request.query_params.multi_items())
    except InputError as error:
        raise ApiError(400, "invalid", str(error)) from None
    for project in fields.get("project", ()):
        require_project(viewer, project)
    return fields


async def inbox_values(
    request: Request, services: ApiContext, viewer: Holder, view: AddressParams, cursor: Place | None
) -> dict[str, Any]:
    """Return the values of the page; its period is the time in which incidents were found."""
    now = services.engine.now()
    window = listed_window(range_of({name: values[0] for name, values in view.items()}), now)
    since, until = bounds(window)
    wanted = dataclasses.replace(filter_of(view, viewer.project, viewer.name), since=since, until=until)
    listed_page, possible = await asyncio.gather(
        services.ask(lambda reading: inbox(reading, wanted, cursor, PAGE + 1, outlined=True)),
        services.ask(lambda reading: choices(reading, viewer.project)),
    )
    shown, following = page_of(listed_page.listed, PAGE, lambda one: one.place)
    saved = views_of(services, viewer)
    people = people_of(services.access, viewer.project)
    return {
        "incidents": [(one.incident, since_of(one.incident)) for one in shown],
        "total": listed_page.total,
        "following": following,
        "is_first": cursor is None,
        "asked": view,
        "given": {name: ",".join(view.get(name, ())) for name in FIELDS},
        "is_narrowed": any(name != "sort" for name in view),
        "range": range_control(request, window, now, has_all=True, has_comparison=False),
        "all_time": {name: values for name, values in view.items() if name not in {"window", "until"}},
        "order": ORDERS[wanted.sort],
        "is_worst_first": wanted.sort == "worst",
        "headings": _build_headings(view, wanted.sort),
        "views": [(name, Links().inbox(**fields), _is_view(view, fields)) for name, fields in USUAL_VIEWS],
        "saved": [(one, Links().inbox(**read_query(one.query)), read_query(one.query) == view) for one in saved],
        "query": query_of(view),
        "max_view_name": MAX_VIEW_NAME,
        "statuses": STATUSES,
        "types": TYPES,
        "severities": SEVERITIES,
        "projects": _suggest_people(possible.projects),
        "agents": _suggest_people(possible.agents),
        "people": sorted({*people, *_suggest_people(possible.assignees)} - {viewer.name})[:MOST_CHOICES],
        "max_text": MAX_TEXT,
        "max_comment": MAX_COMMENT,
        "may_review": "review" in viewer.scopes,
        "here": Links().inbox(**view, cursor=None if cursor is None else encode_place(cursor)),
        "usual": USUAL[True],
        "result": None,
        "own_project": viewer.project,
    }


def _suggest_people(counts: Mapping[str, int]) -> list[str]:
    """Return the values with the most undecided incidents, sorted by name."""
    return sorted(sorted(counts, key=lambda value: (-counts[value], value))[:MOST_CHOICES])


def _build_headings(view: AddressParams, sort: str) -> list[Heading]:
    return [_build_heading(view, sort, *one) for one in HEADINGS]


def _build_heading(view: AddressParams, sort: str, label: str, order: str, reverse: str | None) -> Heading:
    wanted = reverse if sort == order and reverse else order
    address = Links().inbox(**{**view, "sort": [wanted] if wanted != "worst" else None})
    is_ascending = sort == reverse or order in {"project", "assignee"}
    return Heading(label, address, ("ascending" if is_ascending else "descending") if sort in {order, reverse} else None)


def _is_view(view: AddressParams, fields: Mapping[str, str | Sequence[str]]) -> bool:
    """Return whether the address is a view's."""
    lists = {name: [value] if isinstance(value, str) else list(value) for name, value in fields.items()}
    return dict(view) == lists


ASSIGN, COMMENT = "assign", "comment"
DONE: Mapping[str, str] = {
    ACKNOWLEDGED: "acknowledged",
    RESOLVED: "resolved",
    NEW_NORMAL: "resolved as the new normal",
    DISMISSED: "dismissed",
    OPEN: "open again",
    ASSIGN: "assigned",
    COMMENT: "commented on",
}
"""The actions of the form, and the resulting states of an incident, as shown on the page."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a form: its effect, or the reason why it had none, and the values that stay filled in."""

    problem: str | None
    action: str = ""
    outcomes: Sequence[Outcome] = ()
    reason: str = ""
    selected: frozenset[str] = frozenset()
    """The incidents that were not changed, which stay selected."""

    @property
    def done(self) -> list[Outcome]:
        """The changed incidents."""
        return [one for one in self.outcomes if one.error is None]

    @property
    def failed(self) -> list[Outcome]:
        """The outcomes of unchanged incidents."""
        return [one for one in self.outcomes if one.error is not None]

    @property
    def words(self) -> str:
        """Describe the changed incidents."""
        return DONE.get(self.action, self.action)


@router.post(INBOX_PAGE)
async def change_selected_incidents(
    request: Request, *, viewer: Viewer, services: Services, form: Form, cursor: Cursor = None
) -> HTMLResponse:
    """Change the selected incidents, and show the list again with the outcome."""
    if "review" not in viewer.scopes:
        raise ApiError(403, "scope_required", "the token lacks the scope review")
    view = asked_of(request, viewer)
    with durable_or_refused():
        result = await _apply_change(request, services, viewer, form)
    values = await inbox_values(request, services, viewer, view, cursor)
    return page(request, "inbox.html", {**values, "result": result}, 200 if result.problem is None else 400, forms=True)


@router.post(INBOX_VIEWS_PAGE)
def change_views(viewer: Viewer, services: Services, form: Form) -> RedirectResponse:
    """Save the filters of the list as a view, or delete a view; redirect to the same list."""
    query, name = (form.get(field, [""])[0] for field in ("query", "name"))
    try:
        if "delete" in form:
            deleted_view(services, viewer, form["delete"][0])
        else:
            query = saved_view(services, viewer, name, query, is_shared="shared" in form).query
        address = Links().inbox(**read_query(query))
    except InputError as error:
        raise ApiError(400, "invalid", str(error)) from None
    return RedirectResponse(address, HTTPStatus.SEE_OTHER)


async def _apply_change(request: Request, services: Services, viewer: Holder, form: Fields) -> Result:
    chosen = form.get("incident", [])
    reason = form.get("comment", [""])[0].strip()
    action = form.get("do", [""])[0]
    kept = Result(None, action, (), reason, frozenset(chosen))
    if (problem := _describe_problem(chosen, reason, action, form)) is not None:
        return Result(problem, action, (), reason, kept.selected)
    places = [(project, identity) for project, _, identity in (one.partition("/") for one in chosen)]
    name_selected(request, places)
    wanted = _read_change(action, reason, form, viewer, services.engine.redactor)
    outcomes = await change_selected(services, viewer, places, wanted, Person(viewer.name))
    failed = frozenset(f"{one.project}/{one.incident_id}" for one in outcomes if one.error is not None)
    return Result(None, action, outcomes, reason if failed else "", failed)


def _describe_problem(chosen: Sequence[str], reason: str, action: str, form: Fields) -> str | None:
    """Return the reason why the form cannot be applied to any incident; None if it can."""
    assignee = form.get("assignee", [""])[0]
    faults = {
        "Select at least one incident.": not chosen,
        f"Select at most {MAX_SELECTED} incidents.": len(chosen) > MAX_SELECTED,
        "Choose what to do with them.": action not in DONE,
        "Give the reason in a few words.": action != ASSIGN and not reason,
        f"The reason has {len(reason)} characters; at most {MAX_COMMENT} are taken.": len(reason) > MAX_COMMENT,
        "Choose a person.": action == ASSIGN and not assignee,
    }
    return next((words for words, is_so in faults.items() if is_so), None)


def _read_change(action: str, reason: str, form: Fields, viewer: Holder, redactor: Redactor) -> Change:
    comment = redactor.redact(reason)[0] if reason else None
    if action == ASSIGN:
        assignee = form["assignee"][0]
        return Change(assigns=True, assignee={ME: viewer.name, NOBODY: None}.get(assignee, assignee), comment=comment)
    return Change(decision=None if action == COMMENT else action, comment=comment)
