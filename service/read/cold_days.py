"""Days whose details are in the lake only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from analytics.queries import query_rows
from schemas.bounds import EARLIEST, LATEST
from schemas.lazy import duckdb


@dataclass(frozen=True)
class ColdDays:
    """The part of a period whose details are in the lake only."""

    until: date
    """The first day (UTC) with details in the database; of several projects the latest."""
    exchanges: int


def cold_days(
    cursor: duckdb.DuckDBPyConnection, project: str | None, since: datetime | None, until: datetime | None
) -> ColdDays | None:
    """Return the cold part of a period (None: unbounded) of a project, or of all; None if every detail is in the database."""
    rows = query_rows(cursor, "cold_days", {"project": project, "since": since or EARLIEST, "until": until or LATEST})
    if not rows:
        return None
    return ColdDays(max(row["border"] for row in rows).date(), sum(row["exchanges"] for row in rows))
