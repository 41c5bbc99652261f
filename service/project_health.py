"""How a project is: by its open incidents, and by what its last days say even where no rule has raised an alarm.

Rules find changes. A judge that never answered, runs that are unsafe, and anomalies that were always many are no changes, and nobody who
reads "healthy" would look for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from audit.spikes import FEWEST_ANOMALIES

Health = Literal["critical", "warning", "ok", "empty"]
Reason = Literal["open_incidents", "unscored", "unsafe_runs", "anomalies"]
Row = Mapping[str, Any]
UNSCORED, ANOMALOUS = 0.1, 0.05
"""From these shares on, of the exchanges that a judge should have scored and of all, the last days are a reason to look."""


def with_health(row: Row) -> dict[str, Any]:
    """A row of the query `projects` with its `health` and the `reasons` for it."""
    reasons = reasons_of(row)
    return {**row, "reasons": reasons, "health": health_of(row, reasons)}


def reasons_of(row: Row) -> list[Reason]:
    """Why a project is no healthier than it is, the gravest reason first; `row` is one of the query `projects`."""
    unscored, anomalous = unscored_share(row), anomalous_share(row)
    found: dict[Reason, bool] = {
        "open_incidents": bool(row["open_incidents"]),
        "unscored": unscored is not None and unscored >= UNSCORED,
        "unsafe_runs": bool(row["recent_unsafe_runs"]),
        "anomalies": anomalous is not None and anomalous >= ANOMALOUS and row["recent_anomalies"] >= FEWEST_ANOMALIES,
    }
    return [reason for reason, is_so in found.items() if is_so]


def health_of(row: Row, reasons: list[Reason]) -> Health:
    """How a project is: critical by a critical incident, a warning for any other of its `reasons`, empty where nothing has come in yet."""
    if row["critical_incidents"]:
        return "critical"
    if reasons:
        return "warning"
    return "ok" if row["exchanges"] or row["runs"] else "empty"


def unscored_share(row: Row) -> float | None:
    """Of the last days' exchanges that a judge should have scored, the share that none did; None where none was to be."""
    wanted = row["recent_scored"] + row["recent_unscored"]
    return row["recent_unscored"] / wanted if wanted else None


def anomalous_share(row: Row) -> float | None:
    """The share of the last days' exchanges with an anomaly; None without one."""
    return row["recent_anomalies"] / row["recent_scores"] if row["recent_scores"] else None
