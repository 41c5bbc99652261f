# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are literals, quoted
"""Exports to Parquet, with times in UTC: the whole log, or the latest revisions partitioned by project and day.

An export of the log has one file per table, with rows ordered by topic, partition and offset. A partitioned export has the files
`TABLE/project=…/day=…/*.parquet`, by the UTC day of the event. A partition replaces the previous one atomically. Partitions without rows
are not deleted, because the retention of the database does not apply to exports.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from analytics.store.store import Store
from analytics.store.tables import SYSTEM_COLUMNS, column_types, full_name, literal, quote
from analytics.store.views import current_rows_sql
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.registry import RecordSchema, current_schemas

ROW_GROUP_SIZE = 10_000
"""Rows per row group. Groups are small, because replays read windows of time and exchanges are large."""


def export_tables(store: Store, folder: Path, report: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Write every table with records of a topic, and return their numbers of rows. `report` is called with each table's name first.

    A file replaces the previous one atomically. Raises InputError if the folder is not writable.
    """
    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for schema in current_schemas().values():
            if schema.topics:
                report(schema.table)
                written[schema.table] = _export_table(store, schema, folder)
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}", hint="Choose a writable folder.") from error
    return written


def _export_table(store: Store, schema: RecordSchema, folder: Path) -> int:
    columns = [*(quote(name) for name in SYSTEM_COLUMNS)]
    columns += [
        f"{quote(name)}::{column_type} AS {quote(name)}"
        for name, column_type in column_types(schema, timestamp="TIMESTAMPTZ").items()
    ]
    unfinished = folder / f".{schema.table}.parquet"
    statement = (
        f"COPY (SELECT {', '.join(columns)} FROM {full_name(schema)} ORDER BY _topic, _partition, _offset) "
        f"TO {literal(str(unfinished))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_SIZE})"
    )
    ((rows,),) = store.cursor().execute(statement).fetchall()
    unfinished.replace(folder / f"{schema.table}.parquet")
    return int(rows)


EVENT_TIMES = {
    "agent_events": "occurred_at",
    "anchors": "occurred_at",
    "baselines": "computed_at",
    "deployments": "occurred_at",
    "diagnoses": "coalesce(started_at, closed_at)",
    "evaluations": "evaluated_at",
    "exchanges": "occurred_at",
    "heartbeats": "occurred_at",
    "incidents": "detected_at",
    "judgements": "judged_at",
    "reservations": "reserved_at",
    "reviews": "occurred_at",
    "scores": "exchange_at",
    "session_closings": "closed_at",
    "spans": "started_at",
    "trace_assemblies": "started_at",
}
"""The event time of each table's records. Other tables have no project or contain work in progress, and are not exported."""
PARTITION_KEYS = ("project", "day")
UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Selection:
    """The scope of an export: one project or all projects, and the days from `since` up to, but not including, `until`."""

    project: str | None = None
    since: date | None = None
    until: date | None = None

    def of_project(self, project: str | None) -> Selection:
        """Return the same days of one project, or of all projects."""
        return replace(self, project=project)

    def condition(self) -> str:
        """Return the selection as an SQL condition on project and day."""
        conditions = ["true"]
        if self.project is not None:
            conditions.append(f"project = {literal(self.project)}")
        if self.since is not None:
            conditions.append(f"day >= DATE {literal(self.since.isoformat())}")
        if self.until is not None:
            conditions.append(f"day < DATE {literal(self.until.isoformat())}")
        return " AND ".join(conditions)


def export_partitions(
    store: Store, folder: Path, selection: Selection, report: Callable[[str], None] = lambda _: None
) -> dict[str, int]:
    """Write the selected records of every table with projects and days, and return their numbers of rows.

    `report` is called with each table's name first. Raises InputError if the folder is not writable.
    """
    schemas = [schema for schema in current_schemas().values() if schema.table in EVENT_TIMES]
    written = {}
    try:
        for schema in schemas:
            report(schema.table)
            written[schema.table] = _export_table_partitions(store, schema, folder, selection)
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}", hint="Choose a writable folder.") from error
    return written


def select_days(since: date | None, until: date | None) -> Selection:
    """Return the selection of the days between two days, both included. Raises InputError if `since` is after `until`."""
    if since is not None and until is not None and since > until:
        raise InputError(f"--since {since} is after --until {until}", hint="Swap the two dates.")
    return Selection(since=since, until=None if until is None else until + timedelta(days=1))


def _export_table_partitions(store: Store, schema: RecordSchema, folder: Path, selection: Selection) -> int:
    target = folder / schema.table
    unfinished = folder / f"{UNFINISHED}-{schema.table}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        statement = (
            f"COPY ({_select_rows(schema, selection)}) TO {literal(str(unfinished))} "
            f"(FORMAT parquet, COMPRESSION zstd, PARTITION_BY ({', '.join(PARTITION_KEYS)}), OVERWRITE_OR_IGNORE)"
        )
        ((rows,),) = store.cursor().execute(statement).fetchall()
        for partition in sorted(unfinished.glob("project=*/day=*")):
            _replace_partition(partition, target / partition.relative_to(unfinished))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return int(rows)


def _select_rows(schema: RecordSchema, selection: Selection) -> str:
    """Return the query for the latest revision of each selected record, with its day. The order is fixed, so that exports are reproducible."""
    types = column_types(schema, timestamp="TIMESTAMPTZ")
    columns = ", ".join(f"{quote(name)}::{column_type} AS {quote(name)}" for name, column_type in types.items())
    of_project = "true" if selection.project is None else f"project = {literal(selection.project)}"
    source, latest = current_rows_sql(schema)
    rows = f"SELECT *, ({EVENT_TIMES[schema.table]})::DATE AS day FROM {source} WHERE {of_project}{latest}"
    order = ", ".join(map(quote, schema.identity))
    return f"SELECT {columns}, day FROM ({rows}) WHERE {selection.condition()} ORDER BY project, day, {order}"


def _replace_partition(partition: Path, target: Path) -> None:
    """Move a new partition into place, replacing the previous one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    previous = target.with_name(f"{UNFINISHED}-{target.name}")
    shutil.rmtree(previous, ignore_errors=True)
    if target.exists():
        target.rename(previous)
    partition.rename(target)
    shutil.rmtree(previous, ignore_errors=True)
