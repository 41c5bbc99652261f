"""The fleet report: failed sessions with their causes, trust of each agent over time, and next steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from analytics.queries import query_rows
from analytics.store.store import Store
from service.cli.terminal import SEVERITY_STYLES, table
from service.read.runs import runs_of
from service.text.plain import MISSING

FAILED_SHOWN = 12
LEVELS = {"unsafe_for_production": "unsafe", "review_recommended": "review"}
"""The readiness levels of failed sessions, in one word."""


def fleet_report(store: Store, project: str) -> RenderableType:
    """The report on the imported sessions of one project."""
    cursor = store.cursor()
    failed = query_rows(cursor, "failed_sessions", {"project": project, "limit": 1_000_000})
    parts = [
        heading("Sessions that are not ready, worst first"),
        _failed_table(failed, {run.session_id: run.run_id for run in runs_of(store, project)}),
        heading("Failures by agent"),
        _failures_table(query_rows(cursor, "failures_by_agent", {"project": project})),
        heading("Trust per agent, week by week (in brackets: runs unsafe for production)"),
        _trust_table(query_rows(cursor, "trust_over_time", {"project": project})),
        heading("Exchanges that a judge would have seen, by reason (an import asks no judge: they stay unscored)"),
        _sampling_table(query_rows(cursor, "sampling_mix", {"project": project})),
    ]
    return Group(*parts)


def worst_run(store: Store, project: str) -> str:
    """Return the id of the run with the worst failures."""
    (failed,) = query_rows(store.cursor(), "failed_sessions", {"project": project, "limit": 1})
    return next(run.run_id for run in runs_of(store, project) if run.session_id == failed["session_id"])


def heading(text: str) -> Text:
    """The heading of a part of a report."""
    return Text(f"\n{text}", style="bold")


def _failed_table(rows: Sequence[Mapping[str, Any]], run_ids: Mapping[str, str]) -> RenderableType:
    headers = ["run", "readiness", "trust", "agent", "ended", "primary failure", "finding"]
    cells = [
        [
            run_ids[row["session_id"]],
            Text(LEVELS[row["readiness_level"]], style=SEVERITY_STYLES[row["readiness_level"]]),
            row["trust_score"],
            row["agent"],
            f"{row['ended_at']:%m-%d}",
            row["primary_failure_type"],
            row["description"],
        ]
        for row in rows[:FAILED_SHOWN]
    ]
    shown = table(headers, cells, right=["trust"], cut_last=True)
    if len(rows) <= FAILED_SHOWN:
        return shown
    return Group(shown, Text(f"… and {len(rows) - FAILED_SHOWN} more", style="dim"))


def _failures_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    cells = [[row["agent"], row["failure_type"], row["sessions"], row["critical"], row["worst_impact"]] for row in rows]
    numbers = ["sessions", "critical", "worst impact"]
    return table(["agent", "failure", *numbers], cells, right=numbers)


def _trust_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    weeks = sorted({row["week"] for row in rows})
    by_agent: dict[str, dict[Any, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_agent[row["agent"]][row["week"]] = row
    cells = [[agent, *[_trust_cell(found.get(week)) for week in weeks]] for agent, found in by_agent.items()]
    return table(["agent", *[f"week of {week:%m-%d}" for week in weeks]], cells)


def _trust_cell(row: Mapping[str, Any] | None) -> Text:
    if row is None or row["mean_trust"] is None:
        return Text(MISSING, style="dim")
    unsafe, runs = row["unsafe_runs"], row["runs"]
    style = "red" if unsafe > runs / 4 else "yellow" if unsafe else "green"
    return Text(f"{row['mean_trust']:5.1f}" + (f" ({unsafe})" if unsafe else ""), style=style)


def _sampling_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    cells = [
        [row["sampling_reason"], row["disposition"], row["exchanges"], f"{row['mean_tier1']:.3f}", row["anomalies"]]
        for row in rows
    ]
    return table(
        ["sampling", "outcome", "exchanges", "mean tier 1", "anomalies"], cells, right=["exchanges", "mean tier 1", "anomalies"]
    )
