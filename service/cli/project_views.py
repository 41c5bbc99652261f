"""The fleet for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from service.cli.terminal import table
from service.read.project import RECENT_DAYS, Change, Project
from service.text.plain import MISSING
from service.text.rounding import grouped

_NAMED = 5
"""Silent projects that are named."""


def projects_table(projects: Sequence[Project]) -> RenderableType:
    """Show each project on a line; figures, and changes without an incident, cover its last days."""
    cells = [
        [
            project.project,
            project.health,
            grouped(project.open_incidents) if project.open_incidents else MISSING,
            grouped(project.recent.scores),
            grouped(project.recent.anomalies),
            grouped(project.recent.unsafe_runs),
            MISSING if project.last_score_day is None else f"{project.last_score_day}",
            MISSING if project.change is None else _change(project.change),
            ", ".join(project.reasons).replace("_", " ") or MISSING,
        ]
        for project in projects
    ]
    headers = ["project", "health", "open", "exchanges", "anomalies", "unsafe", "last day", "what changed", "why"]
    return table(headers, cells, right=["open", "exchanges", "anomalies", "unsafe"])


def silent_words(projects: Sequence[Project]) -> str:
    """Name the projects without recent scores that had some before, and how to show their newest days; empty without any."""
    silent = {project.project: last for project in projects if (last := project.recent.last_until) is not None}
    if not silent:
        return ""
    names = ", ".join(list(silent)[:_NAMED]) + (f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else "")
    return (
        f"No exchanges in the {RECENT_DAYS} days to {projects[0].recent.until}: {names}. "
        f"The last {RECENT_DAYS} days with data: driftline projects --until {max(silent.values())}"
    )


def _change(change: Change) -> str:
    """Describe a change, as in `tier 2 0.90 → 0.61 since 28 Oct`."""
    before, after = (f"{value:.0%}" if change.is_share else f"{value:.2f}" for value in (change.before, change.after))
    since = "" if change.since is None else f" since {change.since.day} {change.since:%b}"
    return f"{change.name} {before} → {after}{since}"
