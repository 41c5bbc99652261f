# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are literals, quoted
"""Exports to Parquet, with times in UTC: the whole log, or the latest revisions partitioned by project and day.

Every export ends with lines in a signed manifest beside its files (`manifest.py`, `sealing.py`). The new files get their names last, after
the manifest: if the process is killed in between, the folder does not verify, and the next export repairs it.

An export of the log has one file per table, with rows ordered by topic, partition and offset. A partitioned export has the files
`TABLE/project=…/day=…/*.parquet`, by the UTC day of the event. A partition replaces the previous one atomically. Partitions without rows
are not deleted, because the retention of the database does not apply to exports.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from analytics.store.copying import sync
from analytics.store.store import Store
from analytics.store.tables import EVENT_TIMES, SYSTEM_COLUMNS, column_types, full_name, literal, quote
from analytics.store.views import current_rows_sql
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.registry import RecordSchema, current_schemas
from service.export.manifest import MANIFEST, Manifest, ManifestWriter, digest_file, read_manifest, require_continuable
from service.export.sealing import seal

UNFINISHED = ".unfinished"
ROW_GROUP_SIZE = 10_000
"""Rows per row group. Groups are small, because replays read windows of time and exchanges are large."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: rows by table, and the head of its manifest.

    `removed` are numbers of records that the previous export still had or had unchanged, by table and reason.
    """

    rows: Mapping[str, int]
    number: int
    head: str
    removed: Mapping[tuple[str, str], int] = field(default_factory=dict)


def export_tables(
    store: Store, folder: Path, key: Ed25519PrivateKey, report: Callable[[str], None] = lambda _: None
) -> Exported:
    """Write every table with records of a topic. `report` is called with each table's name first.

    Raises InputError if the folder is not writable, or if its manifest cannot be continued.
    """
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        manifest = read_manifest(folder)
        require_continuable(manifest, folder, key)
        writer = ManifestWriter(manifest, key)
        sealed = seal(store, folder, manifest, writer, report)
        try:
            written = write_tables(store, folder, report)
            files = {f"{table}.parquet": digest_file(folder / f"{UNFINISHED}-{table}.parquet") for table in written}
            _write_manifest(folder, manifest, writer.finish(files))
            for table in written:
                (folder / f"{UNFINISHED}-{table}.parquet").replace(folder / f"{table}.parquet")
        finally:
            for unfinished in folder.glob(f"{UNFINISHED}-*.parquet"):
                unfinished.unlink()
    return Exported(written, writer.number, writer.head, sealed.removed)


def write_tables(store: Store, folder: Path, report: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Write the table of every record type with a topic to an unfinished file; return their numbers of rows."""
    written = {}
    for schema in current_schemas().values():
        if schema.topics:
            report(schema.table)
            written[schema.table] = _write_table(store, schema, folder)
    return written


def _write_table(store: Store, schema: RecordSchema, folder: Path) -> int:
    columns = [*(quote(name) for name in SYSTEM_COLUMNS)]
    columns += [
        f"{quote(name)}::{column_type} AS {quote(name)}"
        for name, column_type in column_types(schema, timestamp="TIMESTAMPTZ").items()
    ]
    unfinished = folder / f"{UNFINISHED}-{schema.table}.parquet"
    statement = (
        f"COPY (SELECT {', '.join(columns)} FROM {full_name(schema)} ORDER BY _topic, _partition, _offset) "
        f"TO {literal(str(unfinished))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_SIZE})"
    )
    ((rows,),) = store.cursor().execute(statement).fetchall()
    return int(rows)


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Raise errors of the system and of writing as InputError that names the folder."""
    try:
        yield
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}", hint="Choose a writable folder.") from error


def _write_manifest(folder: Path, manifest: Manifest, content: bytes) -> None:
    if content == manifest.content:
        return
    unfinished = folder / f"{UNFINISHED}-{MANIFEST}"
    unfinished.write_bytes(content)
    sync(unfinished)
    unfinished.replace(folder / MANIFEST)
    sync(folder)


INTERNAL_TABLES = ("dead_letters", "erasures", "evaluation_requests", "judging_requests", "scoring_tasks")
"""Tables that have no project or contain work in progress, and are not exported by project and day."""
PARTITIONED_TABLES = [table for table in EVENT_TIMES if table not in INTERNAL_TABLES]
PARTITION_KEYS = ("project", "day")


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
    store: Store, folder: Path, selection: Selection, key: Ed25519PrivateKey, report: Callable[[str], None] = lambda _: None
) -> Exported:
    """Write the selected records of every table with projects and days. `report` is called with each table's name first.

    The manifest has the digests of the files, and no lines of records: they are latest revisions, which change. Raises InputError if
    the folder is not writable, or if its manifest cannot be continued.
    """
    schemas = [schema for schema in current_schemas().values() if schema.table in PARTITIONED_TABLES]
    written = {}
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        manifest = read_manifest(folder)
        require_continuable(manifest, folder, key)
        try:
            for schema in schemas:
                report(schema.table)
                written[schema.table] = _write_partitions(store, schema, folder, selection)
            partitions = [
                (partition, folder / schema.table / partition.relative_to(_unfinished_folder(folder, schema)))
                for schema in schemas
                for partition in sorted(_unfinished_folder(folder, schema).glob("project=*/day=*"))
            ]
            files: dict[str, str | None] = {}
            for partition, target in partitions:
                files |= {str(file.relative_to(folder)): None for file in sorted(target.glob("*.parquet"))}
                files |= {
                    str((target / file.name).relative_to(folder)): digest_file(file)
                    for file in sorted(partition.glob("*.parquet"))
                }
            writer = ManifestWriter(manifest, key)
            _write_manifest(folder, manifest, writer.finish(files))
            for partition, target in partitions:
                _replace_partition(partition, target)
        finally:
            for schema in schemas:
                shutil.rmtree(_unfinished_folder(folder, schema), ignore_errors=True)
    return Exported(written, writer.number, writer.head)


def select_days(since: date | None, until: date | None) -> Selection:
    """Return the selection of the days between two days, both included. Raises InputError if `since` is after `until`."""
    if since is not None and until is not None and since > until:
        raise InputError(f"--since {since} is after --until {until}", hint="Swap the two dates.")
    return Selection(since=since, until=None if until is None else until + timedelta(days=1))


def _unfinished_folder(folder: Path, schema: RecordSchema) -> Path:
    return folder / f"{UNFINISHED}-{schema.table}"


def _write_partitions(store: Store, schema: RecordSchema, folder: Path, selection: Selection) -> int:
    unfinished = _unfinished_folder(folder, schema)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    statement = (
        f"COPY ({_select_rows(schema, selection)}) TO {literal(str(unfinished))} "
        f"(FORMAT parquet, COMPRESSION zstd, PARTITION_BY ({', '.join(PARTITION_KEYS)}), OVERWRITE_OR_IGNORE)"
    )
    ((rows,),) = store.cursor().execute(statement).fetchall()
    return int(rows)


def _select_rows(schema: RecordSchema, selection: Selection) -> str:
    """Return the query for the latest revision of each selected record, with its day. The order is fixed, so that exports are reproducible."""
    types = column_types(schema, timestamp="TIMESTAMPTZ")
    columns = ", ".join(f"{quote(name)}::{column_type} AS {quote(name)}" for name, column_type in types.items())
    of_project = "true" if selection.project is None else f"project = {literal(selection.project)}"
    source, latest = current_rows_sql(schema)
    rows = f"SELECT *, coalesce({', '.join(EVENT_TIMES[schema.table])})::DATE AS day FROM {source} WHERE {of_project}{latest}"
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
