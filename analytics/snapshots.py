# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Snapshots for analysts: a separate file with the latest revisions, built without blocking writers, and its catalog.

1. A checkpoint folds the write-ahead log into the file. Until the next checkpoint rewrites the header, DuckDB appends to a new
   log and changes no block that the header refers to.
2. A separate process therefore copies the file while writers continue (`analytics.store.copying`). Checkpoints by size are
   suspended meanwhile. If the header changed during a copy, the copy is repeated.
3. Another process, at low priority, builds the analysts' tables from the copy, with one row per identity.
4. Readers of some projects have snapshots of their own, which contain no other rows.
5. A snapshot of a lake has the same tables and views. With the database of a server beside the lake, records that the database has come
   from it, and so do `failure_groups` and the numbers of runs, which are missing otherwise. Rows are in the order of projects and
   days, so a statement about some of these skips the others.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from analytics.deletion.deleting import ERASURES, schemas_of_sessions
from analytics.lake import ORIGIN, Lake
from analytics.lake_sql import select_rows
from analytics.store.copying import copy_in_subprocess
from analytics.store.store import Store
from analytics.store.tables import LOG, column_types, literal, quote
from analytics.store.views import SUMMED_TABLE, SUMMED_VIEW, WITHDRAWN, can_be_withdrawn, current_order, view_statements
from audit.anchors import anchor_project
from schemas.errors import StoreError
from schemas.lazy import duckdb
from schemas.registry import RecordSchema, current_schemas

EXCLUDED_COLUMNS = {
    "agent_events": ("payload",),
    "anchors": ("exchange",),
    "dead_letters": ("body",),
    "evaluations": ("result",),
    "exchanges": ("user_message", "agent_response", "agent_thinking", "raw_user_message"),
    "judgements": ("answer",),
}
"""The columns that a snapshot excludes: raw texts and bytes. The judge's verdicts on them are included."""
QUEUE_TABLES = frozenset({"scoring_tasks", "judging_requests", "evaluation_requests"})
"""Tables of work queued between stages. Their outcomes are in other tables."""
MAX_COPY_ATTEMPTS = 5
UNREACHABLE_THRESHOLD = "1TB"
BUILD_MEMORY = "1GB"

RUN_NUMBER_STATEMENTS = (
    f"CREATE SCHEMA {LOG}",
    f"CREATE TABLE {LOG}.run_numbers (project VARCHAR, connection VARCHAR, session_id VARCHAR, number BIGINT)",
    f"COMMENT ON TABLE {LOG}.run_numbers IS 'Numbers of the runs of each project; the view runs has them beside the verdicts.'",
)
"""Statements that create the table of run numbers, which the views join."""

_UNLESS_ERASED = (
    f"WHERE NOT coalesce((connection, session_id) IN (SELECT (connection, session_id) FROM main.{ERASURES}), false) "
    f"AND NOT coalesce(connection IN (SELECT connection FROM main.{ERASURES} WHERE session_id IS NULL), false)"
)
"""Leaves out the rows of erased sessions and connections: a sink may have written them before the erasure reached it."""

FileState = tuple[int, int, int]
"""Modification time and length of the file, and length of its write-ahead log. Every commit changes one of them."""

_COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type, c.comment, coalesce(v.comment, t.comment) AS about, v.view_name IS NOT NULL AS is_view
FROM duckdb_columns() AS c
LEFT JOIN (SELECT view_name, comment FROM duckdb_views() WHERE NOT internal) AS v ON c.table_name = v.view_name
LEFT JOIN duckdb_tables() AS t ON c.table_name = t.table_name
WHERE NOT c.internal AND c.schema_name = 'main'
ORDER BY is_view DESC, coalesce(v.view_name, t.table_name), c.column_index
"""


def read_file_state(path: Path) -> FileState:
    """Return a value that changes with every commit, from the metadata of the database's files."""
    try:
        length = Path(f"{path}.wal").stat().st_size
    except FileNotFoundError:
        length = 0
    file = path.stat()
    return file.st_mtime_ns, file.st_size, length


def copy_database(store: Store, target: Path) -> FileState:
    """Copy the store's file after a checkpoint without blocking writers; return its state like `read_file_state`.

    Raises StoreError for a store in memory, or if every copy was overtaken by a checkpoint.
    """
    if store.path is None:
        raise StoreError("an in-memory database has no snapshots", hint="Open a database file.")
    with _suspend_checkpoints(store):
        for _ in range(MAX_COPY_ATTEMPTS):
            store.checkpoint()
            modified, size, _ = read_file_state(store.path)
            if copy_in_subprocess(store.path, target):
                return modified, size, 0  # the copy has no records from the write-ahead log
    target.unlink(missing_ok=True)
    raise StoreError(f"{store.path}: every copy was overtaken by a checkpoint", hint="Try again later.")


