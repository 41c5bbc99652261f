# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Daily sums of scores, judgements and exchanges per project (UTC), and reading them by hour and by day.

Sums are kept so that no query has to add up millions of records, and read without paying for the planning of statements that are not needed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from analytics.queries import queries, query_rows
from analytics.store.connection import fetch
from analytics.store.store import Partition, Store, Transaction
from analytics.sums.kept import (
    ASKED,
    COST_SUMS,
    EXCHANGE_SUMS,
    HOUR_KEY,
    HOUR_SCALES,
    KEPT,
    OF_SCORES,
    SCORE_SUMS,
    TABLES,
    Day,
    KeptSums,
    behind,
)
from analytics.sums.macros import RETENTION
from schemas.lazy import duckdb, pl

AT_ONCE = 100_000
"""New records that one transaction adds up."""
_FORGET = """
    DELETE FROM log.hourly_scores AS kept
    USING (SELECT unnest($projects::VARCHAR[]) AS project, unnest($firsts::TIMESTAMP[]) AS first) AS wanted, log.watermarks AS marks
    WHERE kept.project = wanted.project AND hour < first
        AND marks.consumer = $consumer AND marks.topic = kept.project AND hour < make_timestamp(next_position)
"""
_MARKS = "SELECT topic, partition, next_position FROM log.watermarks WHERE consumer = $consumer"
_CHANGED = "SELECT day::DATE, project, count(*) FROM {changed} GROUP BY day, project ORDER BY ALL"


def refresh_daily(store: Store) -> set[Day]:
    """Recompute the days with new records since the last call; return the days with new scores. Any thread may call it at any time.

    A transaction takes up to AT_ONCE new records, or one project's day, so that intake does not wait for long. If a call is
    interrupted, the next one starts over.
    """
    return {kept: _refresh(store, kept) for kept in KEPT}[OF_SCORES]


def _refresh(store: Store, kept: KeptSums) -> set[Day]:
    before, ends, changed = _changed(store, kept)
    for days in _batches(changed):
        with store.transaction() as transaction:
            kept.add_up(transaction.connection, days)
    if changed:
        with store.transaction() as transaction:
            # If the sums were dropped meanwhile, the watermarks changed, and the dropped days have to be added up again.
            if transaction.watermarks(kept.consumer) == before:
                transaction.set_watermarks(kept.consumer, ends)
    return set(changed)


def recompute_days(transaction: Transaction, days: Iterable[Day]) -> None:
    """Recompute the sums of these days after scores were deleted in the same transaction; a day without scores has no sums."""
    OF_SCORES.add_up(transaction.connection, days)


def forget_hours(store: Store, kept_from: Callable[[str], datetime]) -> int:
    """Delete each project's hourly sums from before a moment, for days whose scores retention has deleted; return the number of rows."""
    with store.transaction() as transaction:
        starts = transaction.watermarks(RETENTION)
        firsts = {project: kept_from(project) for project, _ in starts}
        values = {
            "projects": list(firsts),
            "firsts": [one.replace(tzinfo=None) for one in firsts.values()],
            "consumer": RETENTION,
        }
        ((deleted,),) = transaction.connection.execute(_FORGET, values).fetchall()
        return int(deleted)


def _changed(store: Store, kept: KeptSums) -> tuple[dict[Partition, int], dict[Partition, int], dict[Day, int]]:
    """The watermarks, the new ends after the records that came since, and the number of new records per day, all from one snapshot."""
    with contextlib.closing(store.cursor()) as cursor:
        cursor.begin()
        marks = cursor.execute(_MARKS, {"consumer": kept.consumer}).fetchall()
        rows = cursor.execute(_CHANGED.format(changed=kept.changed)).fetchall()
        ends = cursor.execute(kept.ends).fetchall() if rows else []
    days = Counter[Day]()
    for day, project, count in rows:
        days[project, day] = count
    return _positions(marks), _positions(ends), days


def _positions(rows: Iterable[tuple[str, int, int]]) -> dict[Partition, int]:
    return {(topic, partition): position for topic, partition, position in rows}


def _batches(changed: Mapping[Day, int]) -> Iterator[list[Day]]:
    """Batches of the changed days, each with up to AT_ONCE new records, or a single project's day with more."""
    batch: list[Day] = []
    records = 0
    for day, count in changed.items():
        if batch and records + count > AT_ONCE:
            yield batch
            batch, records = [], 0
        batch.append(day)
        records += count
    if batch:
        yield batch


_WANTED = "list_contains($projects::VARCHAR[], project)"
_CHANGED_PROJECTS = f"SELECT DISTINCT project FROM log.changed_scores() WHERE {_WANTED} AND day >= $since AND day < $until"
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
    single = _changed_projects(cursor, wanted)
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


def _changed_projects(cursor: duckdb.DuckDBPyConnection, wanted: Mapping[str, Any]) -> set[str]:
    """The projects with new scores since the sums of their days were computed."""
    if not is_behind(cursor, SCORE_SUMS, "scores"):
        return set()
    return {project for (project,) in cursor.execute(_CHANGED_PROJECTS, dict(wanted)).fetchall()}


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
