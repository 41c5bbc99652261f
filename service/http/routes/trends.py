"""Trends of a project: its days, the ends of its sessions, sampling and its reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BeforeValidator, Field

from analytics.queries import query_rows
from audit.exchanges.wrap_quality import STEPS
from schemas.bounds.limits import EARLIEST, LATEST
from schemas.lazy.duckdb import duckdb
from service.http.answers.project_answers import Moment, ProjectAnswer, Share
from service.http.routes.scores import PROJECT, From, To, require_window
from service.read.scores import newest_score
from service.read.wrap_quality import wrap_page
from service.text.cursors import Place, after, page_of
from service.text.window import LENGTHS, AskedRange, read_day, window_of
from service.web.authentication import Reader, VisibleProject
from service.web.context import Services
from service.web.errors import documented
from service.web.paging import Cursor, Limit, NextCursor

router = APIRouter(tags=["reading"])
TIERS = ("tier1", "tier2", "tier2_5", "tier3")
SHOWN_DIGITS = 3


class DayAnswer(ProjectAnswer):
    """A UTC day of exchanges; means are over those that have the tier, null where none has."""

    date: date
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None
    weighted_tier2: float | None = Field(description="Each exchange is weighted by one over its sampling probability.")
    weighted_tier2_5: float | None
    weighted_tier3: float | None
    anomaly_count: int
    exchange_count: int


class TrendsAnswer(ProjectAnswer):
    """The days of a window that have exchanges, oldest first."""

    project: str
    window: str
    since: date = Field(description="The first UTC day of the window.")
    until: date = Field(description="The last UTC day of the window.")
    data_points: list[DayAnswer]
    last_until: date | None = Field(
        description="Without a data point: the newest earlier UTC day with one, to ask for as `until`; null otherwise."
    )


class WrapAnswer(ProjectAnswer):
    """The steps of a wrap-up that the last exchanges of a session show."""

    session_id: str
    connection: str
    exchange_count: int
    last_timestamp: Moment
    score: Share = Field(description="Found / expected.")
    steps_found: list[str] = Field(examples=[["changelog", "commit"]])
    steps_missing: list[str]
    total_steps: int


class WrapsAnswer(ProjectAnswer):
    """Sessions, the one with the newest exchange first."""

    project: str
    sessions: list[WrapAnswer]
    next_cursor: NextCursor


class SamplingAnswer(ProjectAnswer):
    """Exchanges of one sampling reason and one outcome."""

    sampling_reason: str = Field(examples=["routine_sample"])
    disposition: str = Field(examples=["scored"])
    exchanges: int
    share: Share
    anomalies: int
    avg_tier1: float | None
    avg_tier2: float | None


class SamplingMixAnswer(ProjectAnswer):
    """Sampled exchanges by reason, the most frequent first."""

    project: str
    mix: list[SamplingAnswer]


@router.get(f"{PROJECT}/trends", responses=documented(404))
async def trends(
    _: Reader,
    project: VisibleProject,
    services: Services,
    window: Annotated[Literal["7d", "14d", "30d"], Query(description="UTC days up to `until`.")] = "14d",
    until: Annotated[
        date | None, BeforeValidator(read_day), Query(description="The last UTC day; today by default, which is incomplete.")
    ] = None,
) -> TrendsAnswer:
    """Return a project's figures by day of its exchanges, whenever they were scored."""
    shown = window_of(AskedRange(window, until), services.engine.now())
    asked = {"project": project, "as_of": shown.end, "days": LENGTHS[window].days}

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[Sequence[Mapping[str, Any]], datetime | None]:
        rows = query_rows(cursor, "trends", asked)
        return rows, None if rows else newest_score(cursor, project, shown.start)

    rows, newest = await services.ask(read)
    return TrendsAnswer(
        project=project,
        window=window,
        since=shown.first,
        until=shown.last,
        data_points=[_day(dict(row)) for row in rows],
        last_until=None if newest is None else newest.date(),
    )


@router.get(f"{PROJECT}/wrap-quality", responses=documented(404))
async def wrap_quality(
    _: Reader, project: VisibleProject, services: Services, limit: Limit = 20, cursor: Cursor = None
) -> WrapsAnswer:
    """Show how sessions ended: the steps of a wrap-up in each. Empty if the policy switches it off."""
    policy = services.engine.policy
    rows = await services.ask(lambda asked: wrap_page(asked, policy, project, limit + 1, after(cursor)))
    shown, following = page_of(rows, limit, session_place)
    return WrapsAnswer(project=project, sessions=[_wrap(row) for row in shown], next_cursor=following)


@router.get(f"{PROJECT}/sampling", responses=documented(404))
async def sampling(
    _: Reader, project: VisibleProject, services: Services, start: From = None, end: To = None
) -> SamplingMixAnswer:
    """Count the exchanges of a project that were judged or left out, by reason."""
    require_window(start, end)
    asked = {"project": project, "from": start or EARLIEST, "to": end or LATEST}
    rows = await services.ask(lambda cursor: query_rows(cursor, "project_sampling", asked))
    mix = [
        SamplingAnswer.model_validate({**row, "avg_tier1": row["tier1_mean"], "avg_tier2": row["tier2_mean"]}) for row in rows
    ]
    return SamplingMixAnswer(project=project, mix=mix)


def session_place(row: Mapping[str, Any]) -> Place:
    """Return the place of a session among those of its project: by its last exchange."""
    return Place(row["last_at"], f"{row['connection']}/{row['session_id']}")


def _day(row: dict[str, Any]) -> DayAnswer:
    means = {f"avg_{tier}": row[f"{tier}_mean"] for tier in TIERS}
    means |= {f"weighted_{tier}": row[f"{tier}_weighted_mean"] for tier in TIERS[1:]}
    shown = {name: None if mean is None else round(mean, SHOWN_DIGITS) for name, mean in means.items()}
    return DayAnswer.model_validate({**row, **shown, "date": row["day"]})


def _wrap(row: dict[str, Any]) -> WrapAnswer:
    return WrapAnswer.model_validate({**row, "last_timestamp": row["last_at"], "total_steps": len(STEPS)})
