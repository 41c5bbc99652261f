"""The projects that the caller may see, each with its health figures, in one answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from analytics.queries import query_rows
from schemas.bounds.limits import EARLIEST
from service.documents.project_checks import EMPTY_PROJECT, RECENT_DAYS, CheckState, check_state
from service.documents.project_health import ENOUGH, Health, Reason, anomalous_share, unscored_share, with_health
from service.http.auth.authentication import Reader
from service.http.bounds import API
from service.http.context import ApiContext, Services
from service.http.documents.project_answers import Moment, ProjectAnswer, Share
from service.http.documents.response_models import Answer
from service.http.errors import documented
from service.http.paging import Cursor, NextCursor, Place, page_of

router = APIRouter(tags=["reading"])
MAX_PROJECTS = 5000
Limit = Annotated[int, Query(ge=1, le=MAX_PROJECTS, description="Maximum number.")]
Row = dict[str, Any]


class RecentAnswer(ProjectAnswer):
    """The last days up to the newest one with a score. Means weight a judge's score by one over its sampling chance."""

    days: int
    until: date | None = Field(description="The last of these days: the newest UTC day with a score; null without one.")
    scores: int
    anomalies: int
    anomaly_rate: Share | None
    unscored: int = Field(description="Exchanges that the judge failed to score.")
    unscored_rate: Share | None = Field(description="Their share of those that the judge should have scored.")
    unsafe_runs: int = Field(description="Runs unsafe for production, in the same number of days up to the newest run.")
    cost_usd: float | None = Field(description="The known costs of judging these exchanges; null without a score.")
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None


class ProjectCheckAnswer(ProjectAnswer):
    """The newest check for drift and anomaly spikes. Without one, the absence of incidents means nothing."""

    state: CheckState = Field(
        description="off: the policy switches auditing off; nothing: no scores; never: not checked yet; behind: newer exchanges "
        "exist; learning: the history is shorter than a full baseline; quiet: nothing found; found: there are findings."
    )
    checked_at: Moment | None = Field(description="Time of the check; null before the first one.")
    days: int | None = Field(description="Days of comparable scores, at most baselineDays.")
    baseline_days: int | None = Field(description="Days of a full baseline.")


class ProjectHealthAnswer(ProjectAnswer):
    """A project and its health."""

    project: str
    health: Health = Field(
        description="critical: it has a critical incident; warning: another of the reasons; unknown: too few exchanges and runs in "
        "the last days, or not checked; empty: no exchanges yet."
    )
    reasons: list[Reason] = Field(
        description="Why it is not healthy: its incidents; in the last days a tenth or more of what the judge should have scored is "
        "unscored, a run is unsafe for production, or one exchange in twenty has an anomaly. Without any of these, too_few: fewer than "
        f"{ENOUGH} exchanges and fewer than {ENOUGH} runs in the last days; unchecked: no check for drift since the newest exchange."
    )
    enabled: bool = Field(description="Whether the policy has auditing on.")
    exchanges: int
    scores: int
    scored: int = Field(description="Scores that have every requested tier.")
    anomalies: int
    simulated: int = Field(description="Scores by a simulated judge.")
    open_incidents: int = Field(description="Confirmed incidents that are open or acknowledged.")
    critical_incidents: int
    acknowledged_incidents: int = Field(description="Acknowledged ones, which have an owner.")
    suspected_incidents: int = Field(description="Suspected ones, in addition; they do not affect the health.")
    runs: int
    last_exchange_at: Moment | None
    last_run_at: Moment | None = Field(description="When the newest run ended.")
    recent: RecentAnswer
    check: ProjectCheckAnswer


class ProjectsAnswer(Answer):
    """Projects by name."""

    projects: list[ProjectHealthAnswer]
    count: int
    next_cursor: NextCursor


@router.get(f"{API}/projects", responses=documented())
async def projects(
    caller: Reader,
    services: Services,
    health: Annotated[Health | None, Query(description="Only projects in this state.")] = None,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> ProjectsAnswer:
    """List every project that the caller may see with its health: those with records, and those with a connection."""
    rows = await project_rows(services, caller.project)
    wanted = [row for row in rows if health in (None, row["health"]) and (cursor is None or row["project"] > cursor.id)]
    shown, following = page_of(wanted, limit, lambda row: Place(EARLIEST, row["project"]))
    return ProjectsAnswer(projects=[_answer(row) for row in shown], count=len(shown), next_cursor=following)


async def project_rows(services: ApiContext, own: str | None) -> list[Row]:
    """Return every project, or `own`, by name, with its health: also those that only have a connection."""
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


async def project_row(services: ApiContext, project: str) -> Row:
    """Return one project with its health; that of an empty one if it is unknown."""
    return row_of(services, project, await project_rows(services, project))


def row_of(services: ApiContext, project: str, rows: Sequence[Row]) -> Row:
    """Return the one row of a project, or that of an empty one."""
    enabled = services.engine.policy.for_project(project).settings.enabled
    return rows[0] if rows else with_health({"project": project, **EMPTY_PROJECT, "enabled": enabled})


def _answer(row: Row) -> ProjectHealthAnswer:
    recent = {name.removeprefix("recent_"): value for name, value in row.items() if name.startswith("recent_")}
    recent |= {f"avg_{tier}": recent[tier] for tier in ("tier1", "tier2", "tier2_5", "tier3")}
    recent |= {"anomaly_rate": _rounded(anomalous_share(row)), "unscored_rate": _rounded(unscored_share(row))}
    check = {**row, "state": check_state(row), "days": row["check_days"]}
    return ProjectHealthAnswer.model_validate({**row, "recent": {**recent, "days": RECENT_DAYS}, "check": check})


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
