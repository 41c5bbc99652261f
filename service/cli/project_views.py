"""The fleet for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from service.cli.terminal import MISSING, table
from service.documents.fleet.changes import Change
from service.documents.rounding import grouped

Row = Mapping[str, Any]


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
            MISSING if row["recent_until"] is None else f"{row['recent_until']:%Y-%m-%d}",
            MISSING if row["change"] is None else _change(row["change"]),
            ", ".join(row["reasons"]).replace("_", " ") or MISSING,
        ]
        for row in rows
    ]
    headers = ["project", "health", "open", "exchanges", "anomalies", "unsafe", "until", "what changed", "why"]
    return table(headers, cells, right=["open", "exchanges", "anomalies", "unsafe"])


def _change(change: Change) -> str:
    """Say what changed, as `tier 2 0.90 → 0.61 since 28 Oct`."""
    before, after = (f"{value:.0%}" if change.is_share else f"{value:.2f}" for value in (change.before, change.after))
    since = "" if change.since is None else f" since {change.since.day} {change.since:%b}"
    return f"{change.name} {before} → {after}{since}"
