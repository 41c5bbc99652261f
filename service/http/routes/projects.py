"""The projects that the caller may see, each with its health figures, in one answer."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from schemas.bounds import EARLIEST
from service.read.project import Health, Projects, with_blind_spots
from service.text.answers import Place, page_of
from service.text.links import API
from service.text.window import read_day
from service.web.answering import AnswerRoute
from service.web.authentication import Reader
from service.web.context import Services
from service.web.errors import documented
from service.web.parameters import Cursor
from service.web.projects import projects_of, with_their_changes

router = APIRouter(route_class=AnswerRoute, tags=["reading"])
MAX_PROJECTS = 5000
Limit = Annotated[int, Query(ge=1, le=MAX_PROJECTS, description="Maximum number.")]


@router.get(f"{API}/projects", responses=documented())
async def projects(
    *,
    caller: Reader,
    services: Services,
    health: Annotated[Health | None, Query(description="Only projects in this state.")] = None,
    until: Annotated[
        date | None, BeforeValidator(read_day), Query(description="The last of the recent UTC days; today by default.")
    ] = None,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> Projects:
    """List every project that the caller may see with its health: those with records, and those with a connection.

    Recent figures count back from today, also for a project that has fallen silent; `until` selects the days up to another one.
    """
    found = await projects_of(services, caller.project, until)
    wanted = [one for one in found if health in (None, one.health) and (cursor is None or one.project > cursor.id)]
    shown, following = page_of(wanted, limit, lambda one: Place(EARLIEST, one.project))
    shown = await with_their_changes(services, shown, caller.project)
    told = await services.ask(lambda asked: with_blind_spots(asked, shown, caller.project))
    return Projects(projects=told, count=len(told), next_cursor=following)
