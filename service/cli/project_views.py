"""The fleet for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from service.cli.terminal import table
from service.read.fleet.changes import Change
from service.read.project_checks import RECENT_DAYS, last_until
from service.text.plain import MISSING
from service.text.rounding import grouped

Row = Mapping[str, Any]
_NAMED = 5
"""Silent projects that are named."""


def projects_table(rows: Sequence[Row]) -> RenderableType:
    """Show each project on a line; figures are of its last days, and so is a change that is not an incident's."""
    cells = [
        [
            row["project"],
            row["health"],
            grouped(row["open_incidents"]) if row["open_incidents"] else MISSING,
            grouped(row["recent_scores"]),
            grouped(row["recent_anomalies"]),
            grouped(row["recent_unsafe_runs"]),
            MISSING if row["last_score_day"] is None else f"{row['last_score_day']:%Y-%m-%d}",
            MISSING if row["change"] is None else _change(row["change"]),
            ", ".join(row["reasons"]).replace("_", " ") or MISSING,
        ]
        for row in rows
    ]
    headers = ["project", "health", "open", "exchanges", "anomalies", "unsafe", "last day", "what changed", "why"]
    return table(headers, cells, right=["open", "exchanges", "anomalies", "unsafe"])


def silent_words(rows: Sequence[Row]) -> str:
    """Say which projects have no score in their last days but had some before, and how to show the days up to the newest; empty without any."""
    silent = {row["project"]: newest for row in rows if (newest := last_until(row)) is not None}
    if not silent:
        return ""
    names = ", ".join(list(silent)[:_NAMED]) + (f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else "")
    return (
        f"No exchanges in the {RECENT_DAYS} days to {rows[0]['recent_until']}: {names}. "
        f"The last {RECENT_DAYS} days with data: driftline projects --until {max(silent.values())}"
    )


def _change(change: Change) -> str:
    """Say what changed, as `tier 2 0.90 → 0.61 since 28 Oct`."""
    before, after = (f"{value:.0%}" if change.is_share else f"{value:.2f}" for value in (change.before, change.after))
    since = "" if change.since is None else f" since {change.since.day} {change.since:%b}"
    return f"{change.name} {before} → {after}{since}"
