# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Snapshots for analysts: a separate file with the latest revisions, built from a copy without blocking writers; and its catalogue.

1. A checkpoint folds the write-ahead log into the file. From then on DuckDB appends to a new log and touches no block that the
   file's header refers to, until the next checkpoint has written the header again.
2. So a separate process copies the file while writers go on (`analytics.store.copying`). Checkpoints by size are suspended meanwhile,
   and a copy during which the header changed is discarded and made again.
3. Another process, at low priority, builds the analysts' tables from the copy, with one row per identity.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from analytics.store.copying import copied_whole
from analytics.store.store import Store
from analytics.store.tables import LOG, columns_of, literal, quote
from analytics.store.views import WITHDRAWN, current_first, has_withdrawn, view_statements
from schemas.errors import StoreError
from schemas.lazy import duckdb
from schemas.registry import RecordSchema, current_schemas

LEFT_OUT = {
    "agent_events": ("payload",),
    "anchors": ("exchange",),
    "dead_letters": ("body",),
    "evaluations": ("result",),
    "exchanges": ("user_message", "agent_response", "agent_thinking", "raw_user_message"),
    "judgements": ("answer",),
}
"""The columns that a snapshot leaves out: raw texts and bytes. The judge's verdicts on them are included."""
WORK = frozenset({"scoring_tasks", "judging_requests", "evaluation_requests"})
"""Tables of work queued between stages. Their outcomes are in other tables."""
ATTEMPTS = 5
NEVER = "1TB"
BUILD_MEMORY = "1GB"

NUMBERS = (
    f"CREATE SCHEMA {LOG}",
    f"CREATE TABLE {LOG}.run_numbers (project VARCHAR, connection VARCHAR, session_id VARCHAR, number BIGINT)",
    f"COMMENT ON TABLE {LOG}.run_numbers IS 'Numbers of the runs of each project; the view runs has them beside the verdicts.'",
)
"""The statements that create the table of run numbers, which the views join, if the log has it."""

Changes = tuple[int, int, int]
"""A commit changes one of these: the file's modification time and length, and the length of its write-ahead log."""

_COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type, c.comment, coalesce(v.comment, t.comment) AS about, v.view_name IS NOT NULL AS is_view
FROM duckdb_columns() AS c
LEFT JOIN (SELECT view_name, comment FROM duckdb_views() WHERE NOT internal) AS v ON c.table_name = v.view_name
LEFT JOIN duckdb_tables() AS t ON c.table_name = t.table_name
WHERE NOT c.internal AND c.schema_name = 'main'
ORDER BY is_view DESC, coalesce(v.view_name, t.table_name), c.column_index
"""


def changes_of(path: Path) -> Changes:
    """Return a value that changes when a database does, read from its files' metadata without opening it."""
    try:
        length = Path(f"{path}.wal").stat().st_size
    except FileNotFoundError:
        length = 0
    file = path.stat()
    return file.st_mtime_ns, file.st_size, length


def copy_database(store: Store, target: Path) -> Changes:
    """Copy the store's file as it is after a checkpoint, without blocking writers; return its state as `changes_of` does.

    StoreError for a store in memory, or if a checkpoint overtook every attempt.
    """
    if store.path is None:
        raise StoreError("a database in memory has no snapshots", hint="Open a file.")
    with _no_checkpoint_by_size(store):
        for _ in range(ATTEMPTS):
            store.checkpoint()
            modified, size, _ = changes_of(store.path)
            if copied_whole(store.path, target):
                return modified, size, 0  # records now in the write-ahead log are not in the copy
    target.unlink(missing_ok=True)
    raise StoreError(f"{store.path}: checkpoints came faster than the file can be copied", hint="Try again a little later.")


@contextlib.contextmanager
def _no_checkpoint_by_size(store: Store) -> Iterator[None]:
    with contextlib.closing(store.cursor()) as cursor:
        ((threshold,),) = cursor.execute("SELECT current_setting('checkpoint_threshold')").fetchall()
        cursor.execute(f"SET GLOBAL checkpoint_threshold = {literal(NEVER)}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL checkpoint_threshold = {literal(threshold)}")


def build_snapshot(copy: Path, target: Path, spill: Path) -> None:
    """Build the analysts' file from a copy of the database: one table per record type, with latest revisions, and the readable views.

    `spill` is a folder for data that does not fit into memory. StoreError if the copy cannot be read or the file cannot be written.
    """
    config: dict[str, str | int | bool] = {
        "threads": 1,
        "memory_limit": BUILD_MEMORY,
        "temp_directory": str(spill),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        with duckdb.connect(str(target), config=config) as connection:  # type: ignore[arg-type]
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"ATTACH {literal(str(copy))} AS source (READ_ONLY)")
            rows = _rows_of(connection)
            done = 0
            for schema in shown_schemas():
                _tell(target, Progress(done, rows.total(), schema.table, rows[schema.table]))
                done += rows[schema.table]
                for statement in _table_statements(schema):
                    connection.execute(statement)
            for statement in NUMBERS:
                connection.execute(statement)
            connection.execute(
                f"INSERT INTO {LOG}.run_numbers SELECT project, connection, session_id, number FROM source.{LOG}.run_numbers"
            )
            connection.execute("DETACH source")
            for statement in view_statements():
                connection.execute(statement)
            connection.execute("CHECKPOINT")
    except duckdb.Error as error:
        raise StoreError(f"{target}: {str(error).splitlines()[0]}", hint="See that the disk has room for it.") from error


