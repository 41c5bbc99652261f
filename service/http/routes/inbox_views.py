"""Saved views of the inbox over HTTP: list, save, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field, StringConstraints

from service.access.access import Holder
from service.access.saved_views import MAX_VIEW_NAME, View
from service.documents.inbox.inbox_address import query_of, read_query
from service.http.auth.authentication import Reader, require_project
from service.http.bounds import INBOX
from service.http.context import ApiContext, Services, durable_or_refused
from service.http.documents.bodies import JsonRoute
from service.http.documents.models import OperatorBody
from service.http.documents.response_models import Answer
from service.http.errors import ApiError, documented

router = APIRouter(route_class=JsonRoute, tags=["incidents"])
VIEWS = f"{INBOX}/views"
MAX_QUERY = 2000
"""Characters of the filters of a view."""
NameField = Annotated[str, StringConstraints(min_length=1, max_length=MAX_VIEW_NAME)]


class ViewBody(OperatorBody):
    """A view to save; one of yours with the same name is replaced."""

    name: NameField
    query: Annotated[str, StringConstraints(max_length=MAX_QUERY)] = Field(
        description="Filters, as in the address of the inbox.", examples=["assignee=me&severity=critical"]
    )
    shared: bool = Field(False, description="Everybody sees it; needs the scope review.")


class ViewAnswer(Answer):
    """A saved view."""

    name: str
    owner: str
    query: str
    shared: bool


class ViewsAnswer(Answer):
    """Your views, then those that others share."""

    views: list[ViewAnswer]
    count: int


@router.get(VIEWS, responses=documented())
def list_views(caller: Reader, services: Services) -> ViewsAnswer:
    """List the saved views of the inbox that the caller sees."""
    views = [_answer(one) for one in views_of(services, caller)]
    return ViewsAnswer(views=views, count=len(views))


@router.post(VIEWS, responses=documented(400, 408, 413, 415))
def save_view(caller: Reader, services: Services, body: ViewBody) -> ViewAnswer:
    """Save a view of the inbox: filters with a name."""
    return _answer(saved_view(services, caller, body.name, body.query, is_shared=body.shared))


@router.delete(f"{VIEWS}/{{name}}", status_code=204, responses=documented(404, 408, 413, 415))
def delete_view(
    caller: Reader, services: Services, name: Annotated[NameField, Path(description="Name of the view.")]
) -> Response:
    """Delete one of the caller's saved views."""
    deleted_view(services, caller, name)
    return Response(status_code=204)


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
    view = View(caller.name, name.strip(), query_of(asked), is_shared)
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


def _answer(view: View) -> ViewAnswer:
    return ViewAnswer(name=view.name, owner=view.owner, query=view.query, shared=view.is_shared)