@contextlib.contextmanager
def _suspend_checkpoints(store: Store) -> Iterator[None]:
    """Suspend checkpoints by the size of the write-ahead log."""
    with contextlib.closing(store.cursor()) as cursor:
        ((threshold,),) = cursor.execute("SELECT current_setting('checkpoint_threshold')").fetchall()
        cursor.execute(f"SET GLOBAL checkpoint_threshold = {literal(UNREACHABLE_THRESHOLD)}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL checkpoint_threshold = {literal(threshold)}")


def build_snapshot(copy: Path, target: Path, spill: Path) -> None:
    """Build the analysts' file from a copy of the database: a table of latest revisions per record type, and the analysts' views.

    `spill` is a folder for data that exceeds memory. Raises StoreError if the copy cannot be read or the file cannot be written.
    """
    with _create_snapshot(target, spill, source=copy) as connection:
        rows = _estimate_rows(connection)
        done = 0
        for schema in snapshot_schemas():
            _write_progress(target, Progress(done, rows.total(), schema.table, rows[schema.table]))
            done += rows[schema.table]
            if schema.has_revisions or len(schema.topics) > 1:
                statements = _current_rows_statements(schema, f"source.{LOG}.{quote(schema.table)}")
            else:
                statements = _create_table_statements(schema, f"FROM source.{LOG}.{quote(schema.table)}")
            for statement in statements:
                connection.execute(statement)
        _copy_run_numbers(connection, "true")


def build_lake_snapshot(root: str, target: Path, spill: Path, copy: Path | None = None) -> None:
    """Build the analysts' file from the present version of a lake in a folder, and from a copy of the database of a server beside it.

    Records of the database take precedence; the lake adds those that have left it. Sums and numbers of runs are the database's.

    Raises LakeError if there is no lake, StoreError if files cannot be read or the snapshot cannot be written.
    """
    lake = Lake(root)
    lake.require()
    # Erasures come first: they apply to the other tables.
    schemas = sorted(snapshot_schemas(), key=lambda schema: schema.table != ERASURES)
    rows = Counter({schema.table: lake.count(schema.name) for schema in schemas if schema.topics})
    with _create_snapshot(target, spill, source=copy) as connection:
        done = 0
        for schema in schemas:
            _write_progress(target, Progress(done, rows.total(), schema.table, rows[schema.table]))
            done += rows[schema.table]
            if schema.topics:
                sources = _select_lake_rows(lake, schema) if copy is None else _select_spanning_rows(lake, schema)
                statements = _table_statements(schema, sources)
            elif copy is not None:
                statements = _create_table_statements(schema, f"FROM source.{LOG}.{quote(schema.table)}")
            else:
                continue
            for statement in statements:
                connection.execute(statement)
        if copy is None:
            for statement in RUN_NUMBER_STATEMENTS:
                connection.execute(statement)
            numbers = "SELECT DISTINCT project, connection, session_id, NULL FROM main.diagnoses"
            connection.execute(f"INSERT INTO {LOG}.run_numbers {numbers}")
        else:
            _copy_run_numbers(connection, "true")


def _select_lake_rows(lake: Lake, schema: RecordSchema) -> list[str]:
    """Return the statement that selects the rows of a table of a lake; none if there are none."""
    # The paths begin with the project and the day.
    files = sorted(lake.table(schema.name).file_uris())
    return [select_rows(schema, files, lake.columns(schema.name))] if files else []


def _select_spanning_rows(lake: Lake, schema: RecordSchema) -> list[str]:
    """Return the statements that select the rows of a database, and those of a lake that it lacks.

    A record that both have is taken from the database, because texts in a lake may be encrypted.
    """
    rows = f"source.{LOG}.{quote(schema.table)}"
    columns = ", ".join(map(quote, [*ORIGIN, *column_types(schema)]))
    missing = [
        f"SELECT {columns} FROM ({rest}) ANTI JOIN {rows} USING ({', '.join(ORIGIN)})"
        for rest in _select_lake_rows(lake, schema)
    ]
    return [*missing, f"SELECT {columns} FROM {rows}"]


