"""The projects that the caller may see, each with its health figures, in one answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BeforeValidator, Field

from schemas.bounds.limits import EARLIEST
from service.http.answers.project_answers import Moment, ProjectAnswer, Share
from service.read.fleet.changes import LEVEL_DAYS
from service.read.project_checks import RECENT_DAYS, CheckState, blind_spots, check_state, last_until
from service.read.project_health import ENOUGH, Health, Reason, anomalous_share, unscored_share
from service.text.cursors import Place, page_of
from service.text.paths import API
from service.text.window import read_day
from service.web.authentication import Reader
from service.web.context import Services
from service.web.errors import documented
from service.web.paging import Cursor, NextCursor
from service.web.projects import project_rows, rows_with_changes
from service.web.response_models import Answer

router = APIRouter(tags=["reading"])
MAX_PROJECTS = 5000
Limit = Annotated[int, Query(ge=1, le=MAX_PROJECTS, description="Maximum number.")]
Row = dict[str, Any]


class RecentAnswer(ProjectAnswer):
    """The last days, up to today or to the day asked for. Means weight a judge's score by one over its sampling chance."""

    days: int
    until: date = Field(description="The last of these UTC days.")
    last_until: date | None = Field(
        description="Without a score in these days: the newest earlier UTC day with one, to ask for as `until`; null otherwise."
    )
    scores: int
    anomalies: int
    anomaly_rate: Share | None
    unscored: int = Field(description="Exchanges that the judge failed to score.")
    unscored_rate: Share | None = Field(description="Their share of those that the judge should have scored.")
    unsafe_runs: int = Field(description="Runs unsafe for production, that ended in these days.")
    runs: int = Field(description="All runs with runtime events in those days.")
    cost_usd: float | None = Field(description="The known costs of judging these exchanges; null without a score.")
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None


class BeforeAnswer(ProjectAnswer):
    """As many days before the last ones, to compare them with."""

    scores: int
    anomalies: int
    anomaly_rate: Share | None
    unscored: int
    unscored_rate: Share | None
    cost_usd: float | None
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None


class ChangeAnswer(ProjectAnswer):
    """The largest change: the leading series of the worst incident, or Tier 2 (Tier 1 without a judge) of the last days."""

    series: str = Field(examples=["tier2", "anomaly_spike", "unsafe"])
    name: str
    before: float = Field(description="Level before the incident's first day, or of the days before the last ones.")
    after: float
    since: date | None = Field(
        description="The incident's first day; null for the last days, of which no rule says that they differ."
    )
    incident: str | None = Field(description="Id of the incident; null without one.")
    agent: str | None = Field(description="Agent of a series of runs.")
    now: float | None = Field(
        description="Level of the last days where the incident began before them; null otherwise, and for series of runs."
    )
    levels: list[float | None] = Field(
        description=f"Levels of the last {LEVEL_DAYS} days, the newest last; null for a day without one. Empty for series of runs."
    )


class ProjectCheckAnswer(ProjectAnswer):
    """The newest check for drift and anomaly spikes. Without one, the absence of incidents means nothing."""

    state: CheckState = Field(
        description="off: the policy switches auditing off; nothing: no scores; never: not checked yet; behind: newer exchanges "
        "exist; learning: the history is shorter than a full baseline; quiet: nothing found; found: there are findings."
    )
    checked_at: Moment | None = Field(description="Time of the check; null before the first one.")
    days: int | None = Field(description="Days of comparable scores, at most baselineDays.")
    baseline_days: int | None = Field(description="Days of a full baseline.")
    not_compared: list[str] = Field(
        description="What is not compared since when, and why, a sentence each: a new judge, other judges, too few days, agents beyond the "
        "limit, agents that stopped, missing scores."
    )


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
    before: BeforeAnswer
    change: ChangeAnswer | None = Field(description="Null where nothing is known of the days before.")
    check: ProjectCheckAnswer


class ProjectsAnswer(Answer):
    """Projects by name."""

    projects: list[ProjectHealthAnswer]
    count: int
    next_cursor: NextCursor


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
) -> ProjectsAnswer:
    """List every project that the caller may see with its health: those with records, and those with a connection.

    What is recent counts back from today, also for a project that has fallen silent; `until` asks for the days up to another one.
    """
    rows = await project_rows(services, caller.project, until)
    wanted = [row for row in rows if health in (None, row["health"]) and (cursor is None or row["project"] > cursor.id)]
    shown, following = page_of(wanted, limit, lambda row: Place(EARLIEST, row["project"]))
    shown = await rows_with_changes(services, shown, caller.project)
    blind = await services.ask(lambda cursor: blind_spots(cursor, shown, caller.project))
    return ProjectsAnswer(
        projects=[_answer(row, blind[row["project"]]) for row in shown], count=len(shown), next_cursor=following
    )


def _answer(row: Row, blind: Sequence[str]) -> ProjectHealthAnswer:
    recent = {name.removeprefix("recent_"): value for name, value in row.items() if name.startswith("recent_")}
    recent |= {f"avg_{tier}": recent[tier] for tier in ("tier1", "tier2", "tier2_5", "tier3")}
    recent |= {"last_until": last_until(row)}
    recent |= {"anomaly_rate": _rounded(anomalous_share(row)), "unscored_rate": _rounded(unscored_share(row))}
    before = {name.removeprefix("before_"): value for name, value in row.items() if name.startswith("before_")}
    before |= {f"avg_{tier}": before[tier] for tier in ("tier1", "tier2", "tier2_5", "tier3")}
    before |= {
        "anomaly_rate": _rounded(anomalous_share(row, "before")),
        "unscored_rate": _rounded(unscored_share(row, "before")),
    }
    change = row.get("change")
    check = {**row, "state": check_state(row), "days": row["check_days"], "not_compared": blind}
    parts = {
        "recent": {**recent, "days": RECENT_DAYS},
        "before": before,
        "change": None if change is None else msgspec.structs.asdict(change),
        "check": check,
    }
    return ProjectHealthAnswer.model_validate({**row, **parts})


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
