# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Reads sums by hour and by day without paying for the planning of statements that are not needed.

DuckDB plans a statement as written, whatever the number of rows. `log.score_hours`, `log.score_days`, `log.cost_hours` and
`log.exchange_days` also add up single records, for days with newer records and days that a window cuts. Planning that part takes
longer than everything else, and most of the time there are no such days. So these functions check first. If all days of a query are
whole, they read only kept sums; by the hour, the macro gets only the projects with single scores. By the day, check and query see
the same snapshot; by the hour, scores that arrive between the two are left to the next read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from analytics.queries import queries, query_rows
from analytics.store.connection import fetch
from analytics.sums.kept import ASKED, COST_SUMS, EXCHANGE_SUMS, HOUR_KEY, HOUR_SCALES, SCORE_SUMS, TABLES, behind
from schemas.lazy import duckdb, pl

_WANTED = "list_contains($projects::VARCHAR[], project)"
_CHANGED = f"SELECT DISTINCT project FROM log.changed_scores() WHERE {_WANTED} AND day >= $since AND day < $until"
_KEPT = f"FROM log.hourly_scores WHERE {_WANTED} AND hour >= $since AND hour < $until"
_EVERYTHING = "* EXCLUDE (_topic, _partition, _offset)"
_SINGLE = "SELECT * EXCLUDE (day) FROM log.score_hours($projects::VARCHAR[], $since::TIMESTAMP, $until::TIMESTAMP)"
_ORDER = [name.strip() for name in HOUR_KEY.split(",")]

_BEGINS, _ENDS = ("from", "since"), ("to", "until", "as_of")
"""The parameters of queries that bound their time: the first moment, and the first one after it."""
_MARK = "SELECT next_position FROM log.watermarks WHERE consumer = $consumer AND topic = $topic AND partition = 0"
# Hourly sums have the time of a unit's last score. Old hourly sums are deleted, and then that time is unknown for the day.
_IS_OVER = """
    SELECT coalesce(
        max(last_at) < $at::TIMESTAMP,
        NOT EXISTS (SELECT 1 FROM log.daily_scores AS d WHERE d.project = $project AND d.day = date_trunc('day', $at::TIMESTAMP))
    )
    FROM log.hourly_scores
    WHERE project = $project AND hour >= date_trunc('day', $at::TIMESTAMP)
        AND hour < date_trunc('day', $at::TIMESTAMP) + INTERVAL 1 DAY"""


def read_hours(
    cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], since: date, until: datetime, columns: Sequence[str] = ()
) -> pl.DataFrame | None:
    """Return the sums of some projects' current scores from a day on, until a moment: one row per `HOUR_KEY`, in that order.

    None if there are no scores at all.

    The columns are those of `log.hourly_scores`. To save time, name the ones you need in `columns`; rows are then sorted by these. Sums
    are on the scale of the scores; times are UTC and naive.
    """
    first, moment = datetime.combine(since, time()), until.astimezone(UTC).replace(tzinfo=None)
    whole = datetime.combine((moment - timedelta(microseconds=1)).date() + timedelta(days=1), time())
    wanted = {"projects": list(projects), "since": first, "until": whole}
    single = _changed(cursor, wanted)
    if not single and cursor.execute(f"SELECT NOT EXISTS ({_KEPT})", wanted).fetchall()[0][0]:
        return None
    needed = list(dict.fromkeys(("project", "last_at", *columns)))
    kept = fetch(cursor, f"SELECT {', '.join(needed) if columns else _EVERYTHING} {_KEPT}", wanted)
    # The sums of the last day also include scores after the moment.
    single.update(kept["project"].filter(kept["last_at"] >= moment))
    if single:
        fresh = fetch(cursor, _SINGLE, {"projects": sorted(single), "since": first, "until": moment})
        others = kept.filter(~pl.col("project").is_in(single))
        kept = pl.concat([others, fresh.select(kept.columns).cast(kept.schema)])
    # Divide with numpy: polars multiplies by the reciprocal in some cases, so the last bit would depend on the number of rows.
    scaled = [pl.Series(name, kept[name].to_numpy() / scale) for name, scale in HOUR_SCALES.items() if name in kept.columns]
    if columns:
        return kept.with_columns(scaled).select(columns).sort(columns)
    return kept.with_columns(scaled).sort(_ORDER)


