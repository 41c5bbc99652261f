# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Refresh of the daily sums of scores, judgements and exchanges per project (UTC), and reads by hour and by day.

Thanks to the sums, no query has to add up millions of records. Reads skip the planning of statements that they do not need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from analytics.queries import queries, query_rows
from analytics.store.connection import fetch
from analytics.store.store import Partition, Store, Transaction
from analytics.store.tables import full_name
from analytics.sums.kept import (
    ALL_SUMS,
    COLD,
    COST_SUMS,
    EXCHANGE_SUMS,
    FAILURE_SUMS,
    FAILURES_BY_DAY,
    HOUR_KEY,
    HOUR_SCALES,
    PROJECT_MATCHES,
    RETENTION,
    SCORE_SUMS,
    SCORES_BY_DAY,
    TABLES,
    Day,
    KeptSums,
    lag_sql,
)
from schemas.lazy import duckdb, pl
from schemas.registry import schema_of

MAX_NEW_RECORDS = 100_000
"""Maximum number of new records per transaction."""
_HOURLY_TABLES = ("log.hourly_scores", "log.hourly_behaviour")
_DELETE_HOURS = """
    DELETE FROM {table} AS kept
    USING (SELECT unnest($projects::VARCHAR[]) AS project, unnest($firsts::TIMESTAMP[]) AS first) AS cutoffs, log.watermarks AS marks
    WHERE kept.project = cutoffs.project AND hour < first
        AND marks.consumer = $consumer AND marks.topic = kept.project AND hour < make_timestamp(next_position)
"""
_DELETE_COLD_DAYS = """
    DELETE FROM {table} AS kept
    USING (SELECT unnest($projects::VARCHAR[]) AS project, unnest($firsts::TIMESTAMP[]) AS first) AS cutoffs
    WHERE kept.project = cutoffs.project AND {day} < first
"""
_SELECT_WATERMARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_COUNT_NEW_RECORDS = "SELECT day::DATE, project, count(*) FROM {changed} GROUP BY day, project ORDER BY ALL"


def refresh_daily(store: Store) -> set[Day]:
    """Recompute the sums of days with new records; return the days with new scores. Thread-safe.

    A transaction covers up to MAX_NEW_RECORDS new records, or one day of a project, so that ingestion never waits long. After an
    interrupted call, the next one starts again.
    """
    changed_days = {sums.consumer: _refresh_sums(store, sums) for sums in ALL_SUMS}
    return changed_days[SCORE_SUMS]


def _refresh_sums(store: Store, kept: KeptSums) -> set[Day]:
    watermarks, ends, changed = _count_new_records(store, kept)
    for days in _split_days(changed):
        with store.transaction() as transaction:
            kept.recompute(transaction.connection, days)
    if ends:
        with store.transaction() as transaction:
            # If the sums were deleted meanwhile, the watermarks have changed, and the next refresh recomputes the days.
            if transaction.watermarks(kept.consumer) == watermarks:
                transaction.set_watermarks(kept.consumer, ends)
    return set(changed)


def is_failure_behind(cursor: duckdb.DuckDBPyConnection) -> bool:
    """Tell whether there are records that are not in the failures by day yet."""
    return any(is_behind(cursor, FAILURE_SUMS, topic) for topic in FAILURES_BY_DAY.topics)


def recompute_days(transaction: Transaction, days: Iterable[Day]) -> None:
    """Recompute the sums of these days after the transaction deleted scores. A day without scores has no sums."""
    SCORES_BY_DAY.recompute(transaction.connection, days)


def delete_hours(store: Store, kept_from: Callable[[str], datetime]) -> int:
    """Delete each project's hourly sums before its cutoff, for days whose scores retention has deleted; return the number of rows."""
    with store.transaction() as transaction:
        starts = transaction.watermarks(RETENTION)
        firsts = {project: kept_from(project) for project, _ in starts}
        values = {
            "projects": list(firsts),
            "firsts": [first.replace(tzinfo=None) for first in firsts.values()],
            "consumer": RETENTION,
        }
        statements = [_DELETE_HOURS.format(table=table) for table in _HOURLY_TABLES]
        return sum(int(transaction.connection.execute(statement, values).fetchall()[0][0]) for statement in statements)


