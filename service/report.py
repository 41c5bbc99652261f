"""The fleet report: which sessions failed and why, how far each agent can be trusted over time, and what to ask next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from analytics.queries import query_rows
from analytics.store import Store
from service.runs import runs_of
from service.terminal import MISSING, SEVERITY_STYLES, table

FAILED_SHOWN = 12
LEVELS = {"unsafe_for_production": "unsafe", "review_recommended": "review"}
"""The readiness levels of failed sessions, in one word."""
QUERIES = (
    "SELECT agent, count(*) AS runs, avg(trust_score)::INT AS trust FROM diagnoses GROUP BY agent ORDER BY trust",
    "SELECT c.type, c.severity, count(*) AS sessions FROM diagnoses, unnest(failure_causes) AS u(c) GROUP BY ALL ORDER BY ALL",
    "SELECT exchange_at::DATE AS day, count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies FROM scores GROUP BY day ORDER BY day",
)
"""Three questions to begin with; a test runs each."""


def fleet_report(store: Store, database: Path, project: str, program: str) -> RenderableType:
    """The report on one project; `program` is how the reader starts the command line."""
    cursor = store.cursor()
    failed = query_rows(cursor, "failed_sessions", {"project": project, "limit": 1_000_000})
    parts = [
        _heading("Sessions that are not ready, worst first"),
        _failed_table(failed, {row["session_id"]: row["run_id"] for row in runs_of(store, project)}),
        _heading("What goes wrong with which agent"),
        _failures_table(query_rows(cursor, "failures_by_agent", {"project": project})),
        _heading("Trust per agent, week by week (in brackets: runs unsafe for production)"),
        _trust_table(query_rows(cursor, "trust_over_time", {"project": project})),
        _heading("What was sampled and why"),
        _sampling_table(query_rows(cursor, "sampling_mix", {"project": project})),
        _heading("Look closer"),
        *[Text(line) for line in _next_steps(program, database)],
    ]
    return Group(*parts)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _failed_table(rows: Sequence[Mapping[str, Any]], run_ids: Mapping[str, str]) -> RenderableType:
    headers = ["run", "trust", "readiness", "agent", "ended", "primary failure", "what was seen"]
    cells = [
        [
            run_ids[row["session_id"]],
            row["trust_score"],
            Text(LEVELS[row["readiness_level"]], style=SEVERITY_STYLES[row["readiness_level"]]),
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


def _next_steps(program: str, database: Path) -> list[str]:
    commands = ["run run_001", "runs", "scores --anomalies", *[f'sql "{query}"' for query in QUERIES]]
    return [f"{program} {command} --db {database}" for command in commands]
