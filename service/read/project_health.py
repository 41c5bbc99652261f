"""Health of a project: its open incidents, and its last days even without an alarm.

Rules find changes. A judge that never answered, runs that are unsafe, and anomalies that were always many are no changes, and a reader
of "healthy" would not look for them. Nor is it healthy where no check was made yet, or where there is too little to look at: that is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from audit.drift.anomaly_rate import FEWEST_ANOMALIES
from service.read.project_checks import check_state

Health = Literal["critical", "warning", "unknown", "ok", "empty"]
Reason = Literal["open_incidents", "unscored", "unsafe_runs", "anomalies", "too_few", "unchecked"]
Days = Literal["recent", "before"]
Row = Mapping[str, Any]
UNSCORED, ANOMALOUS = 0.1, 0.05
"""The shares of unscored and of anomalous exchanges from which the last days are a warning."""
ENOUGH = math.ceil(1 / ANOMALOUS)
"""Exchanges of the last days, or runs, needed to call a project healthy: with fewer, one anomaly is too large a share."""
_UNCHECKED = frozenset({"off", "never", "behind"})


def with_health(row: Row) -> dict[str, Any]:
    """Return a row of the query `projects` with its `health` and the `reasons` for it."""
    reasons = reasons_of(row)
    return {**row, "reasons": reasons, "health": health_of(row, reasons)}


def reasons_of(row: Row) -> list[Reason]:
    """Return the reasons against a project's health, the gravest first; `row` is one of the query `projects`."""
    unscored, anomalous = unscored_share(row), anomalous_share(row)
    found: dict[Reason, bool] = {
        "open_incidents": bool(row["open_incidents"]),
        "unscored": unscored is not None and unscored >= UNSCORED,
        "unsafe_runs": bool(row["recent_unsafe_runs"]),
        "anomalies": anomalous is not None and anomalous >= ANOMALOUS and row["recent_anomalies"] >= FEWEST_ANOMALIES,
    }
    return [reason for reason, is_so in found.items() if is_so] or _unknown(row)


def _unknown(row: Row) -> list[Reason]:
    """Return the reasons why a project without known faults cannot be called healthy; none for an empty one."""
    found: dict[Reason, bool] = {
        "too_few": row["recent_scores"] < ENOUGH and row["runs_with_evidence"] < ENOUGH,
        "unchecked": check_state(row) in _UNCHECKED,
    }
    return [reason for reason, is_so in found.items() if is_so] if _has_data(row) else []


def _has_data(row: Row) -> bool:
    return bool(row["exchanges"] or row["scores"] or row["runs"])


def health_of(row: Row, reasons: list[Reason]) -> Health:
    """Return the health of a project.

    Critical by a critical incident, a warning for any other of its `reasons`, unknown where these only say that too little is known, empty
    where nothing has come in yet.
    """
    if row["critical_incidents"]:
        return "critical"
    if reasons:
        return "unknown" if set(reasons) <= {"too_few", "unchecked"} else "warning"
    return "ok" if _has_data(row) else "empty"


def unscored_share(row: Row, days: Days = "recent") -> float | None:
    """Return the share of the due exchanges of the last days, or of those before, that no judge scored; None if none was due."""
    wanted = row[f"{days}_scored"] + row[f"{days}_unscored"]
    return row[f"{days}_unscored"] / wanted if wanted else None


def anomalous_share(row: Row, days: Days = "recent") -> float | None:
    """Return the share of the exchanges of the last days, or of those before, with an anomaly; None without an exchange."""
    return row[f"{days}_anomalies"] / row[f"{days}_scores"] if row[f"{days}_scores"] else None