def delete_cold_days(store: Store, kept_from: Callable[[str], datetime]) -> int:
    """Delete the sums of cold days before each project's cutoff that else go with their records; return the number of rows."""
    with store.transaction() as transaction:
        firsts = {project: kept_from(project) for project, _ in transaction.watermarks(COLD)}
        values = {"projects": list(firsts), "firsts": [first.replace(tzinfo=None) for first in firsts.values()]}
        statements = [
            _DELETE_COLD_DAYS.format(table=full_name(schema_of(name)), day=day)
            for sums in ALL_SUMS
            if sums.deleted
            for name, day in sums.tables.items()
        ]
        return sum(int(transaction.connection.execute(statement, values).fetchall()[0][0]) for statement in statements)


def _count_new_records(store: Store, kept: KeptSums) -> tuple[dict[Partition, int], dict[Partition, int], dict[Day, int]]:
    """Return the watermarks, the ends of the topics with new records, and the number of those that change a day, from one snapshot."""
    with contextlib.closing(store.cursor()) as cursor:
        cursor.begin()
        watermarks = cursor.execute(_SELECT_WATERMARKS, {"consumer": kept.consumer}).fetchall()
        rows = cursor.execute(_COUNT_NEW_RECORDS.format(changed=kept.changed)).fetchall()
        ends = cursor.execute(kept.ends).fetchall()
    counts = {(project, day): count for day, project, count in rows}
    return _map_positions(watermarks), _map_positions(ends), counts


def _map_positions(rows: Iterable[tuple[str, int, int]]) -> dict[Partition, int]:
    return {(topic, partition): position for topic, partition, position in rows}


