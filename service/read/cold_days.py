"""Days whose details are in the lake only."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

from msgspec import Meta

from analytics.queries import query_rows
from schemas.bounds import EARLIEST, LATEST
from schemas.lazy import duckdb
from service.text.answers import Answer
from service.text.formats import grouped_count


class ColdDays(Answer, frozen=True):
    """The part of a period whose details are in the lake only."""

    until: Annotated[
        date, Meta(description="The first day (UTC) with details in the database; of several projects the latest.")
    ]
    exchanges: Annotated[int, Meta(description="Exchanges of earlier days that the database does not have.")]

    @property
    def summary(self) -> str:
        """How many exchanges are missing, from before which day."""
        verb = "is" if self.exchanges == 1 else "are"
        return f"{grouped_count(self.exchanges, 'exchange')} from before {self.until.isoformat()} (UTC) {verb} in the lake only"


OmittedDays = Annotated[
    ColdDays | None,
    Meta(
        description="What the answer leaves out of its period, whatever its filters: days in the lake only; null for nothing."
    ),
]
"""The field `cold_days` of an answer from single exchanges, scores or events."""


def _latest_border(cursor: duckdb.DuckDBPyConnection, project: str | None) -> datetime | None:
    """Return the time from which the database has all details of a project, or of all projects; None if no details are in the lake only."""
    statement = "SELECT max(border) FROM log.cold_borders() WHERE log.matches_project(project, ?)"
    ((border,),) = cursor.execute(statement, [project]).fetchall()
    return None if border is None else border.replace(tzinfo=UTC)


def cold_days(
    cursor: duckdb.DuckDBPyConnection, project: str | None, since: datetime | None, until: datetime | None
) -> ColdDays | None:
    """Return the cold part of a period (None: unbounded) of a project, or of all; None if every detail is in the database."""
    border = _latest_border(cursor, project)
    if border is None or (since is not None and since >= border):
        return None
    values = {"project": project, "since": since or EARLIEST, "until": min(until or LATEST, border)}
    rows = query_rows(cursor, "cold_days", values)
    if not rows:
        return None
    return ColdDays(max(row["border"] for row in rows).date(), sum(row["exchanges"] for row in rows))
