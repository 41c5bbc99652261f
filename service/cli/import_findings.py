"""Summary of an import: findings in the project it filled, and where to look next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from service.cli.incident_views import check_limits
from service.cli.next_steps import pages_steps, typed
from service.cli.terminal import counted, plain
from service.documents.project_checks import moment_words
from service.documents.runs import Wanted, worst_runs
from service.reports.fleet_report import heading
from service.workspace import Workspace
from streams.watch.checking import Checked

AGENTS_NAMED = 5
"""Agents whose failures are named; the others are counted."""
UNSAFE_SHARE = 0.2
"""Share of an agent's runs above which unsafe ones say more about the thresholds than about the agent."""


def import_findings(workspace: Workspace, checked: list[Checked], program: str) -> Iterator[RenderableType]:
    """Return lines on the runs of the project that an import filled, on its drift, and commands that show more.

    `checked` is what a check of the project found; `program` is how the reader starts the command line.
    """
    settings, project = workspace.settings, workspace.settings.project
    cursor = workspace.store.cursor()
    agents = query_rows(cursor, "readiness_counts", {"project": project})
    if not agents:
        yield heading("In short")
        yield "No session has ended yet, so there is no run to diagnose. driftline finalize SESSION ends one."
        return
    yield heading(f"In short, checked as of {moment_words(workspace.now())}")
    yield _runs_line(agents)
    yield from _agent_lines(cursor, project, agents)
    yield from drift_lines(project, checked)
    yield heading("Look closer")
    yield from typed(program, _steps(cursor, project, agents, shlex.quote(str(settings.database))))
    yield heading("See it in a browser")
    yield from pages_steps(program, settings.database, settings.policy)


def _runs_line(agents: list[dict[str, Any]]) -> str:
    total, unsafe, review, ready = (sum(row[name] for row in agents) for name in ("runs", "unsafe", "review", "ready"))
    rest = total - unsafe - review - ready
    without = f", {rest} without evidence" if rest else ""
    return (
        f"{counted(total, 'run')} of {counted(len(agents), 'agent')}: {unsafe} unsafe for production, {review} to review, "
        f"{ready} ready{without}"
    )


def _agent_lines(cursor: duckdb.DuckDBPyConnection, project: str, agents: list[dict[str, Any]]) -> Iterator[str]:
    """Return the failures of each agent, the agents with the most unsafe runs first."""
    found: dict[str, list[str]] = {}
    for row in query_rows(cursor, "failures_by_agent", {"project": project}):
        critical = f", {row['critical']} critical" if row["critical"] else ""
        found.setdefault(row["agent"], []).append(f"{row['failure_type']} in {counted(row['sessions'], 'run')}{critical}")
    failing = [row for row in agents if (row["agent"] or "") in found]
    for row in failing[:AGENTS_NAMED]:
        name = row["agent"] or ""
        yield f"{plain(name, 64) or 'runs without an agent'} ({counted(row['runs'], 'run')}): {'; '.join(found[name])}"
    if len(failing) > AGENTS_NAMED:
        yield f"… and {counted(len(failing) - AGENTS_NAMED, 'agent')} more agents with failures"


def drift_lines(project: str, checked: list[Checked]) -> Iterator[str]:
    """Return lines on the drift that a check of a project found."""
    findings = [f"{one.project}: {finding.title}" for one in checked for finding in one.findings]
    yield from findings
    if not findings and all(one.looked for one in checked):
        yield f"{project}: checked for drift, nothing found"
    yield from check_limits(checked)


def _steps(
    cursor: duckdb.DuckDBPyConnection, project: str, agents: list[dict[str, Any]], database: str
) -> Iterator[tuple[str, str]]:
    """Return commands that show more, each with what it shows."""
    (worst,) = worst_runs(cursor, project, Wanted(), None, 1)
    is_failing = any(row["unsafe"] or row["review"] for row in agents)
    shown = "the worst run, with causes and evidence" if is_failing else "a run, with its verdict"
    yield shown, f"run {worst['run_id']} --project {project} --db {database}"
    yield "every run", f"runs --project {project} --db {database}"
    if any(row["unsafe"] >= UNSAFE_SHARE * row["runs"] and row["unsafe"] for row in agents):
        yield "whether the thresholds fit these agents", f"tune --project {project} --db {database}"
