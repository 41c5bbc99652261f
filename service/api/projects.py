"""The projects that the caller may see, each with the numbers that tell how it is, in one answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from analytics.queries import query_rows
from schemas.limits import EARLIEST
from service.api.answers import Answer
from service.api.authentication import Reader
from service.api.context import Services
from service.api.errors import documented
from service.api.paging import Cursor, NextCursor, Place, page_of
from service.api.project_answers import Moment, ProjectAnswer, Share
from service.api.settings import API
from service.documents import iso_time

router = APIRouter(tags=["reading"])
RECENT_DAYS = 7
MAX_PROJECTS = 5000
Limit = Annotated[int, Query(ge=1, le=MAX_PROJECTS, description="At most so many.")]
Health = Literal["critical", "warning", "ok", "empty"]
_COUNTS = ("exchanges", "scores", "scored", "anomalies", "open_incidents", "critical_incidents", "runs")


class RecentAnswer(ProjectAnswer):
    """The last days; means are over the scores that have the tier."""

    days: int
    scores: int
    anomalies: int
    anomaly_rate: Share | None
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None


class ProjectHealthAnswer(ProjectAnswer):
    """A project and how it is."""

    project: str
    health: Health = Field(description="By its open incidents; empty: nothing has come in yet.")
    enabled: bool = Field(description="Whether the policy has it audited.")
    exchanges: int
    scores: int
    scored: int = Field(description="Of the scores, those that every tier asked for has.")
    anomalies: int
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
    engine, own = services.engine, caller.project
    asked = {"project": own, "as_of": engine.now(), "days": RECENT_DAYS}
    rows = {row["project"]: row for row in await services.ask(lambda asking: query_rows(asking, "projects", asked))}
    connected = {one.project for one, _ in services.access.holders("connection") if one.project and own in (None, one.project)}
    names = sorted(name for name in rows.keys() | connected if cursor is None or name > cursor.id)
    found = (_answer(name, rows.get(name, {}), enabled=engine.policy.for_project(name).settings.enabled) for name in names)
    wanted = [one for one in found if health in (None, one.health)]
    shown, following = page_of(wanted, limit, lambda one: Place(EARLIEST, one.project))
    return ProjectsAnswer(projects=shown, count=len(shown), next_cursor=following)


def _answer(name: str, row: dict[str, Any], *, enabled: bool) -> ProjectHealthAnswer:
    recent, anomalies = row.get("recent_scores", 0), row.get("recent_anomalies", 0)
    return ProjectHealthAnswer(
        project=name,
        health=_health(row),
        enabled=enabled,
        last_exchange_at=iso_time(row.get("last_exchange_at")),
        recent=RecentAnswer(
            days=RECENT_DAYS,
            scores=recent,
            anomalies=anomalies,
            anomaly_rate=round(anomalies / recent, 3) if recent else None,
            avg_tier1=row.get("recent_tier1"),
            avg_tier2=row.get("recent_tier2"),
            avg_tier2_5=row.get("recent_tier2_5"),
            avg_tier3=row.get("recent_tier3"),
        ),
        **{count: row.get(count, 0) for count in _COUNTS},
    )


def _health(row: dict[str, Any]) -> Health:
    if row.get("critical_incidents"):
        return "critical"
    if row.get("open_incidents"):
        return "warning"
    return "ok" if row.get("exchanges") or row.get("runs") else "empty"
