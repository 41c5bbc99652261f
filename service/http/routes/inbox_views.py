"""Saved views of the inbox over HTTP: list, save, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field, StringConstraints

from service.setup.access.saved_views import MAX_VIEW_NAME, View, ViewList
from service.text.links import INBOX
from service.web.authentication import Reader
from service.web.bodies import JsonRoute
from service.web.context import Services
from service.web.errors import documented
from service.web.incident_changes import deleted_view, saved_view, views_of
from service.web.models import OperatorBody

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


@router.get(VIEWS, responses=documented())
def list_views(caller: Reader, services: Services) -> ViewList:
    """List the saved views of the inbox that the caller sees."""
    views = views_of(services, caller)
    return ViewList(views=views, count=len(views))


@router.post(VIEWS, responses=documented(400, 408, 413, 415))
def save_view(caller: Reader, services: Services, body: ViewBody) -> View:
    """Save a view of the inbox: filters with a name."""
    return saved_view(services, caller, body.name, body.query, is_shared=body.shared)


@router.delete(f"{VIEWS}/{{name}}", status_code=204, responses=documented(404, 408, 413, 415))
def delete_view(
    caller: Reader, services: Services, name: Annotated[NameField, Path(description="Name of the view.")]
) -> Response:
    """Delete one of the caller's saved views."""
    deleted_view(services, caller, name)
    return Response(status_code=204)
