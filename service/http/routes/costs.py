"""Costs of judging, for a project or for all projects that the caller may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from schemas.bounds import EARLIEST
from service.http.routes.scores import PROJECT, require_window
from service.read.costs import CostList, judge_costs
from service.text.answers import Place, page_of
from service.text.links import API
from service.web.answering import AnswerRoute
from service.web.authentication import Reader, VisibleProject
from service.web.context import ApiContext, Services
from service.web.errors import documented
from service.web.models import QueryMoment
from service.web.parameters import Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["reading"])
From = Annotated[QueryMoment | None, Query(alias="from", description="Only judgements at or after this time.")]
To = Annotated[QueryMoment | None, Query(alias="to", description="Only judgements before this time.")]
ByAll = Annotated[
    Literal["project", "day", "model", "session", "all"],
    Query(description="Grouping of the sums; days are UTC, as on the bill."),
]
By = Annotated[
    Literal["day", "model", "session", "all"], Query(description="Grouping of the sums; days are UTC, as on the bill.")
]


@router.get(f"{API}/costs", responses=documented())
async def fleet_costs(
    caller: Reader,
    services: Services,
    *,
    by: ByAll = "project",
    start: From = None,
    end: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> CostList:
    """Sum up what judging cost, over every project that the caller may see."""
    require_window(start, end)
    return await _costs(services, {"by": by, "project": caller.project, "start": start, "end": end}, limit, cursor)


@router.get(f"{PROJECT}/costs", responses=documented(404))
async def costs(
    _: Reader,
    project: VisibleProject,
    services: Services,
    *,
    by: By = "day",
    start: From = None,
    end: To = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> CostList:
    """Sum up what judging a project's exchanges cost."""
    require_window(start, end)
    return await _costs(services, {"by": by, "project": project, "start": start, "end": end}, limit, cursor)


async def _costs(services: ApiContext, asked: Mapping[str, Any], limit: int, cursor: Place | None) -> CostList:
    skip = 0 if cursor is None else max(cursor.number, 0)
    groups = await services.ask(lambda connection: judge_costs(connection, **asked, skip=skip, limit=limit + 1))
    shown, following = page_of(groups, limit, lambda _: Place(EARLIEST, "", skip + limit))
    return CostList(costs=shown, count=len(shown), next_cursor=following)
