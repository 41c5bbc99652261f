"""Agent health: compares each agent's versions, and shows its readiness, trust and repeated failures run by run, and what it does."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
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
from service.pages.listing import Bounds
from service.pages.periods import ListPeriod, range_control
from service.pages.rendering import NOTHING, page
from service.pages.run_view import run_point
from service.pages.viewing import ShownProject, Viewer
from service.read.behaviour import Behaviour, format_behaviour, list_days, read_behaviour
from service.read.cold_days import cold_days
from service.read.versions import agent_versions, sort_by_verdict
from service.text.formats import signed
from service.text.window import Window, bounds, last_period, listed_window, quarter_to
from service.web.context import Services

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_MAX_RUNS = 250
"""The newest runs of the period that are read."""
_MAX_CHART_RUNS = 40
_MAX_TABLE_RUNS = 50
_MAX_CHARTS = 12
"""Agents with a chart on the overview. Others are in the table, and have a chart on their own page."""
_AXIS_RANGE = (60, 100)
"""Range that charts of trust always include. No run has less trust."""
_MAX_MEASURES = 500
"""Measures of an agent in the table of its page; the API has all."""
NO_NAME = "(no name)"


@dataclass(frozen=True, slots=True)
class AgentTrust:
    """An agent's figures over the shown runs."""

    name: str
    runs: int
    newest: Row
    """The newest run with a trust score, or the newest of all if none has one."""
    change: float | None
    """The change of trust from the previous run to the newest."""
    lowest: float | None
    lowest_run: str | None
    """Id of the newest run with the lowest trust."""
    unsafe: int
    repeated: int
    """Number of runs with the same failure as the run before."""
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
) -> HTMLResponse:
    """Show the newest runs by agent, most unsafe runs first."""
    now = services.engine.now()
    window = listed_window(period, now)
    if window is None:
        quarter = quarter_to(now, is_pinned=False)
    else:
        quarter = quarter_to(window.end - timedelta(microseconds=1), is_pinned=window.is_pinned)

    def read_runs(cursor: duckdb.DuckDBPyConnection) -> tuple[list[Row], list[Mark], Window | None]:
        rows = _read_runs(cursor, project, bounds(window), _MAX_RUNS)
        last = None
        if window is not None and not rows:
            older = _read_runs(cursor, project, (None, window.start), 1)
            last = last_period(window, older[0]["ended_at"] if older else None)
        return rows, marks_between(cursor, project, [row["ended_at"] for row in rows]), last

    shown_window = (window or quarter).in_steps()
    (rows, marks, last), behaviour, (comparison, cold) = await asyncio.gather(
        services.ask(read_runs),
        services.ask(lambda cursor: {} if agent is None else compare_behaviour(cursor, project, shown_window, agent)),
        services.ask(
            lambda cursor: (
                agent_versions(cursor, project, quarter.start, quarter.end, agent),
                cold_days(cursor, project, quarter.start, quarter.end),
            )
        ),
    )
    versions = sort_by_verdict(comparison.agents)
    agents = build_agents(project, rows, marks)
    chosen = [entry for entry in agents if agent is None or entry.name == agent]
    table_runs = [row for row in rows if agent is None or row["agent"] == agent]
    values = {
        "project": project,
        "range": range_control(request, window, now, has_all=True, has_comparison=False, last=last),
        "agent": agent,
        "agents": agents,
        "shown": chosen[:_MAX_CHARTS],
        "versions": versions[:_MAX_CHARTS],
        "more_versions": len(versions) - len(versions[:_MAX_CHARTS]),
        "version_of": {entry.agent: entry.newest for entry in versions},
        "quarter": quarter,
        "window": shown_window,
        **limit_behaviour(behaviour, _MAX_MEASURES),
        "comparison": comparison,
        "cold": cold,
        "simulated": sum(version.row["simulated"] for entry in versions for version in entry.versions),
        "without_chart": len(chosen) - len(chosen[:_MAX_CHARTS]),
        "rows": table_runs[:_MAX_TABLE_RUNS],
        "left_out": len(table_runs) - len(table_runs[:_MAX_TABLE_RUNS]),
        "runs": _MAX_RUNS,
        "is_complete": len(rows) < _MAX_RUNS,
        "no_name": NO_NAME,
        "lowest_trust": LOWEST_TRUST,
    }
    return page(request, "agent_health.html", values)


