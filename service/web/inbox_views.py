"""Saved views of the inbox: those that a caller sees, saving and deleting one."""

from __future__ import annotations

from service.read.inbox.inbox_address import query_of, read_query
from service.setup.access.access import Holder
from service.setup.access.saved_views import View
from service.web.authentication import require_project
from service.web.context import ApiContext, durable_or_refused
from service.web.errors import ApiError


def views_of(services: ApiContext, caller: Holder) -> list[View]:
    """Return the views that a caller sees: own ones, and shared ones that name no project which the caller may not see."""
    found = services.access.saved_views.seen_by(caller.name)
    return [one for one in found if one.owner == caller.name or _names_no_other(one, caller)]


def saved_view(services: ApiContext, caller: Holder, name: str, query: str, *, is_shared: bool) -> View:
    """Save a view; InputError that names a wrong field, ApiError (403) for what the caller may not do."""
    asked = read_query(query)
    for project in asked.get("project", ()):
        require_project(caller, project)
    if is_shared and "review" not in caller.scopes:
        raise ApiError(403, "scope_required", "shared: the token lacks the scope review")
    view = View(name.strip(), caller.name, query_of(asked), is_shared)
    with durable_or_refused():
        services.access.saved_views.save(view)
    return view


def deleted_view(services: ApiContext, caller: Holder, name: str) -> None:
    """Delete a view of the caller; ApiError (404) if there is none of this name."""
    with durable_or_refused():
        if not services.access.saved_views.delete(caller.name, name):
            raise ApiError(404, "not_found", "you have no view of this name")


def _names_no_other(view: View, caller: Holder) -> bool:
    return caller.project is None or set(read_query(view.query).get("project", ())) <= {caller.project}
