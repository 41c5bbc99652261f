"""What the days of a project hold that its pages show."""

from __future__ import annotations

from datetime import date
from typing import Any

import duckdb

from analytics.queries import query_rows
from service.dashboard.window import AskedDays, Window, window_of

_EVER = 36_500
"""Days that hold every exchange."""


def trends_of(
    cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedDays, today: date
) -> tuple[Window, list[dict[str, Any]]]:
    """The window that is asked for, and its days with scores. Where nothing came lately it ends with the newest day that has one."""
    window = window_of(asked, today)
    trends = _trends(cursor, project, window, window.count)
    if not trends and not window.is_pinned:
        ever = _trends(cursor, project, window, _EVER)
        window = window_of(asked, today, ever[-1]["day"] if ever else None)
        trends = [row for row in ever if row["day"] >= window.first]
    return window, trends


def costs_of(cursor: duckdb.DuckDBPyConnection, project: str, window: Window) -> list[dict[str, Any]]:
    """What judging cost by day and model, by the day on which the judge answered."""
    return query_rows(cursor, "daily_costs", {"project": project, "as_of": window.end, "days": window.count})


def _trends(cursor: duckdb.DuckDBPyConnection, project: str, window: Window, days: int) -> list[dict[str, Any]]:
    return query_rows(cursor, "trends", {"project": project, "as_of": window.end, "days": days})
