"""The projects that the caller may see, each with the numbers that tell how it is, in one answer."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from analytics.queries import query_rows
from schemas.limits import EARLIEST
from service.api.answers import Answer
from service.api.authentication import Reader
from service.api.context import ApiContext, Services
from service.api.errors import documented
from service.api.paging import Cursor, NextCursor, Place, page_of
from service.api.project_answers import Moment, ProjectAnswer, Share
from service.api.settings import API
from service.documents import iso_time
from service.project_health import Health, Reason, anomalous_share, unscored_share, with_health

router = APIRouter(tags=["reading"])
RECENT_DAYS = 7
MAX_PROJECTS = 5000
Limit = Annotated[int, Query(ge=1, le=MAX_PROJECTS, description="At most so many.")]
_COUNTS = ("exchanges", "scores", "scored", "anomalies", "simulated", "open_incidents", "critical_incidents", "runs")
_RECENT = ("recent_scores", "recent_anomalies", "recent_scored", "recent_unscored", "recent_unsafe_runs")
EMPTY_PROJECT = dict.fromkeys((*_COUNTS, *_RECENT), 0) | dict.fromkeys(
    ("recent_until", "recent_cost_usd", "recent_tier1", "recent_tier2", "recent_tier2_5", "recent_tier3", "last_exchange_at")
)
"""The row of a project of which nothing is known."""
Row = dict[str, Any]


class RecentAnswer(ProjectAnswer):
    """The last days up to the newest one with a score. A score of the judge counts one over its chance of being sampled in the means."""

    days: int
    until: date | None = Field(description="The newest UTC day with a score, which is the last of them; null without one.")
    scores: int
    anomalies: int
    anomaly_rate: Share | None
    unscored: int = Field(description="Exchanges that a judge should have scored and did not.")
    unscored_rate: Share | None = Field(description="Of those that a judge should have scored.")
    unsafe_runs: int = Field(description="Runs unsafe for production, in as many days up to the newest run.")
    cost_usd: float | None = Field(description="The known costs of judging these exchanges; null without a score.")
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None


class ProjectHealthAnswer(ProjectAnswer):
    """A project and how it is."""

    project: str
    health: Health = Field(
        description="critical: by a critical incident; warning: for another of the reasons; empty: nothing has come in yet."
    )
    reasons: list[Reason] = Field(
        description="Why it is not healthy: its incidents; in the last days a tenth or more of what a judge should have scored is "
        "unscored, a run is unsafe for production, or one exchange in twenty has an anomaly."
    )
    enabled: bool = Field(description="Whether the policy has it audited.")
    exchanges: int
    scores: int
    scored: int = Field(description="Of the scores, those that every tier asked for has.")
    anomalies: int
    simulated: int = Field(description="Of the scores, those that rest on a simulated judge.")
    open_incidents: int
    critical_incidents: int
    runs: int
    last_exchange_at: Moment | None
    recent: RecentAnswer


class ProjectsAnswer(Answer):
    """Projects by name."""

    projects: list[ProjectHealthAnswer]
    count: int
    next_cursor: NextCursor


@router.get(f"{API}/projects", responses=documented())
async def projects(
    caller: Reader,
    services: Services,
    health: Annotated[Health | None, Query(description="Only projects that are so.")] = None,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> ProjectsAnswer:
    """List every project that the caller may see with its health: those with records, and those that have a connection."""
    rows = await project_rows(services, caller.project)
    wanted = [row for row in rows if health in (None, row["health"]) and (cursor is None or row["project"] > cursor.id)]
    shown, following = page_of(wanted, limit, lambda row: Place(EARLIEST, row["project"]))
    return ProjectsAnswer(projects=[_answer(row) for row in shown], count=len(shown), next_cursor=following)


async def project_rows(services: ApiContext, own: str | None) -> list[Row]:
    """Every project, or `own`, by name, with its health: rows of the query `projects`, and those that only have a connection yet."""
    asked = {"project": own, "as_of": services.engine.now(), "days": RECENT_DAYS}
    rows = {row["project"]: row for row in await services.ask(lambda asking: query_rows(asking, "projects", asked))}
    connected = {one.project for one, _ in services.access.holders("connection") if one.project and own in (None, one.project)}
    policy = services.engine.policy
    return [
        with_health(
            {"project": name, **(rows.get(name) or EMPTY_PROJECT), "enabled": policy.for_project(name).settings.enabled}
        )
        for name in sorted(rows.keys() | connected)
    ]


def _answer(row: Row) -> ProjectHealthAnswer:
    return ProjectHealthAnswer(
        project=row["project"],
        health=row["health"],
        reasons=row["reasons"],
        enabled=row["enabled"],
        last_exchange_at=iso_time(row["last_exchange_at"]),
        recent=RecentAnswer(
            days=RECENT_DAYS,
            until=row["recent_until"],
            scores=row["recent_scores"],
            anomalies=row["recent_anomalies"],
            anomaly_rate=_rounded(anomalous_share(row)),
            unscored=row["recent_unscored"],
            unscored_rate=_rounded(unscored_share(row)),
            unsafe_runs=row["recent_unsafe_runs"],
            cost_usd=row["recent_cost_usd"],
            avg_tier1=row["recent_tier1"],
            avg_tier2=row["recent_tier2"],
            avg_tier2_5=row["recent_tier2_5"],
            avg_tier3=row["recent_tier3"],
        ),
        **{count: row[count] for count in _COUNTS},
    )


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