def compare_behaviour(
    cursor: duckdb.DuckDBPyConnection, project: str, window: Window, agent: str | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return what agents did in a window, those with most turns first, compared with the preceding period if requested.

    The versions of an agent stand beside each other for each measure, the oldest first. Measures that were always 0 are left out.
    """
    entries, before = (
        [entry for entry in read_behaviour(cursor, project, start, end) if agent is None or entry.agent == agent]
        for start, end in (
            (window.start, window.end),
            (window.before.start, window.before.end if window.compare else window.before.start),
        )
    )
    levels = {(entry.agent, entry.version, entry.series): format_behaviour(entry) for entry in before}
    nonzero = {(entry.agent, entry.series) for entry in (*entries, *before) if entry.level}
    days = (window.last - window.first).days + 1
    turns = Counter[str]()
    by_agent: dict[str, list[dict[str, Any]]] = {}
    for entry in sorted(entries, key=lambda entry: (not entry.is_share, entry.series, entry.days[0].day, entry.version)):
        turns[entry.agent] += entry.count
        if (entry.agent, entry.series) in nonzero:
            by_agent.setdefault(entry.agent, []).append(
                {
                    "entry": entry,
                    "level": format_behaviour(entry),
                    "before": levels.get((entry.agent, entry.version, entry.series)),
                    "spark": spark(list_days(entry, window.first, days), f"{entry.name} by day, {window.words}"),
                }
            )
    return dict(sorted(by_agent.items(), key=lambda item: (-turns[item[0]], item[0])))


def _pair_versions(measures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measures of an agent with the two newest versions side by side: their names, and a row for each measure."""
    first_days: dict[str, Any] = {}
    for measure in measures:
        entry = measure["entry"]
        first_days[entry.version] = min(entry.days[0].day, first_days.get(entry.version, entry.days[0].day))
    newest = sorted(first_days, key=lambda version: (first_days[version], version))[-2:]
    by_series: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for measure in measures:
        by_series[measure["entry"].series][measure["entry"].version] = measure
    rows = []
    for by_version in by_series.values():
        now = by_version.get(newest[-1])
        before = by_version.get(newest[0]) if len(newest) > 1 else None
        newer = now or before
        if newer is not None:
            change = _format_change(before["entry"], now["entry"]) if before and now else NOTHING
            rows.append({"name": newer["entry"].name, "now": now, "before": before, "change": change, "spark": newer["spark"]})
    return {"now": newest[-1], "before": newest[0] if len(newest) > 1 else None, "rows": rows}


def _format_change(before: Behaviour, now: Behaviour) -> str:
    """Format the change of a share in points, or of a size in percent."""
    if now.is_share:
        return f"{signed(100 * (now.level - before.level), 1)} points"
    return f"{signed(100 * (now.level - before.level) / before.level)}%" if before.level else NOTHING


def read_trust_chart(
    cursor: duckdb.DuckDBPyConnection, project: str, agent: str, between: Bounds, *, number: int
) -> Markup | None:
    """Return the chart of an agent's trust in a project, run by run; None without a run with trust. The page has one of each number."""
    rows = [row for row in _read_runs(cursor, project, between, _MAX_RUNS) if row["agent"] == agent]
    if all(row["trust_score"] is None for row in rows):
        return None
    marks = marks_between(cursor, project, [row["ended_at"] for row in rows])
    return _build_agent(project, agent, rows, number, marks=marks).chart


def limit_behaviour(behaviour: Mapping[str, list[dict[str, Any]]], limit: int) -> dict[str, Any]:
    """Return the template's values about what agents did, by agent or project, with at most `limit` measures."""
    shown: dict[str, dict[str, Any]] = {}
    left_out = 0
    for name, measures in behaviour.items():
        paired = _pair_versions(measures)
        rows = paired["rows"][: max(0, limit)]
        limit -= len(rows)
        left_out += len(paired["rows"]) - len(rows)
        if rows:
            shown[name] = {**paired, "rows": rows}
    return {"behaviour": shown, "more_behaviour": left_out}


def _read_runs(
    cursor: duckdb.DuckDBPyConnection, project: str, between: tuple[datetime | None, datetime | None], limit: int
) -> list[Row]:
    """Return the newest runs that ended within a period, newest first."""
    return [*query_rows(cursor, "run_history", {"project": project, "from": between[0], "to": between[1], "limit": limit})]


def build_agents(project: str, rows: Sequence[Row], marks: Sequence[Mark] = ()) -> list[AgentTrust]:
    """Return the agents of runs, those with the most unsafe runs first, then those with the lowest recent trust."""
    by_agent: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_agent[row["agent"]].append(row)
    agents = [
        _build_agent(project, name, runs, number, marks=marks) for number, (name, runs) in enumerate(sorted(by_agent.items()))
    ]
    return sorted(agents, key=_sort_key)


def _sort_key(agent: AgentTrust) -> tuple[int, float, str]:
    mean = agent.newest["mean_of_five"]
    return -agent.unsafe, math.inf if mean is None else mean, agent.name


def _build_agent(project: str, name: str, runs: Sequence[Row], number: int, *, marks: Sequence[Mark]) -> AgentTrust:
    scored = [row for row in runs if row["trust_score"] is not None]
    newest = scored[0] if scored else runs[0]
    worst = min(scored, key=lambda row: row["trust_score"], default=None)
    display_name = name or NO_NAME
    points = [run_point(project, row) for row in reversed(scored[:_MAX_CHART_RUNS])]
    unsafe = frozenset(row["run_id"] for row in runs if row["readiness_level"] == "unsafe_for_production")
    chart = Chart(
        key=f"trust-{number}",
        title=f"Trust of {display_name} by run",
        words=f"{len(points)} runs, the newest on the right; diamonds are runs that are unsafe for production.",
        column="Trust",
        first="Run",
        digits=0,
        limits=(0, 100),
        reaches=_AXIS_RANGE,
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
        spark=spark([point.value for point in points], f"Trust of {display_name} by run"),
        chart=line(chart, points, marked=unsafe),
    )