def _rows_of(connection: duckdb.DuckDBPyConnection) -> Counter[str]:
    """Return the estimated number of rows of each table that goes into a snapshot, from the source's catalogue."""
    result = connection.execute(
        f"SELECT table_name, estimated_size FROM duckdb_tables() WHERE database_name = 'source' AND schema_name = '{LOG}'"
    )
    sizes = dict(result.fetchall())
    return Counter({one.table: sizes.get(one.table, 0) for one in shown_schemas()})


def shown_schemas() -> list[RecordSchema]:
    """The record types with a table in a snapshot: all that travel on topics, except queued work."""
    return [schema for schema in current_schemas().values() if schema.topics and schema.table not in WORK]


def _tell(target: Path, progress: Progress) -> None:
    """Record the progress of a snapshot in one step, so that a reader never sees half of it."""
    beside = progress_file(target).with_suffix(".new")
    beside.write_text(" ".join(map(str, progress)), encoding="ascii")
    beside.replace(progress_file(target))


def progress_file(target: Path) -> Path:
    """Return the progress file beside a snapshot under construction: rows done, and rows in all."""
    return target.with_suffix(".progress")


def _table_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that fill a table.

    Few identities have a second revision, so these are found first: sorting all rows would take most of the time. Only narrow rows are
    sorted, because the evidence of twenty thousand incidents exceeds the memory limit.
    """
    table, names = f"main.{quote(schema.table)}", shown_columns(schema)
    columns, rows = ", ".join(map(quote, names)), f"source.{LOG}.{quote(schema.table)}"
    if schema.has_revisions or len(schema.topics) > 1:
        identity = ", ".join(map(quote, schema.identity))
        there = f" AND NOT {WITHDRAWN}" if has_withdrawn(schema) else ""
        yield f"CREATE OR REPLACE TEMP TABLE repeated AS SELECT {identity} FROM {rows} GROUP BY ALL HAVING count(*) > 1"
        yield (
            f"CREATE OR REPLACE TEMP TABLE latest AS SELECT rowid AS place FROM {rows} SEMI JOIN repeated USING ({identity}) "
            f"QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY {current_first(schema)}) = 1"
        )
        yield (
            f"CREATE TABLE {table} AS SELECT {columns} FROM {rows} ANTI JOIN repeated USING ({identity}) "
            f"UNION ALL SELECT {columns} FROM {rows} WHERE rowid IN (SELECT place FROM latest){there}"
        )
    else:
        yield f"CREATE TABLE {table} AS SELECT {columns} FROM {rows}"
    yield from comment_statements(schema)


def shown_columns(schema: RecordSchema) -> list[str]:
    """The columns of a record type in a snapshot."""
    return [name for name in columns_of(schema) if name not in LEFT_OUT.get(schema.table, ())]


def comment_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that add the comments of a snapshot's table and its columns."""
    table, names = f"main.{quote(schema.table)}", shown_columns(schema)
    yield f"COMMENT ON TABLE {table} IS {literal(schema.definition['doc'])}"
    for field in schema.fields:
        if field["name"] in names:
            yield f"COMMENT ON COLUMN {table}.{quote(field['name'])} IS {literal(field['doc'])}"


class Progress(NamedTuple):
    """Progress of building the tables of a snapshot, in rows as the catalogue estimates them."""

    done: int
    """Rows of the tables that are done."""
    total: int
    table: str
    """The table under construction."""
    rows: int
    """Its rows."""


def progress_of(target: Path) -> Progress | None:
    """Return the progress of a snapshot under construction; None before there is any."""
    try:
        done, total, table, rows = progress_file(target).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return Progress(int(done), int(total), table, int(rows))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, DuckDB's name of its type, and a description, which is empty if the name says enough."""

    name: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table of a snapshot, with its columns in their order."""

    name: str
    words: str
    is_view: bool
    """True for a view made for analysts; the other relations are the record types themselves."""
    columns: tuple[Column, ...]


@functools.cache
def readable_catalogue() -> tuple[Relation, ...]:
    """Every view, then every table, each by name."""
    with duckdb.connect(":memory:") as connection:
        for schema in shown_schemas():
            types = columns_of(schema)
            columns = ", ".join(f"{quote(name)} {types[name]}" for name in shown_columns(schema))
            connection.execute(f"CREATE TABLE main.{quote(schema.table)} ({columns})")
            for statement in comment_statements(schema):
                connection.execute(statement)
        for statement in (*NUMBERS, *view_statements()):
            connection.execute(statement)
        rows = connection.execute(_COLUMNS).fetchall()
    columns_by_table: dict[str, list[Column]] = {}
    about = {}
    for table, name, kind, column_comment, comment, is_view in rows:
        columns_by_table.setdefault(table, []).append(Column(name, kind, column_comment or ""))
        about[table] = comment or "", is_view
    return tuple(Relation(name, *about[name], columns=tuple(columns)) for name, columns in columns_by_table.items())