def _table_statements(schema: RecordSchema, sources: Sequence[str]) -> Iterator[str]:
    """Return the statements that create a table and fill it with the current rows of statements that select rows of the log."""
    if not sources:
        types = column_types(schema)
        columns = ", ".join(f"{quote(name)} {types[name]}" for name in snapshot_columns(schema))
        yield f"CREATE TABLE main.{quote(schema.table)} ({columns})"
        yield from comment_statements(schema)
        return
    table = f"main.{quote(schema.table)}"
    kept = _UNLESS_ERASED if schema in schemas_of_sessions() else ""
    columns = ", ".join(map(quote, [*ORIGIN, *snapshot_columns(schema)]))
    # Copy all rows and delete the superseded ones: finding these in the files first would read all files again.
    yield f"CREATE TABLE {table} AS SELECT {columns} FROM ({' UNION ALL '.join(sources)}) {kept}"
    # A topic may have a record twice, and the first one counts.
    yield from _superseded_statements(schema, table, current_order(schema, "_partition, _offset"))
    or_withdrawn = f" OR {WITHDRAWN}" if can_be_withdrawn(schema) else ""
    yield f"DELETE FROM {table} WHERE rowid IN (SELECT row FROM superseded){or_withdrawn}"
    for column in ORIGIN:
        yield f"ALTER TABLE {table} DROP COLUMN {column}"
    yield from comment_statements(schema)


def build_part(snapshot: Path, target: Path, spill: Path, projects: Sequence[str]) -> None:
    """Build a snapshot with the rows of some projects and of their anchors from one of all projects.

    A filter over the whole snapshot would not do: DuckDB shows its statistics, and may compute a column before it drops a row, so
    that an error quotes a row of another project. Records without a project are left out. Raises StoreError like `build_snapshot`.
    """
    names = ", ".join(literal(name) for project in projects for name in (project, anchor_project(project)))
    with _create_snapshot(target, spill, source=snapshot) as connection:
        tables = _load_tables(connection, "source")
        for schema in snapshot_schemas():
            if schema.table not in tables:
                continue
            columns = snapshot_columns(schema)
            is_visible = f"project IN ({names})" if "project" in columns else "false"
            connection.execute(
                f"CREATE TABLE main.{quote(schema.table)} AS SELECT * FROM source.main.{quote(schema.table)} WHERE {is_visible}"
            )
            for statement in comment_statements(schema):
                connection.execute(statement)
        _copy_run_numbers(connection, f"project IN ({names})")


def _copy_run_numbers(connection: duckdb.DuckDBPyConnection, condition: str) -> None:
    for statement in RUN_NUMBER_STATEMENTS:
        connection.execute(statement)
    connection.execute(
        f"INSERT INTO {LOG}.run_numbers SELECT project, connection, session_id, number FROM source.{LOG}.run_numbers WHERE {condition}"
    )


