"""Costs of judging: the sums of groups of judgements."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from msgspec import Meta

from analytics.queries import run_query
from schemas.lazy import duckdb
from service.text.answers import Answer, NextCursor


class JudgeCost(Answer, frozen=True):
    """The cost of a group of judgements; fields that do not identify the group are null."""

    project: str | None
    connection: str | None
    session_id: str | None
    day: date | None
    model: Annotated[str | None, Meta(description="The model that was asked.")]
    judgements: int
    calls: Annotated[int, Meta(description="Attempts of all judgements; a reused judgement has none.")]
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_usd: Annotated[float | None, Meta(description="The known costs; null if none is known.")]
    unknown_costs: Annotated[int, Meta(description="Judgements whose cost is not known.")]
    simulated: Annotated[int, Meta(description="Judgements of a simulated judge.")]


class CostList(Answer, frozen=True):
    """Groups: days in order of time, all other groups by falling cost."""

    costs: list[JudgeCost]
    count: int
    next_cursor: NextCursor


def judge_costs(
    cursor: duckdb.DuckDBPyConnection,
    by: str,
    project: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    skip: int = 0,
    limit: int | None = None,
) -> list[JudgeCost]:
    """Return the costs of one project or all within a period, grouped by project, day, model or session, or as one total.

    Groups have no stable place in a list, so a page starts after a number of groups. There may be as many groups as sessions, so only
    those of the page are turned into answers.
    """
    groups = run_query(cursor, "judge_costs", {"by": by, "project": project, "from": start, "to": end})
    return [JudgeCost.of(row) for row in groups.slice(min(skip, groups.height), limit).iter_rows(named=True)]
