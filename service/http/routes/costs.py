"""Costs of judging: of a project, or of every project that the caller may see."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from analytics.queries import run_query
from schemas.bounds.limits import EARLIEST
from service.http.routes.scores import PROJECT, require_window
from service.text.cursors import Place, encode_place
from service.text.paths import API
from service.web.authentication import Reader, VisibleProject
from service.web.context import ApiContext, Services
from service.web.errors import documented
from service.web.models import QueryMoment
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer

router = APIRouter(tags=["reading"])
From = Annotated[QueryMoment | None, Query(alias="from", description="Only judgements at or after this time.")]
To = Annotated[QueryMoment | None, Query(alias="to", description="Only judgements before this time.")]
ByAll = Annotated[
    Literal["project", "day", "model", "session", "all"],
    Query(description="Grouping of the sums; days are UTC, as on the bill."),
]
By = Annotated[
    Literal["day", "model", "session", "all"], Query(description="Grouping of the sums; days are UTC, as on the bill.")
]


class CostAnswer(Answer):
    """The cost of a group of judgements; the fields that do not name the group are null."""

    project: str | None
    connection: str | None
    session_id: str | None
    day: date | None
    model: str | None = Field(description="The model that was asked.")
    judgements: int
    calls: int = Field(description="Attempts of all judgements; a reused judgement has none.")
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_usd: float | None = Field(description="The known costs; null if none is known.")
    unknown_costs: int = Field(description="Judgements whose cost is not known.")
    simulated: int = Field(description="Judgements of a simulated judge.")


class CostsAnswer(Answer):
    """Groups: days in their order, everything else the most expensive first."""

    costs: list[CostAnswer]
    count: int
    next_cursor: NextCursor


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
) -> CostsAnswer:
    """Sum up what judging cost, over every project that the caller may see."""
    require_window(start, end)
    return await _costs(services, {"by": by, "project": caller.project, "from": start, "to": end}, limit, cursor)


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
) -> CostsAnswer:
    """Sum up what judging a project's exchanges cost."""
    require_window(start, end)
    return await _costs(services, {"by": by, "project": project, "from": start, "to": end}, limit, cursor)


async def _costs(services: ApiContext, asked: dict[str, Any], limit: int, cursor: Place | None) -> CostsAnswer:
    # There may be as many groups as sessions: only those of the page leave the frame.
    groups = await services.ask(lambda connection: run_query(connection, "judge_costs", asked))
    # Sums have no place that stays: a page goes on after so many groups.
    begin = 0 if cursor is None else min(max(cursor.number, 0), groups.height)
    shown = groups.slice(begin, limit).to_dicts()
    more = begin + limit < groups.height
    following = encode_place(Place(EARLIEST, "", begin + limit)) if more else None
    return CostsAnswer(costs=[CostAnswer.model_validate(row) for row in shown], count=len(shown), next_cursor=following)
