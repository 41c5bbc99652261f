"""The actions of the inbox's forms: one change of the selected incidents, with the outcome for each; saved views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from audit.redaction import Redactor
from schemas.errors import InputError
from service.pages.forms import Fields, Form
from service.pages.incidents.inbox import asked_of, inbox_values
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.inbox import ME, NOBODY, read_query
from service.setup.access.access import Holder
from service.text.links import INBOX_PAGE, INBOX_VIEWS_PAGE, Links
from service.web.bounds import MAX_SELECTED
from service.web.context import Services, durable_or_refused
from service.web.errors import ApiError
from service.web.incident_changes import Outcome, change_selected, deleted_view, name_selected, saved_view
from service.web.parameters import Cursor
from streams.upkeep.reviewing import MAX_COMMENT
from streams.watch.lifecycle import ACKNOWLEDGED, DISMISSED, NEW_NORMAL, OPEN, RESOLVED
from streams.watch.watching import Change, Person

router = APIRouter(include_in_schema=False)
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
"""The actions of the form, and what an incident is after each, in words."""


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
    """Change the selected incidents, and show the list again with how that went."""
    if "review" not in viewer.scopes:
        raise ApiError(403, "scope_required", "the token lacks the scope review")
    asked = asked_of(request, viewer)
    with durable_or_refused():
        result = await _applied(request, services, viewer, form)
    values = await inbox_values(request, services, viewer, asked, cursor)
    return page(request, "inbox.html", {**values, "result": result}, 200 if result.problem is None else 400, forms=True)


@router.post(INBOX_VIEWS_PAGE)
def change_views(viewer: Viewer, services: Services, form: Form) -> RedirectResponse:
    """Save what the list shows as a view, or delete one; lead to the list as it was."""
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


async def _applied(request: Request, services: Services, viewer: Holder, form: Fields) -> Result:
    chosen = form.get("incident", [])
    reason = form.get("comment", [""])[0].strip()
    action = form.get("do", [""])[0]
    kept = Result(None, action, (), reason, frozenset(chosen))
    if (problem := _problem(chosen, reason, action, form)) is not None:
        return Result(problem, action, (), reason, kept.selected)
    places = [(project, identity) for project, _, identity in (one.partition("/") for one in chosen)]
    name_selected(request, places)
    wanted = _change(action, reason, form, viewer, services.engine.redactor)
    outcomes = await change_selected(services, viewer, places, wanted, Person(viewer.name))
    failed = frozenset(f"{one.project}/{one.incident_id}" for one in outcomes if one.error is not None)
    return Result(None, action, outcomes, reason if failed else "", failed)


def _problem(chosen: Sequence[str], reason: str, action: str, form: Fields) -> str | None:
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


def _change(action: str, reason: str, form: Fields, viewer: Holder, redactor: Redactor) -> Change:
    comment = redactor.redact(reason)[0] if reason else None
    if action == ASSIGN:
        given = form["assignee"][0]
        return Change(assigns=True, assignee={ME: viewer.name, NOBODY: None}.get(given, given), comment=comment)
    return Change(decision=None if action == COMMENT else action, comment=comment)
