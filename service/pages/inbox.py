"""The inbox: the incidents of all projects that the viewer may see, with the forms that change them and that save views."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from itertools import groupby
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from audit.policy import Policy
from schemas.errors import InputError
from schemas.records import Incident
from service.pages.incidents import COMMON_REASONS, SNOOZES, find_first_day
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
    ListedIncident,
    choices,
    filter_of,
    inbox,
    name_alike,
    people_of,
    query_of,
    read_address,
    read_query,
    read_snooze_end,
)
from service.setup.access import MAX_VIEW_NAME, Holder
from service.text.answers import Place, encode_place, page_of
from service.text.links import INBOX_PAGE, INBOX_VIEWS_PAGE, Links
from service.text.window import NAMES, bounds, listed_window, range_of
from service.web.authentication import require_project
from service.web.bounds import MAX_SELECTED
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError
from service.web.incident_changes import Outcome, change_selected, name_selected, remove_view, store_view, views_of
from service.web.models import Cursor
from streams.upkeep.annotations import MAX_COMMENT
from streams.watch.lifecycle import ACKNOWLEDGED, DISMISSED, NEW_NORMAL, OPEN, RESOLVED, STATUSES, describe_snooze
from streams.watch.watching import Change, Person

router = APIRouter(include_in_schema=False)
INCIDENTS_PER_PAGE = 50
MAX_SUGGESTIONS = 500
"""Names suggested for a field."""
HEADINGS = (
    ("Incident", "worst", None),
    ("Project", "project", None),
    ("State", "state", None),
    ("Assignee", "assignee", None),
    ("Since", "since", None),
    ("Detected", "newest", "oldest"),
)
"""Columns, each with the order that a click selects and the order that a second click selects."""
ORDERS = {
    "worst": "worst first",
    "newest": "newest first",
    "oldest": "oldest first",
    "since": "latest change first",
    "project": "by project",
    "state": "by state",
    "assignee": "by assignee",
}
"""Orders in words."""
BUILT_IN_VIEWS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Open", {}),
    ("Mine", {"assignee": ME}),
    ("Unassigned", {"assignee": NOBODY}),
    ("Confirmed", {"confirmed": "true"}),
    ("Newest", {"sort": "newest"}),
    ("Snoozed", {"snoozed": "true"}),
    ("All", {"status": ANY}),
)
"""Names and filters of the views that every viewer has."""


class Heading(NamedTuple):
    """A column heading that sorts the list."""

    label: str
    address: str
    order: str | None
    """The value of `aria-sort`, ascending or descending; None if the list is sorted by another column."""


class Family(NamedTuple):
    """Incidents of one change in several projects or agents, or a single incident."""

    change: str
    name: str
    size: int
    """The number of matching incidents of the change, which may be more than those listed."""
    projects: int
    incidents: Sequence[tuple[Incident, str | None, str]]
    """The incidents, each with its first day, and its maintenance and snooze in words."""


@router.get(INBOX_PAGE)
async def show_inbox(request: Request, viewer: Viewer, services: Services, cursor: Cursor = None) -> HTMLResponse:
    """Show the incidents that match the filters in the address."""
    view = _parse_view(request, viewer)
    return page(request, "inbox.html", await _build_values(request, services, viewer, view, cursor), forms=True)


def _parse_view(request: Request, viewer: Holder) -> AddressParams:
    """Return the filters and order in the address.

    Raises ApiError 400 for an invalid field, and 403 for a project that the viewer may not see.
    """
    try:
        fields = read_address(request.query_params.multi_items())
    except InputError as error:
        raise ApiError(400, "invalid", str(error)) from None
    for project in fields.get("project", ()):
        require_project(viewer, project)
    return fields


async def _build_values(
    request: Request, services: ApiContext, viewer: Holder, view: AddressParams, cursor: Place | None
) -> dict[str, Any]:
    """Return the values of the template. The period of the page limits when incidents were detected."""
    now = services.engine.now()
    window = listed_window(range_of({name: values[0] for name, values in view.items()}), now)
    since, until = bounds(window)
    filters = dataclasses.replace(filter_of(view, viewer.project, viewer.name), since=since, until=until)
    grouped = "group" not in view and filters.change is None
    read_page = partial(
        inbox, filters=filters, after=cursor, limit=INCIDENTS_PER_PAGE + 1, now=now, outlined=True, grouped=grouped
    )
    matches, suggestions = await asyncio.gather(
        services.ask(read_page),
        services.ask(lambda connection: choices(connection, viewer.project)),
    )
    families = [
        list(group)
        for _, group in groupby(matches.listed, lambda entry: entry.change if grouped else entry.incident.incident_id)
    ]
    shown, following = page_of(families, INCIDENTS_PER_PAGE, lambda family: family[0].place)
    saved_views = views_of(services, viewer)
    people = people_of(services.access, viewer.project)
    return {
        "families": [_build_family(family, now, services.engine.policy) for family in shown],
        "incident_count": sum(map(len, shown)),
        "grouping": None if filters.change else Links().inbox(**{**view, "group": ["off"] if grouped else []}),
        "grouped": grouped,
        "without_change": {name: values for name, values in view.items() if name != "change"},
        "total": matches.total,
        "following": following,
        "is_first": cursor is None,
        "filters": view,
        "field_values": {name: ",".join(view.get(name, ())) for name in FIELDS},
        "is_filtered": any(name not in {"sort", "group"} for name in view),
        "range": range_control(request, window, now, has_all=True, has_comparison=False),
        "all_time": {name: values for name, values in view.items() if name not in NAMES},
        "order": ORDERS[filters.sort],
        "is_worst_first": filters.sort == "worst",
        "headings": _build_headings(view, filters.sort),
        "views": [(name, Links().inbox(**fields), _is_view(view, fields)) for name, fields in BUILT_IN_VIEWS],
        "saved": [(saved, Links().inbox(**read_query(saved.query)), read_query(saved.query) == view) for saved in saved_views],
        "query": query_of(view),
        "max_view_name": MAX_VIEW_NAME,
        "statuses": STATUSES,
        "types": TYPES,
        "severities": SEVERITIES,
        "projects": _list_suggestions(suggestions.projects),
        "agents": _list_suggestions(suggestions.agents),
        "people": sorted({*people, *_list_suggestions(suggestions.assignees)} - {viewer.name})[:MAX_SUGGESTIONS],
        "max_text": MAX_TEXT,
        "max_comment": MAX_COMMENT,
        "may_review": "review" in viewer.scopes,
        "address": Links().inbox(**view, cursor=None if cursor is None else encode_place(cursor)),
        "common_reasons": COMMON_REASONS[True],
        "snoozes": SNOOZES,
        "result": None,
        "own_project": viewer.project,
    }


def _build_family(family: Sequence[ListedIncident], now: datetime, policy: Policy) -> Family:
    """Return the values about incidents of one change."""
    incidents = [entry.incident for entry in family]
    return Family(
        family[0].change,
        name_alike(incidents[0].title),
        family[0].alike if len(family) > 1 else 1,
        len({incident.project for incident in incidents}),
        [(incident, find_first_day(incident), _describe_circumstances(incident, now, policy)) for incident in incidents],
    )


def _describe_circumstances(incident: Incident, now: datetime, policy: Policy) -> str:
    """Return the maintenance in which an incident was found, and its snooze, in words; empty without either."""
    window = policy.maintenance_at(incident.project, incident.detected_at)
    maintenance = "" if window is None else f"Found during maintenance: {window.reason}. "
    return f"{maintenance}{describe_snooze(incident, now)}".strip()


def _list_suggestions(counts: Mapping[str, int]) -> list[str]:
    """Return the names with the most undecided incidents, in alphabetical order."""
    most_frequent = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_SUGGESTIONS]
    return sorted(most_frequent)


def _build_headings(view: AddressParams, sort: str) -> list[Heading]:
    return [_build_heading(view, sort, label, order, reverse) for label, order, reverse in HEADINGS]


def _build_heading(view: AddressParams, sort: str, label: str, order: str, reverse: str | None) -> Heading:
    next_sort = reverse if sort == order and reverse else order
    address = Links().inbox(**{**view, "sort": [next_sort] if next_sort != "worst" else None})
    if sort not in {order, reverse}:
        return Heading(label, address, None)
    is_ascending = sort == reverse or order in {"project", "assignee"}
    return Heading(label, address, "ascending" if is_ascending else "descending")


def _is_view(view: AddressParams, fields: Mapping[str, str | Sequence[str]]) -> bool:
    """Return whether the address has exactly the filters of a view."""
    lists = {name: [value] if isinstance(value, str) else list(value) for name, value in fields.items()}
    return dict(view) == lists


ASSIGN, COMMENT, SNOOZE = "assign", "comment", "snooze"
OUTCOMES: Mapping[str, str] = {
    ACKNOWLEDGED: "acknowledged",
    RESOLVED: "resolved",
    NEW_NORMAL: "resolved as the new normal",
    DISMISSED: "dismissed",
    OPEN: "open again",
    ASSIGN: "assigned",
    COMMENT: "commented on",
    SNOOZE: "snoozed",
}
"""The actions of the form, and their outcomes in words."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a form: its effect or the problem with it, and the values that stay filled in."""

    problem: str | None
    action: str = ""
    outcomes: Sequence[Outcome] = ()
    reason: str = ""
    selected: frozenset[str] = frozenset()
    """The incidents that were not changed, which stay selected."""

    @property
    def changed(self) -> list[Outcome]:
        """The outcomes of incidents that were changed."""
        return [outcome for outcome in self.outcomes if outcome.error is None]

    @property
    def failed(self) -> list[Outcome]:
        """The outcomes of incidents that could not be changed."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def description(self) -> str:
        """What happened to the changed incidents."""
        return OUTCOMES.get(self.action, self.action)


@router.post(INBOX_PAGE)
async def change_selected_incidents(
    request: Request, *, viewer: Viewer, services: Services, form: Form, cursor: Cursor = None
) -> HTMLResponse:
    """Change the selected incidents, and show the list with the outcome."""
    if "review" not in viewer.scopes:
        raise ApiError(403, "scope_required", "the token lacks the scope review")
    view = _parse_view(request, viewer)
    with durable_or_refused():
        result = await _apply_change(request, services, viewer, form)
    values = await _build_values(request, services, viewer, view, cursor)
    return page(request, "inbox.html", {**values, "result": result}, 200 if result.problem is None else 400, forms=True)


@router.post(INBOX_VIEWS_PAGE)
def change_views(viewer: Viewer, services: Services, form: Form) -> RedirectResponse:
    """Save the filters of the list as a view, or delete a view, and redirect to the list."""
    query = form.get("query", [""])[0]
    name = form.get("name", [""])[0]
    try:
        if "delete" in form:
            remove_view(services, viewer, form["delete"][0])
        else:
            query = store_view(services, viewer, name, query, is_shared="shared" in form).query
        address = Links().inbox(**read_query(query))
    except InputError as error:
        raise ApiError(400, "invalid", str(error)) from None
    return RedirectResponse(address, HTTPStatus.SEE_OTHER)


async def _apply_change(request: Request, services: Services, viewer: Holder, form: Fields) -> Result:
    selected = form.get("incident", [])
    reason = form.get("comment", [""])[0].strip()
    action = form.get("do", [""])[0]
    problem = _find_problem(selected, reason, action, form)
    if problem is not None:
        return Result(problem, action, (), reason, frozenset(selected))
    incidents = []
    for value in selected:
        project, _, incident_id = value.partition("/")
        incidents.append((project, incident_id))
    name_selected(request, incidents)
    change = _build_change(action, reason, form, viewer, services)
    outcomes = await change_selected(services, viewer, incidents, change, Person(viewer.name))
    failed = frozenset(f"{outcome.project}/{outcome.incident_id}" for outcome in outcomes if outcome.error is not None)
    return Result(None, action, outcomes, reason if failed else "", failed)


def _find_problem(selected: Sequence[str], reason: str, action: str, form: Fields) -> str | None:
    """Return why the form cannot be applied to any incident; None if it can."""
    assignee = form.get("assignee", [""])[0]
    problems = {
        "Select at least one incident.": not selected,
        f"Select at most {MAX_SELECTED} incidents.": len(selected) > MAX_SELECTED,
        "Choose an action.": action not in OUTCOMES,
        "Give the reason in a few words.": action not in {ASSIGN, SNOOZE} and not reason,
        f"The reason has {len(reason)} characters; at most {MAX_COMMENT} are allowed.": len(reason) > MAX_COMMENT,
        "Choose a person.": action == ASSIGN and not assignee,
        "Choose the end of the snooze.": action == SNOOZE and form.get("until", [""])[0] not in SNOOZES,
    }
    return next((problem for problem, applies in problems.items() if applies), None)


def _build_change(action: str, reason: str, form: Fields, viewer: Holder, services: ApiContext) -> Change:
    comment = services.engine.redactor.redact(reason)[0] if reason else None
    if action == SNOOZE:
        return Change(snoozes=True, until=read_snooze_end(form["until"][0], services.engine.now()), comment=comment)
    if action == ASSIGN:
        assignee = form["assignee"][0]
        return Change(assigns=True, assignee={ME: viewer.name, NOBODY: None}.get(assignee, assignee), comment=comment)
    return Change(decision=None if action == COMMENT else action, comment=comment)
