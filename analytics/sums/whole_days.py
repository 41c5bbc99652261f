# ruff: noqa: S608 - statements are made of the names of our own tables and macros; values are always parameters
"""Reads named queries over days, at the price of what is there to be read.

`log.score_days`, `log.cost_hours` and `log.exchange_days` answer at any time what the single records say: of days to which records came
since, and of days that a window cuts, they add these up. DuckDB plans a statement as it stands, and planning that takes longer than all
the rest, though most of the time there is no such day. So this asks first. Where the days of a query are whole, the query reads kept sums
alone. Question and query see the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analytics.queries import queries, query_rows
from analytics.sums.marks import ASKED, COST_SUMS, EXCHANGE_SUMS, SCORE_SUMS, TABLES, behind
from schemas.lazy.duckdb import duckdb

_BEGINS, _ENDS = ("from", "since"), ("to", "until", "as_of")
"""The parameters of queries that bound their time: the first moment, and the first one after it."""


@dataclass(frozen=True)
class _Kept:
    """A macro that goes back to single records where it has to."""

    consumer: str
    topics: tuple[str, ...]
    changed: str
    """The macro that names the days of a project that records came to since."""
    is_hourly: bool = False
    """Whether its sums are by the hour, so that a window may begin and end with any hour."""


_MACROS: Mapping[str, _Kept] = {
    "score_days": _Kept(SCORE_SUMS, ("scores",), "changed_scores"),
    "cost_hours": _Kept(COST_SUMS, ("judgements", "exchanges"), "changed_judgements", is_hourly=True),
    "exchange_days": _Kept(EXCHANGE_SUMS, ("exchanges",), "changed_exchanges"),
}
_MARK = "SELECT next_position FROM log.watermarks WHERE consumer = $consumer AND topic = $topic AND partition = 0"
# Hourly sums say how late the last score of a unit is. Those of long ago are deleted, and then nothing is known of the day.
_IS_OVER = """
    SELECT coalesce(
        max(last_at) < $at::TIMESTAMP,
        NOT EXISTS (SELECT 1 FROM log.daily_scores AS d WHERE d.project = $project AND d.day = date_trunc('day', $at::TIMESTAMP))
    )
    FROM log.hourly_scores
    WHERE project = $project AND hour >= date_trunc('day', $at::TIMESTAMP)
        AND hour < date_trunc('day', $at::TIMESTAMP) + INTERVAL 1 DAY"""


def query_days(cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a named query that takes a project, as `query_rows` does. The cursor is in no transaction."""
    used = [macro for macro in _MACROS if f"log.{macro}(" in queries()[name].text]
    cursor.begin()
    try:
        whole = [macro for macro in used if _is_whole(cursor, _MACROS[macro], values)]
        return query_rows(cursor, name, values, kept=whole)
    finally:
        cursor.rollback()


def is_behind(cursor: duckdb.DuckDBPyConnection, consumer: str, topic: str) -> bool:
    """Tell whether records of a topic have come that a consumer has not added up; the largest position is known without reading."""
    ((last, partition),) = cursor.execute(f"SELECT max(_offset), max(_partition) FROM {TABLES[topic]}").fetchall()
    if partition:
        return any(cursor.execute(one).fetchall()[0][0] for one in behind(consumer, topic))
    marks = cursor.execute(_MARK, {"consumer": consumer, "topic": topic}).fetchall()
    return last is not None and last >= max((position for (position,) in marks), default=0)


def _is_whole(cursor: duckdb.DuckDBPyConnection, kept: _Kept, values: Mapping[str, Any]) -> bool:
    """Tell whether kept sums alone say what the macro does: no day is cut, and to none of them did records come since."""
    project: str | None = values["project"]
    begins, ends = (next((values[name] for name in names if name in values), None) for names in (_BEGINS, _ENDS))
    if not (_is_even(begins, kept) and (_is_even(ends, kept) or _is_over(cursor, kept, project, ends))):
        return False
    if not any(is_behind(cursor, kept.consumer, topic) for topic in kept.topics):
        return True
    came = f"SELECT count(*) > 0 FROM log.{kept.changed}() WHERE {ASKED.replace('asked', '$project')}"
    return not cursor.execute(came, {"project": project}).fetchall()[0][0]


def _is_even(at: datetime | None, kept: _Kept) -> bool:
    """Tell whether a bound lies between two days, or hours, of the sums; as no bound does."""
    if at is None:
        return True
    utc = at.astimezone(UTC) if at.tzinfo else at
    return not (utc.minute or utc.second or utc.microsecond or (utc.hour and not kept.is_hourly))


def _is_over(cursor: duckdb.DuckDBPyConnection, kept: _Kept, project: str | None, at: datetime | None) -> bool:
    """Tell whether no score is of the day of a moment and as late, so that the day's sums are of the time before."""
    if kept.is_hourly or project is None:
        return False
    return bool(cursor.execute(_IS_OVER, {"project": project, "at": at}).fetchall()[0][0])