@contextlib.contextmanager
def _create_snapshot(target: Path, spill: Path, *, source: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a new snapshot with `source` attached under that name, and add the analysts' views when its tables are filled."""
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
            if source is not None:
                connection.execute(f"ATTACH {literal(str(source))} AS source (READ_ONLY)")
            yield connection
            if source is not None:
                connection.execute("DETACH source")
            has_sums = SUMMED_TABLE in _load_tables(connection, target.stem)
            for statement in view_statements():
                if has_sums or SUMMED_VIEW not in statement:
                    connection.execute(statement)
            connection.execute("CHECKPOINT")
    except duckdb.Error as error:
        raise StoreError(
            f"{target}: {str(error).splitlines()[0]}", hint="Check that the disk has enough free space."
        ) from error


def _load_tables(connection: duckdb.DuckDBPyConnection, database: str) -> set[str]:
    """Return the names of the analysts' tables in a database."""
    statement = "SELECT table_name FROM duckdb_tables() WHERE database_name = $database AND schema_name = 'main'"
    return {str(name) for (name,) in connection.execute(statement, {"database": database}).fetchall()}


def _estimate_rows(connection: duckdb.DuckDBPyConnection) -> Counter[str]:
    """Return the estimated number of rows of each table of a snapshot, from the source's catalog."""
    result = connection.execute(
        f"SELECT table_name, estimated_size FROM duckdb_tables() WHERE database_name = 'source' AND schema_name = '{LOG}'"
    )
    sizes = dict(result.fetchall())
    return Counter({schema.table: sizes.get(schema.table, 0) for schema in snapshot_schemas()})


def snapshot_schemas() -> list[RecordSchema]:
    """Return the record types with a table in a snapshot: all that travel on topics, except queued work, and the failures by day."""
    return [
        schema
        for schema in current_schemas().values()
        if (schema.topics and schema.table not in QUEUE_TABLES) or schema.table == SUMMED_TABLE
    ]


def _write_progress(target: Path, progress: Progress) -> None:
    """Write the progress of a snapshot atomically."""
    temporary = progress_file(target).with_suffix(".new")
    temporary.write_text(" ".join(map(str, progress)), encoding="ascii")
    temporary.replace(progress_file(target))


def progress_file(target: Path) -> Path:
    """Return the path of the progress file of a snapshot under construction."""
    return target.with_suffix(".progress")


def _current_rows_statements(schema: RecordSchema, rows: str) -> Iterator[str]:
    """Return the statements that create and fill a table with the current row of each identity."""
    unless_withdrawn = f" WHERE NOT {WITHDRAWN}" if can_be_withdrawn(schema) else ""
    yield from _superseded_statements(schema, rows, current_order(schema))
    yield from _create_table_statements(
        schema, f"FROM {rows} AS r ANTI JOIN superseded ON superseded.row = r.rowid{unless_withdrawn}"
    )


def _superseded_statements(schema: RecordSchema, rows: str, order: str) -> Iterator[str]:
    """Return the statements that create the table `superseded`, with the ids of all rows but the first one of each identity.

    Few identities have a second row, so only those are sorted: sorting all rows would take most of the time. Only row ids are
    sorted, because the evidence of twenty thousand incidents exceeds the memory limit.
    """
    identity = ", ".join(map(quote, schema.identity))
    yield f"CREATE OR REPLACE TEMP TABLE repeated AS SELECT {identity} FROM {rows} GROUP BY ALL HAVING count(*) > 1"
    yield (
        f"CREATE OR REPLACE TEMP TABLE superseded AS SELECT rowid AS row FROM {rows} SEMI JOIN repeated USING ({identity}) "
        f"QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY {order}) > 1"
    )


def _create_table_statements(schema: RecordSchema, source: str) -> Iterator[str]:
    """Return the statements that create a table from the rows of a FROM clause."""
    columns = ", ".join(map(quote, snapshot_columns(schema)))
    yield f"CREATE TABLE main.{quote(schema.table)} AS SELECT {columns} {source}"
    yield from comment_statements(schema)


def snapshot_columns(schema: RecordSchema) -> list[str]:
    """Return the columns of a record type in a snapshot."""
    return [name for name in column_types(schema) if name not in EXCLUDED_COLUMNS.get(schema.table, ())]


def comment_statements(schema: RecordSchema) -> Iterator[str]:
    """Return the statements that add the comments of a snapshot's table and its columns."""
    table = f"main.{quote(schema.table)}"
    names = snapshot_columns(schema)
    yield f"COMMENT ON TABLE {table} IS {literal(schema.definition['doc'])}"
    for field in schema.fields:
        if field["name"] in names:
            yield f"COMMENT ON COLUMN {table}.{quote(field['name'])} IS {literal(field['doc'])}"


class Progress(NamedTuple):
    """The progress of building the tables of a snapshot, in estimated rows."""

    done: int
    """Rows of the finished tables."""
    total: int
    table: str
    """The table under construction."""
    rows: int
    """Its rows."""


def read_progress(target: Path) -> Progress | None:
    """Return the progress of a snapshot under construction; None before it starts."""
    try:
        done, total, table, rows = progress_file(target).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return Progress(int(done), int(total), table, int(rows))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its DuckDB type, and a description, which may be empty."""

    name: str
    kind: str
    description: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table of a snapshot, with its columns in order."""

    name: str
    description: str
    is_view: bool
    """True for an analysts' view, False for the table of a record type."""
    columns: tuple[Column, ...]


@functools.cache
def load_catalog() -> tuple[Relation, ...]:
    """Return all views, then all tables, each by name."""
    with duckdb.connect(":memory:") as connection:
        for schema in snapshot_schemas():
            types = column_types(schema)
            columns = ", ".join(f"{quote(name)} {types[name]}" for name in snapshot_columns(schema))
            connection.execute(f"CREATE TABLE main.{quote(schema.table)} ({columns})")
            for statement in comment_statements(schema):
                connection.execute(statement)
        for statement in (*RUN_NUMBER_STATEMENTS, *view_statements()):
            connection.execute(statement)
        rows = connection.execute(_COLUMNS).fetchall()
    columns_by_table: dict[str, list[Column]] = {}
    about = {}
    for table, name, kind, column_comment, comment, is_view in rows:
        columns_by_table.setdefault(table, []).append(Column(name, kind, column_comment or ""))
        about[table] = comment or "", is_view
    return tuple(Relation(name, *about[name], columns=tuple(columns)) for name, columns in columns_by_table.items())