def _changed(cursor: duckdb.DuckDBPyConnection, wanted: Mapping[str, Any]) -> set[str]:
    """The projects with new scores since the sums of their days were computed."""
    if not is_behind(cursor, SCORE_SUMS, "scores"):
        return set()
    return {project for (project,) in cursor.execute(_CHANGED, dict(wanted)).fetchall()}


def is_behind(cursor: duckdb.DuckDBPyConnection, consumer: str, topic: str) -> bool:
    """Tell whether a topic has records that a consumer has not added up. DuckDB knows the largest position without reading rows."""
    ((last, partition),) = cursor.execute(f"SELECT max(_offset), max(_partition) FROM {TABLES[topic]}").fetchall()
    if partition:
        return any(cursor.execute(one).fetchall()[0][0] for one in behind(consumer, topic))
    marks = cursor.execute(_MARK, {"consumer": consumer, "topic": topic}).fetchall()
    return last is not None and last >= max((position for (position,) in marks), default=0)


def query_days(cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a named query that takes a project, as `query_rows` does. The cursor must not be in a transaction."""
    used = [macro for macro in _MACROS if f"log.{macro}(" in queries()[name].text]
    cursor.begin()
    try:
        whole = [macro for macro in used if _is_whole(cursor, _MACROS[macro], values)]
        return query_rows(cursor, name, values, kept=whole)
    finally:
        cursor.rollback()


def _is_whole(cursor: duckdb.DuckDBPyConnection, kept: _Kept, values: Mapping[str, Any]) -> bool:
    """Tell whether kept sums alone give the macro's answer: the window cuts no day, and no day has new records."""
    project: str | None = values["project"]
    begins, ends = (next((values[name] for name in names if name in values), None) for names in (_BEGINS, _ENDS))
    if not (_is_even(begins, kept) and (_is_even(ends, kept) or _is_over(cursor, kept, project, ends))):
        return False
    if not any(is_behind(cursor, kept.consumer, topic) for topic in kept.topics):
        return True
    came = f"SELECT count(*) > 0 FROM log.{kept.changed}() WHERE {ASKED.replace('asked', '$project')}"
    return not cursor.execute(came, {"project": project}).fetchall()[0][0]


@dataclass(frozen=True)
class _Kept:
    """A macro over kept sums that reads single records if it must."""

    consumer: str
    topics: tuple[str, ...]
    changed: str
    """The macro that lists the days of a project with new records."""
    is_hourly: bool = False
    """Whether its sums are hourly, so that a window may begin and end with any hour."""


def _is_even(at: datetime | None, kept: _Kept) -> bool:
    """Tell whether a bound falls between two days (or hours) of the sums; no bound counts as such."""
    if at is None:
        return True
    utc = at.astimezone(UTC) if at.tzinfo else at
    return not (utc.minute or utc.second or utc.microsecond or (utc.hour and not kept.is_hourly))


def _is_over(cursor: duckdb.DuckDBPyConnection, kept: _Kept, project: str | None, at: datetime | None) -> bool:
    """Tell whether the moment's day has no scores at or after the moment, so that the day's sums are valid up to it."""
    if kept.is_hourly or project is None:
        return False
    return bool(cursor.execute(_IS_OVER, {"project": project, "at": at}).fetchall()[0][0])


_MACROS: Mapping[str, _Kept] = {
    "score_days": _Kept(SCORE_SUMS, ("scores",), "changed_scores"),
    "cost_hours": _Kept(COST_SUMS, ("judgements", "exchanges"), "changed_judgements", is_hourly=True),
    "exchange_days": _Kept(EXCHANGE_SUMS, ("exchanges",), "changed_exchanges"),
}
