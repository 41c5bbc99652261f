"""A project over a window, for its pages: points, costs and marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from analytics.queries import query_rows
from analytics.sums.hours import query_days
from schemas.lazy import duckdb
from service.pages.charts.marks import Mark
from service.pages.charts.projects import Stretch
from service.text.links import Links
from service.text.window import Window

Row = Mapping[str, Any]
_NOTHING = {**dict.fromkeys(("anomalies", "runs", "unsafe_runs", "incidents", "evaluations"), 0), "mean_score": None}


def points_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the hours or days of a window that have scores, with the tiers by name."""
    query = "points_by_hour" if window.is_hourly else "points_by_day"
    rows = query_days(cursor, query, {"project": project, "from": window.start, "to": window.end})
    return [{**row, "tiers": {one["tier"]: one for one in row["tiers"]}} for row in rows]


def newest_event(cursor: duckdb.DuckDBPyConnection, project: str, since: datetime, now: datetime) -> date | None:
    """Return the day of a project's newest event if it comes after the day of a moment; otherwise None."""
    rows = query_rows(cursor, "last_heard", {"project": project, "as_of": now})
    at = max((row["last_at"] for row in rows if row["kind"] == "event"), default=None)
    return at.date() if at is not None and at.date() > since.date() else None


def costs_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the cost of judging the exchanges of the window by point and model, by the time of the exchange."""
    by = "hour" if window.is_hourly else "day"
    return query_days(cursor, "window_costs", {"project": project, "by": by, "from": window.start, "to": window.end})


def stretch_of(project: str, window: Window, marks: Sequence[Mark]) -> Stretch:
    """Return the common values of a window's charts. Points link to the project's page of that period, counts to the counted records."""
    return Stretch(
        window,
        marks,
        lambda other: Links(other.asked).project(project),
        lambda other, anomalous: Links(other.asked).exchanges(project, anomalies="yes" if anomalous else None),
    )


def sampling_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the reasons why exchanges of the window were judged or not."""
    return query_days(cursor, "project_sampling", {"project": project, "from": window.start, "to": window.end})


def counts_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> list[dict[str, Any]]:
    """Return the project's counts in a window and in the preceding period; empty if they are not to be compared."""
    if window is None or not window.compare:
        return []
    asked = [{"project": project, "from": one.start, "to": one.end} for one in (window, window.before)]
    return [next(iter(query_days(cursor, "period_counts", one)), _NOTHING) for one in asked]
