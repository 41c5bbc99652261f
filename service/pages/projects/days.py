"""Days of a project, as its pages show them."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import duckdb

from analytics.queries import query_rows
from service.documents.deployments import deployed_by_day
from service.pages.window import AskedDays, Window, window_of
from streams.upkeep.deployments import deployments

_EVER = 36_500
"""Days that hold every exchange."""


def trends_of(
    cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedDays, today: date
) -> tuple[Window, list[dict[str, Any]]]:
    """Return the requested window, and its days with scores. Without recent records it ends with the newest such day."""
    window = window_of(asked, today)
    trends = _trends(cursor, project, window, window.count)
    if not trends and not window.is_pinned:
        ever = _trends(cursor, project, window, _EVER)
        window = window_of(asked, today, ever[-1]["day"] if ever else None)
        trends = [row for row in ever if row["day"] >= window.first]
    return window, trends


def shown_window(cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedDays, today: date) -> Window:
    """Return the window that every part of the project's pages shows: the days of `trends_of`."""
    return trends_of(cursor, project, asked, today)[0]


def newest_event(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, now: datetime) -> date | None:
    """Return the day of the newest event of a project by now, if that is after the window; else None."""
    rows = query_rows(cursor, "last_heard", {"project": project, "as_of": now})
    day = max((row["last_at"].date() for row in rows if row["kind"] == "event"), default=None)
    return day if day is not None and day > window.last else None


def costs_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """Return the cost of judging the exchanges of the window by day and model, by the day of the exchange."""
    asked = {"project": project, "by": "day", "from": window.start, "to": window.end}
    return query_rows(cursor, "window_costs", asked)


def deployed_within(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> dict[str, str]:
    """Return the deployments on the days of the window, in words, by day."""
    return deployed_by_day(deployments(cursor, project, window.start, window.end))


def _trends(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, days: int) -> list[dict[str, Any]]:
    return query_rows(cursor, "trends", {"project": project, "as_of": window.end, "days": days})
