"""Agent health: readiness and trust of each agent of a project, run by run, and repeated failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from analytics.queries import query_rows
from audit.diagnosis.diagnosis import LOWEST_TRUST
from service.http.context import Services
from service.pages.charts.charts import Chart, Point, line, sparkline
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
LENGTHS = (100, 250, 1000)
_CHARTED, _LISTED = 40, 50
"""Runs of an agent in its chart, and runs in the table."""
_AGENTS = 12
"""Agents with a chart on the page of all; the others are in the table, and have a chart on their own page."""
_REACHES = (60, 100)
"""Numbers that charts of trust include in any case: from below the lowest possible trust up to 100."""
NAMELESS = "(no name)"


@dataclass(frozen=True, slots=True)
class AgentTrust:
    """An agent over the runs that are shown."""

    name: str
    runs: int
    newest: Row
    change: float | None
    """Of the newest run, from the previous one."""
    lowest: float | None
    lowest_run: str | None
    """Id of the newest run that has it."""
    unsafe: int
    repeated: int
    """Runs with the failure of the previous run."""
    spark: Markup
    chart: Markup


@router.get("/projects/{project}/agents")
async def agents(
    request: Request,
    _: Viewer,
    project: ShownProject,
    services: Services,
    agent: Annotated[str | None, Query(max_length=512, description="Only this agent.")] = None,
    runs: Annotated[int, Query(ge=1, le=LENGTHS[-1], description="Number of the project's newest runs.")] = LENGTHS[0],
) -> HTMLResponse:
    """Show the newest runs by agent, the agent with the most unsafe runs first."""
    rows = await services.ask(lambda cursor: query_rows(cursor, "run_history", {"project": project, "limit": runs}))
    found = agents_of(rows)
    chosen = [one for one in found if agent is None or one.name == agent]
    listed = [row for row in rows if agent is None or row["agent"] == agent]
    values = {
        "project": project,
        "agent": agent,
        "agents": found,
        "shown": chosen[:_AGENTS],
        "without_chart": len(chosen) - len(chosen[:_AGENTS]),
        "rows": listed[:_LISTED],
        "left_out": len(listed) - len(listed[:_LISTED]),
        "runs": runs,
        "lengths": LENGTHS,
        "is_whole": len(rows) < runs,
        "nameless": NAMELESS,
        "lowest_trust": LOWEST_TRUST,
    }
    return page(request, "agent_health.html", values)


def agents_of(rows: Sequence[Row]) -> list[AgentTrust]:
    """Return the agents of runs, newest run first: the most unsafe runs first, then the lowest recent trust."""
    by_agent: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_agent[row["agent"]].append(row)
    found = [_agent(name, runs, place) for place, (name, runs) in enumerate(sorted(by_agent.items()))]
    return sorted(found, key=lambda one: (-one.unsafe, _worst_last(one.newest["mean_of_five"]), one.name))


def _worst_last(mean: float | None) -> float:
    return 1000.0 if mean is None else mean


def _agent(name: str, runs: Sequence[Row], place: int) -> AgentTrust:
    known = [row for row in runs if row["trust_score"] is not None]
    worst = min(known, key=lambda row: row["trust_score"], default=None)
    shown = name or NAMELESS
    points = [Point(row["run_id"], row["trust_score"], row["run_id"].removeprefix("run_")) for row in reversed(runs[:_CHARTED])]
    unsafe = frozenset(row["run_id"] for row in runs if row["readiness_level"] == "unsafe_for_production")
    chart = Chart(
        key=f"trust-{place}",
        title=f"Trust of {shown} by run",
        words=f"{len(points)} runs, the newest on the right; diamonds are runs that are unsafe for production.",
        column="Trust",
        first="Run",
        digits=0,
        limits=(0, 100),
        reaches=_REACHES,
        marked="unsafe",
    )
    return AgentTrust(
        name=name,
        runs=len(runs),
        newest=runs[0],
        change=runs[0]["change"],
        lowest=worst["trust_score"] if worst else None,
        lowest_run=worst["run_id"] if worst else None,
        unsafe=len(unsafe),
        repeated=sum(bool(row["repeated"]) for row in runs),
        spark=sparkline([point.value for point in points], f"Trust of {shown} by run", _REACHES),
        chart=line(chart, points, marked=unsafe),
    )
