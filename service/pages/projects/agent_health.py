"""Agent health: is each agent of a project better since its last version; readiness and trust run by run, and repeated failures."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from analytics.queries import query_rows
from audit.diagnosis.diagnosis import LOWEST_TRUST
from schemas.lazy import duckdb
from service.pages.charts import Chart, Mark, line, marks_between, spark
from service.pages.periods import ListPeriod, range_control
from service.pages.rendering import page
from service.pages.run_view import run_point
from service.pages.viewing import ShownProject, Viewer
from service.read.versions import agent_versions
from service.text.window import Window, bounds, last_period, listed_window, quarter_to
from service.web.context import Services

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
LENGTHS = (100, 250, 1000)
_CHARTED, _LISTED = 40, 50
"""Runs of an agent in its chart, and runs in the table."""
_AGENTS = 12
"""Maximum number of agents with a chart on the overview; others are in the table, and have a chart on their own page."""
_REACHES = (60, 100)
"""Numbers that charts of trust always include: from below the lowest possible trust up to 100."""
NAMELESS = "(no name)"
_ANSWERS = ("worse", "mixed", "better", "no difference", "too early", "first")
"""The answers about a version, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class AgentTrust:
    """An agent's figures over the shown runs."""

    name: str
    runs: int
    newest: Row
    """The newest run with evidence, if any has."""
    change: float | None
    """The change from the previous run to that one."""
    lowest: float | None
    lowest_run: str | None
    """Id of the newest run with the lowest trust."""
    unsafe: int
    repeated: int
    """The number of runs that repeat a failure of the previous run."""
    spark: Markup
    chart: Markup


@router.get("/projects/{project}/agents")
async def agents(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    period: ListPeriod,
    agent: Annotated[str | None, Query(max_length=512, description="Only this agent.")] = None,
    runs: Annotated[int, Query(ge=1, le=LENGTHS[-1], description="Number of the project's newest runs.")] = LENGTHS[0],
) -> HTMLResponse:
    """Show the newest runs by agent, the agent with the most unsafe runs first."""
    now = services.engine.now()
    window = listed_window(period, now)
    end, is_pinned = (now, False) if window is None else (window.end - timedelta(microseconds=1), window.is_pinned)
    compared_in = quarter_to(end, is_pinned=is_pinned)

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[list[Row], list[Mark], Window | None]:
        rows = _read_runs(cursor, project, bounds(window), runs)
        last = None
        if window is not None and not rows:
            older = _read_runs(cursor, project, (None, window.start), 1)
            last = last_period(window, older[0]["ended_at"] if older else None)
        return rows, marks_between(cursor, project, [row["ended_at"] for row in rows]), last

    (rows, marks, last), compared = await asyncio.gather(
        services.ask(read),
        services.ask(lambda cursor: agent_versions(cursor, project, compared_in.start, compared_in.end, agent)),
    )
    versions = sorted(compared.agents, key=lambda one: (_ANSWERS.index(one.verdict), one.agent))
    agents = agents_of(project, rows, marks)
    chosen = [one for one in agents if agent is None or one.name == agent]
    listed = [row for row in rows if agent is None or row["agent"] == agent]
    values = {
        "project": project,
        "range": range_control(request, window, now, has_all=True, has_comparison=False, last=last),
        "agent": agent,
        "agents": agents,
        "shown": chosen[:_AGENTS],
        "versions": versions[:_AGENTS],
        "more_versions": len(versions) - len(versions[:_AGENTS]),
        "version_of": {one.agent: one.newest for one in versions},
        "compared_in": compared_in,
        "compared": compared,
        "simulated": sum(version.row["simulated"] for one in versions for version in one.versions),
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


def _read_runs(
    cursor: duckdb.DuckDBPyConnection, project: str, between: tuple[datetime | None, datetime | None], limit: int
) -> list[Row]:
    """Return the newest runs that ended within a period, newest first."""
    return [*query_rows(cursor, "run_history", {"project": project, "from": between[0], "to": between[1], "limit": limit})]


def agents_of(project: str, rows: Sequence[Row], marks: Sequence[Mark] = ()) -> list[AgentTrust]:
    """Return the agents of runs, newest run first: the most unsafe runs first, then the lowest recent trust."""
    by_agent: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_agent[row["agent"]].append(row)
    agents = [
        _build_agent(project, name, runs, place, marks=marks) for place, (name, runs) in enumerate(sorted(by_agent.items()))
    ]
    return sorted(agents, key=lambda one: (-one.unsafe, _order_of_trust(one.newest["mean_of_five"]), one.name))


def _order_of_trust(mean: float | None) -> float:
    return 1000.0 if mean is None else mean


def _build_agent(project: str, name: str, runs: Sequence[Row], position: int, *, marks: Sequence[Mark]) -> AgentTrust:
    scored = [row for row in runs if row["trust_score"] is not None]
    newest = scored[0] if scored else runs[0]
    worst = min(scored, key=lambda row: row["trust_score"], default=None)
    shown = name or NAMELESS
    points = [run_point(project, row) for row in reversed(scored[:_CHARTED])]
    unsafe = frozenset(row["run_id"] for row in runs if row["readiness_level"] == "unsafe_for_production")
    chart = Chart(
        key=f"trust-{position}",
        title=f"Trust of {shown} by run",
        words=f"{len(points)} runs, the newest on the right; diamonds are runs that are unsafe for production.",
        column="Trust",
        first="Run",
        digits=0,
        limits=(0, 100),
        reaches=_REACHES,
        marked="unsafe",
        marks=marks,
    )
    return AgentTrust(
        name=name,
        runs=len(runs),
        newest=newest,
        change=newest["change"],
        lowest=worst["trust_score"] if worst else None,
        lowest_run=worst["run_id"] if worst else None,
        unsafe=len(unsafe),
        repeated=sum(bool(row["repeated"]) for row in runs),
        spark=spark([point.value for point in points], f"Trust of {shown} by run"),
        chart=line(chart, points, marked=unsafe),
    )
