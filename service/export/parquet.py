# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are literals, quoted
"""Exports to Parquet, with times in UTC: the whole log, or the latest revisions by project and day.

The log has one file per table, with rows in the order of topic, partition and offset. By project and day the files are
`TABLE/project=…/day=…/*.parquet`, by the UTC day of the event. A partition replaces the previous one in a single step. Partitions that
no longer have rows are left alone, because retention here does not decide what is kept elsewhere.
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

ROW_GROUP = 10_000
"""Rows per row group; small, because a replay reads windows and exchanges are large."""


def export_tables(store: Store, folder: Path, tell: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Write every table whose records travel on a topic; return the number of rows of each. `tell` is called with each table's name first.

    A file replaces an older one in a single step. InputError if the folder is not writable.
    """
    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for schema in current_schemas().values():
            if schema.topics:
                tell(schema.table)
                written[schema.table] = _export_table(store, schema, folder)
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}", hint="Choose a writable folder.") from error
    return written


def _export_table(store: Store, schema: RecordSchema, folder: Path) -> int:
    columns = [*(quote(name) for name in SYSTEM_COLUMNS)]
    columns += [
        f"{quote(name)}::{kind} AS {quote(name)}" for name, kind in column_types(schema, timestamp="TIMESTAMPTZ").items()
    ]
    unfinished = folder / f".{schema.table}.parquet"
    statement = (
        f"COPY (SELECT {', '.join(columns)} FROM {full_name(schema)} ORDER BY _topic, _partition, _offset) "
        f"TO {literal(str(unfinished))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
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
"""The event time of each table's records. Other tables have no project, or hold work in progress."""
KEYS = ("project", "day")
UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Selection:
    """The scope of an export: one project or all, and the days from `since` to before `until`."""

    project: str | None = None
    since: date | None = None
    until: date | None = None

    def of_project(self, project: str | None) -> Selection:
        """Return the same days of one project, or of all."""
        return replace(self, project=project)

    def condition(self) -> str:
        """Return the selection as a condition over project and day."""
        wanted = ["true"]
        if self.project is not None:
            wanted.append(f"project = {literal(self.project)}")
        if self.since is not None:
            wanted.append(f"day >= DATE {literal(self.since.isoformat())}")
        if self.until is not None:
            wanted.append(f"day < DATE {literal(self.until.isoformat())}")
        return " AND ".join(wanted)


def export_partitions(
    store: Store, folder: Path, selection: Selection, tell: Callable[[str], None] = lambda _: None
) -> dict[str, int]:
    """Write the selected records of every table with projects and days; return the number of rows of each. `tell` is called with each name first.

    InputError if the folder is not writable.
    """
    schemas = [schema for schema in current_schemas().values() if schema.table in EVENT_TIMES]
    written = {}
    try:
        for schema in schemas:
            tell(schema.table)
            written[schema.table] = _export_partitions_of(store, schema, folder, selection)
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}", hint="Choose a writable folder.") from error
    return written


def days_of(since: date | None, until: date | None) -> Selection:
    """Return a selection of days, both inclusive; InputError if the first comes after the last."""
    if since is not None and until is not None and since > until:
        raise InputError(f"--since {since} is after --until {until}", hint="Swap them.")
    return Selection(since=since, until=None if until is None else until + timedelta(days=1))


def _export_partitions_of(store: Store, schema: RecordSchema, folder: Path, selection: Selection) -> int:
    target, unfinished = folder / schema.table, folder / f"{UNFINISHED}-{schema.table}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        statement = (
            f"COPY ({_rows(schema, selection)}) TO {literal(str(unfinished))} "
            f"(FORMAT parquet, COMPRESSION zstd, PARTITION_BY ({', '.join(KEYS)}), OVERWRITE_OR_IGNORE)"
        )
        ((rows,),) = store.cursor().execute(statement).fetchall()
        for partition in sorted(unfinished.glob("project=*/day=*")):
            _put(partition, target / partition.relative_to(unfinished))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return int(rows)


def _rows(schema: RecordSchema, selection: Selection) -> str:
    """Return the latest revision of each selected record, with its day, in a fixed order, so that the same rows make the same files."""
    kinds = column_types(schema, timestamp="TIMESTAMPTZ")
    columns = ", ".join(f"{quote(name)}::{kind} AS {quote(name)}" for name, kind in kinds.items())
    own = "true" if selection.project is None else f"project = {literal(selection.project)}"
    source, latest = current_rows_sql(schema)
    rows = f"SELECT *, ({EVENT_TIMES[schema.table]})::DATE AS day FROM {source} WHERE {own}{latest}"
    order = ", ".join(map(quote, schema.identity))
    return f"SELECT {columns}, day FROM ({rows}) WHERE {selection.condition()} ORDER BY project, day, {order}"


def _put(made: Path, target: Path) -> None:
    """Move a partition into place, replacing the previous one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    before = target.with_name(f"{UNFINISHED}-{target.name}")
    shutil.rmtree(before, ignore_errors=True)
    if target.exists():
        target.rename(before)
    made.rename(target)
    shutil.rmtree(before, ignore_errors=True)
