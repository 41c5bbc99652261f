"""Summary of an import: findings in its projects, and commands to copy that show more."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from analytics.queries import query_rows
from audit.drift.change_detector import MIN_DAYS_BEFORE
from audit.drift.consecutive_days import DAYS
from audit.drift.series import REFERENCE_DAYS
from schemas.lazy import duckdb
from schemas.records import Incident
from service.cli.incident_views import check_limits, describe_state
from service.cli.terminal import heading
from service.read.project import format_minute
from service.read.runs import RunFilter, worst_runs
from service.setup.workspace import Workspace
from service.text.formats import counted, plain
from streams.watch.checking import CheckResult
from streams.watch.history import ProjectHistory
from streams.watch.lifecycle import CONFIRMED

MAX_AGENTS = 5
"""Maximum number of agents whose failures are listed; the others are counted."""
UNSAFE_SHARE = 0.2
"""Share of unsafe runs of an agent from which the thresholds may not fit the agent, so that `tune` is suggested."""
MAX_INCIDENTS = 10
"""Maximum number of incidents listed per project; the others are counted."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The findings of the checks after an import."""

    histories: Sequence[ProjectHistory]
    """The checks of the imported days; empty if no imported day is over."""
    checked: Sequence[CheckResult]
    """The last check, as of now."""

    def incidents(self, project: str) -> list[Incident]:
        """Return the incidents in a project's history in their final state, and newly opened ones, oldest first."""
        incidents: dict[str, Incident] = {}
        for history in self.histories:
            if history.project == project:
                incidents |= {incident.incident_id: incident for incident in history.incidents}
        for check in self.checked:
            if check.project == project:
                ids = incidents.keys() | {incident.incident_id for incident in check.opened}
                incidents |= {incident.incident_id: incident for incident in check.incidents if incident.incident_id in ids}
        return sorted(
            incidents.values(), key=lambda incident: (incident.first_day or incident.detected_at, incident.incident_id)
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return the checks of the imported days for scripts."""
        return [
            {
                "project": history.project,
                "days": len(history.days),
                "first_day": history.days[0],
                "last_day": history.days[-1],
                "checks": history.checks,
                "waiting": history.waiting,
                "known_days": history.known_days,
                "known_since": history.known_since,
                "incidents": [_incident_json(incident) for incident in self.incidents(history.project)],
            }
            for history in self.histories
        ]


def import_findings(workspace: Workspace, drift: Drift, program: str) -> Iterator[RenderableType]:
    """Yield lines about the project's runs and drift, and commands that show more.

    `program` is the text with which the user starts the command line.
    """
    settings, project = workspace.settings, workspace.settings.project
    cursor = workspace.store.cursor()
    agents = query_rows(cursor, "readiness_counts", {"project": project})
    if not agents:
        yield heading("In short")
        yield "No session has ended yet, so there is no run to diagnose. To end a session, use driftline finalize SESSION."
        return
    yield heading(f"In short, checked as of {format_minute(workspace.now())}")
    yield _runs_line(agents)
    yield from _agent_lines(cursor, project, agents)
    yield from drift_lines(drift)
    yield heading("Look closer")
    yield from format_commands(program, _steps(cursor, project, agents, shlex.quote(str(settings.database))))
    yield from format_commands(program, incident_steps(drift, settings.database))
    yield heading("See it in a browser")
    yield from pages_steps(program, settings.database, settings.policy)


def _runs_line(agents: list[dict[str, Any]]) -> str:
    """Return the numbers of runs by verdict."""
    total = sum(row["runs"] for row in agents)
    unsafe = sum(row["unsafe"] for row in agents)
    review = sum(row["review"] for row in agents)
    ready = sum(row["ready"] for row in agents)
    without_evidence = total - unsafe - review - ready
    verdicts = f"{unsafe} unsafe for production, {review} to review, {ready} ready"
    if without_evidence:
        verdicts += f", {without_evidence} without evidence"
    return f"{counted(total, 'run')} of {counted(len(agents), 'agent')}: {verdicts}"


def _agent_lines(cursor: duckdb.DuckDBPyConnection, project: str, agents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the failures of each agent, the agents with the most unsafe runs first."""
    failures: dict[str, list[str]] = {}
    for row in query_rows(cursor, "failures_by_agent", {"project": project}):
        critical = f", {row['critical']} critical" if row["critical"] else ""
        failures.setdefault(row["agent"], []).append(f"{row['failure_type']} in {counted(row['sessions'], 'run')}{critical}")
    failing = [row for row in agents if (row["agent"] or "") in failures]
    for row in failing[:MAX_AGENTS]:
        name = row["agent"] or ""
        yield f"{plain(name, 64) or 'runs without an agent'} ({counted(row['runs'], 'run')}): {'; '.join(failures[name])}"
    if len(failing) > MAX_AGENTS:
        yield f"… and {counted(len(failing) - MAX_AGENTS, 'more agent')} with failures"


def drift_lines(drift: Drift) -> Iterator[str]:
    """Yield lines about the drift found after an import, project by project."""
    projects_with_history = {history.project for history in drift.histories}
    for history in drift.histories:
        yield from _history_lines(history, drift.incidents(history.project))
    for check in drift.checked:
        if check.project in projects_with_history:
            continue
        if check.project_check is None:
            yield (
                f"{plain(check.project, 64)}: not checked for drift: no new record is from a past day, "
                f"and the last {DAYS} days have no data"
            )
            continue
        yield from (f"{plain(check.project, 64)}: {finding.title}" for finding in check.findings)
        if not check.findings:
            yield f"{plain(check.project, 64)}: checked for drift, nothing found"
    # The newest check with data knows what was not compared.
    newest = {history.project: history.last for history in drift.histories}
    newest |= {check.project: check for check in drift.checked if check.project_check is not None}
    yield from check_limits([check for check in newest.values() if check is not None and check.project_check is not None])


def incident_steps(drift: Drift, database: Path) -> Iterator[tuple[str, str]]:
    """Yield the purpose and the command to list the incidents of each project."""
    for history in drift.histories:
        if drift.incidents(history.project):
            yield "incidents of drift", f"incidents list --project {history.project} --db {shlex.quote(str(database))}"


def _history_lines(history: ProjectHistory, incidents: Sequence[Incident]) -> Iterator[str]:
    project, first, last = plain(history.project, 64), history.days[0], history.days[-1]
    if history.waiting:
        exchanges = counted(history.waiting, "exchange")
        yield (
            f"{project}: {first} to {last} not checked for drift yet: {exchanges} of these days "
            f"{'waits' if history.waiting == 1 else 'wait'} for the judge. The server checks them once they have scores."
        )
        return
    if history.last is None:
        yield f"{project}: not checked for drift: the policy switches its audit off"
        return
    counts = counted(len(incidents), "incident") if incidents else "nothing found"
    days = (
        f"on {first}" if first == last else f"day by day from {first} to {last}, {counted(len(history.days), 'day')} with data"
    )
    yield f"{project}: checked for drift {days}: {counts}"
    yield from map(_incident_line, incidents[:MAX_INCIDENTS])
    if len(incidents) > MAX_INCIDENTS:
        yield f"  … and {len(incidents) - MAX_INCIDENTS} more"
    if history.known_days <= MIN_DAYS_BEFORE or (last - history.known_since).days < REFERENCE_DAYS:
        yield (
            f"  The history is too short to detect gradual changes: it has {counted(history.known_days, 'day')} with data since "
            f"{history.known_since}. They are compared with {MIN_DAYS_BEFORE} days with data from {REFERENCE_DAYS} days earlier. "
            "Import older data, or check again later."
        )


def _incident_line(incident: Incident) -> str:
    severity = incident.severity if incident.confidence == CONFIRMED else f"suspected {incident.severity}"
    since = "" if incident.first_day is None else f" since {incident.first_day:%Y-%m-%d}"
    until = "" if incident.last_day is None else f" until {incident.last_day:%Y-%m-%d}"
    return f"  {severity}{since}{until}, {describe_state(incident)}: {plain(incident.title, 300)}"


def _incident_json(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.incident_id,
        "title": incident.title,
        "severity": incident.severity,
        "confidence": incident.confidence,
        "status": incident.status,
        "resolution": incident.resolution,
        "first_day": None if incident.first_day is None else incident.first_day.date(),
        "last_day": None if incident.last_day is None else incident.last_day.date(),
        "detected_at": incident.detected_at,
    }


def _steps(
    cursor: duckdb.DuckDBPyConnection, project: str, agents: list[dict[str, Any]], database: str
) -> Iterator[tuple[str, str]]:
    """Yield the purposes and texts of commands that show more."""
    [worst_run] = worst_runs(cursor, project, RunFilter(), None, 1)
    is_failing = any(row["unsafe"] or row["review"] for row in agents)
    purpose = "the worst run, with causes and evidence" if is_failing else "a run, with its verdict"
    yield purpose, f"run {worst_run.run_id} --project {project} --db {database}"
    yield "every run", f"runs --project {project} --db {database}"
    if any(row["unsafe"] >= UNSAFE_SHARE * row["runs"] and row["unsafe"] for row in agents):
        yield "whether the thresholds fit these agents", f"tune --project {project} --db {database}"


PROGRAM = "driftline"


def pages_steps(program: str, database: Path, policy: Path | None, as_of: date | None = None) -> list[str]:
    """Return commands that lead to the pages. With `as_of`, the server shows them as of that day."""
    database_option = f"--db {shlex.quote(str(database))}"
    policy_option = "" if policy is None else f" --policy {shlex.quote(str(policy))}"
    as_of_option = "" if as_of is None else f" --as-of {as_of}"
    return format_commands(
        program,
        [
            ("a token, and a link that signs in once; both are shown once", f"operators add me {database_option}"),
            (
                "the server: open the link, or paste the token at the printed address; press Ctrl-C to stop",
                f"serve {database_option}{policy_option}{as_of_option}",
            ),
        ],
    )


def format_commands(program: str, steps: Iterable[tuple[str, str]]) -> list[str]:
    """Return commands to copy, each below a comment with its purpose."""
    return [line for purpose, command in steps for line in (f"# {purpose}", f"{program} {command}")]


def program_name() -> str:
    """Return the text that starts the command line: its name if that is on the path, otherwise the path with which it was started."""
    if shutil.which(PROGRAM):
        return PROGRAM
    script = Path(sys.argv[0])
    if script.suffix == ".py":
        return f"{shlex.quote(sys.executable)} -m service.cli.main"
    return shlex.quote(str(script))