def _split_days(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
    """Yield batches of the changed days, each with up to MAX_NEW_RECORDS new records, or with one larger day."""
    batch: list[Day] = []
    records = 0
    for day, count in changed.items():
        if batch and records + count > MAX_NEW_RECORDS:
            yield batch
            batch = []
            records = 0
        batch.append(day)
        records += count
    if batch:
        yield batch


_IN_PROJECTS = "list_contains($projects::VARCHAR[], project)"
_CHANGED_PROJECTS = f"SELECT DISTINCT project FROM log.changed_scores() WHERE {_IN_PROJECTS} AND day >= $since AND day < $until"
_FROM_HOURLY_SCORES = f"FROM log.hourly_scores WHERE {_IN_PROJECTS} AND hour >= $since AND hour < $until"
_ALL_COLUMNS = "* EXCLUDE (_topic, _partition, _offset)"
_SELECT_HOURS = "SELECT * EXCLUDE (day) FROM log.score_hours($projects::VARCHAR[], $since::TIMESTAMP, $until::TIMESTAMP)"
_HOUR_ORDER = HOUR_KEY.split(", ")

_START_PARAMETERS = ("from", "since")
"""Query parameters for the start of a period (inclusive)."""
_END_PARAMETERS = ("to", "until", "as_of")
"""Query parameters for the end of a period (exclusive)."""
_SELECT_WATERMARK = "SELECT next_position FROM log.watermarks WHERE consumer = $consumer AND topic = $topic AND partition = 0"
# Hourly sums have the time of their last score. After the hourly sums of a day are deleted, that time is unknown.
_IS_DAY_COMPLETE = """
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
    """Return the hourly sums of the projects' current scores in a period, one row per `HOUR_KEY`, sorted by it; None without scores.

    The columns are those of `log.hourly_scores`. With `columns`, only these are read, and rows are sorted by them. Sums are on the scale
    of the scores; times are naive UTC.
    """
    first = datetime.combine(since, time())
    end = until.astimezone(UTC).replace(tzinfo=None)
    end_of_day = datetime.combine((end - timedelta(microseconds=1)).date() + timedelta(days=1), time())
    parameters = {"projects": list(projects), "since": first, "until": end_of_day}
    recomputed = _find_changed_projects(cursor, parameters)
    if not recomputed:
        ((is_empty,),) = cursor.execute(f"SELECT NOT EXISTS ({_FROM_HOURLY_SCORES})", parameters).fetchall()
        if is_empty:
            return None
    selected = ", ".join(dict.fromkeys(("project", "last_at", *columns))) if columns else _ALL_COLUMNS
    hours = fetch(cursor, f"SELECT {selected} {_FROM_HOURLY_SCORES}", parameters)
    # The sums of the last day may include scores after the end of the period.
    recomputed.update(hours["project"].filter(hours["last_at"] >= end))
    if recomputed:
        fresh = fetch(cursor, _SELECT_HOURS, {"projects": sorted(recomputed), "since": first, "until": end})
        others = hours.filter(~pl.col("project").is_in(recomputed))
        hours = pl.concat([others, fresh.select(hours.columns).cast(hours.schema)])
    # Divide with numpy: polars sometimes multiplies by the reciprocal, so the last bit would depend on the number of rows.
    scaled = [pl.Series(name, hours[name].to_numpy() / scale) for name, scale in HOUR_SCALES.items() if name in hours.columns]
    if columns:
        return hours.with_columns(scaled).select(columns).sort(columns)
    return hours.with_columns(scaled).sort(_HOUR_ORDER)


def _find_changed_projects(cursor: duckdb.DuckDBPyConnection, values: Mapping[str, Any]) -> set[str]:
    """Return the projects with scores that are not in the sums of their days."""
    if not is_behind(cursor, SCORE_SUMS, "scores"):
        return set()
    return {project for (project,) in cursor.execute(_CHANGED_PROJECTS, dict(values)).fetchall()}


def is_behind(cursor: duckdb.DuckDBPyConnection, consumer: str, topic: str) -> bool:
    """Tell whether a consumer has not read a topic to its end. DuckDB knows the largest offset without reading rows."""
    ((last, partition),) = cursor.execute(f"SELECT max(_offset), max(_partition) FROM {TABLES[topic]}").fetchall()
    if partition:
        return any(cursor.execute(statement).fetchall()[0][0] for statement in lag_sql(consumer, topic))
    marks = cursor.execute(_SELECT_WATERMARK, {"consumer": consumer, "topic": topic}).fetchall()
    return last is not None and last >= max((position for (position,) in marks), default=0)


def query_days(cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a named query of a project like `query_rows`. The cursor must not be in a transaction."""
    used = [macro for macro in _MACROS if f"log.{macro}(" in queries()[name].text]
    cursor.begin()
    try:
        current = [macro for macro in used if _has_current_sums(cursor, _MACROS[macro], values)]
        return query_rows(cursor, name, values, kept=current)
    finally:
        cursor.rollback()


def _has_current_sums(cursor: duckdb.DuckDBPyConnection, macro: _SumsMacro, values: Mapping[str, Any]) -> bool:
    """Tell whether the kept sums alone answer a macro: the period cuts no day, and no day has new records."""
    project: str | None = values["project"]
    start = next((values[name] for name in _START_PARAMETERS if name in values), None)
    end = next((values[name] for name in _END_PARAMETERS if name in values), None)
    if not (_is_aligned(start, macro) and (_is_aligned(end, macro) or _is_day_complete(cursor, macro, project, end))):
        return False
    if not any(is_behind(cursor, macro.consumer, topic) for topic in macro.topics):
        return True
    has_new_records = (
        f"SELECT count(*) > 0 FROM log.{macro.changed}() WHERE {PROJECT_MATCHES.replace('in_project', '$project')}"
    )
    return not cursor.execute(has_new_records, {"project": project}).fetchall()[0][0]


@dataclass(frozen=True)
class _SumsMacro:
    """A macro over kept sums, which reads single records where the sums are not current."""

    consumer: str
    topics: tuple[str, ...]
    changed: str
    """The macro that lists a project's days with new records."""
    is_hourly: bool = False
    """Whether its sums are hourly, so that a period may start and end with any hour."""


def _is_aligned(at: datetime | None, macro: _SumsMacro) -> bool:
    """Tell whether the bound of a period falls between two days (or hours) of the sums, or is absent."""
    if at is None:
        return True
    utc = at.astimezone(UTC) if at.tzinfo else at
    return not (utc.minute or utc.second or utc.microsecond or (utc.hour and not macro.is_hourly))


def _is_day_complete(cursor: duckdb.DuckDBPyConnection, macro: _SumsMacro, project: str | None, at: datetime | None) -> bool:
    """Tell whether a time is followed by no scores on its day, so that the day's sums are valid up to it."""
    if macro.is_hourly or project is None:
        return False
    return bool(cursor.execute(_IS_DAY_COMPLETE, {"project": project, "at": at}).fetchall()[0][0])


_MACROS: Mapping[str, _SumsMacro] = {
    "score_days": _SumsMacro(SCORE_SUMS, ("scores",), "changed_scores"),
    "cost_hours": _SumsMacro(COST_SUMS, ("judgements", "exchanges"), "changed_judgements", is_hourly=True),
    "exchange_days": _SumsMacro(EXCHANGE_SUMS, ("exchanges",), "changed_exchanges"),
}
