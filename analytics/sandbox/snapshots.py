# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Snapshots for analysts: a file of its own with the latest revisions, made from a copy that holds up no writer; and its catalog.

1. A checkpoint folds the write-ahead log into the file. From then on DuckDB appends to a new log and touches no block that the
   file's header refers to, until the next checkpoint has written the header again.
2. So the file is copied while others go on writing, by a process of its own (`analytics.store.copying`). Checkpoints by size are
   suspended meanwhile, and a copy during which the header changed is thrown away and made again.
3. From the copy, in another process and without hurry, the tables that analysts read are made: each identity once.
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
from schemas.lazy.duckdb import duckdb
from schemas.registry import RecordSchema, current_schemas

LEFT_OUT = {
    "agent_events": ("payload",),
    "anchors": ("exchange",),
    "dead_letters": ("body",),
    "evaluations": ("result",),
    "exchanges": ("user_message", "agent_response", "agent_thinking", "raw_user_message"),
    "judgements": ("answer",),
}
"""The columns that a snapshot lacks: texts and bytes as they came. The judge's verdicts on them are there."""
WORK = frozenset({"scoring_tasks", "judging_requests", "evaluation_requests"})
"""Tables of work on its way between stages, which tell nothing that their outcome does not tell."""
ATTEMPTS = 5
NEVER = "1TB"
BUILD_MEMORY = "1GB"

NUMBERS = (
    f"CREATE SCHEMA {LOG}",
    f"CREATE TABLE {LOG}.run_numbers (project VARCHAR, connection VARCHAR, session_id VARCHAR, number BIGINT)",
    f"COMMENT ON TABLE {LOG}.run_numbers IS 'Numbers of the runs of each project; the view runs has them beside the verdicts.'",
)
"""The statements that make the table of the runs' numbers, which the views look into, where the log has it."""

Changes = tuple[int, int, int]
"""The signs of a commit: time and length of the file, and the length of its write-ahead log."""

_COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type, c.comment, coalesce(v.comment, t.comment) AS about, v.view_name IS NOT NULL AS is_view
FROM duckdb_columns() AS c
LEFT JOIN (SELECT view_name, comment FROM duckdb_views() WHERE NOT internal) AS v ON c.table_name = v.view_name
LEFT JOIN duckdb_tables() AS t ON c.table_name = t.table_name
WHERE NOT c.internal AND c.schema_name = 'main'
ORDER BY is_view DESC, coalesce(v.view_name, t.table_name), c.column_index
"""


def changes_of(path: Path) -> Changes:
    """Return the state of a database, as far as its files show it without being opened."""
    try:
        length = Path(f"{path}.wal").stat().st_size
    except FileNotFoundError:
        length = 0
    file = path.stat()
    return file.st_mtime_ns, file.st_size, length


def copy_database(store: Store, target: Path) -> Changes:
    """Copy the store's file as it is after a checkpoint, without keeping anybody from writing; answers how far it had come.

    StoreError for a store in memory, or when each attempt was overtaken by a checkpoint.
    """
    if store.path is None:
        raise StoreError("a database in memory has no snapshots", hint="Open a file.")
    with _no_checkpoint_by_size(store):
        for _ in range(ATTEMPTS):
            store.checkpoint()
            modified, size, _ = changes_of(store.path)
            if copied_whole(store.path, target):
                return modified, size, 0  # what is in the write-ahead log by now is not in the copy
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
    """Make the analysts' file from a copy of the database: a table a record type, in its latest revisions, and the readable views.

    `spill` is a folder for what does not fit into memory. StoreError when the copy cannot be read or the file not be written.
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
    """Return about how many rows each table of the source has that a snapshot shows, from the catalogue: nothing is counted."""
    result = connection.execute(
        f"SELECT table_name, estimated_size FROM duckdb_tables() WHERE database_name = 'source' AND schema_name = '{LOG}'"
    )
    sizes = dict(result.fetchall())
    return Counter({one.table: sizes.get(one.table, 0) for one in shown_schemas()})


def shown_schemas() -> list[RecordSchema]:
    """The record types that a snapshot has a table of: what travels on topics, without work that is on its way."""
    return [schema for schema in current_schemas().values() if schema.topics and schema.table not in WORK]


def _tell(target: Path, progress: Progress) -> None:
    """Write down how far a snapshot is; a reader finds the whole of it, or what was there before."""
    beside = progress_file(target).with_suffix(".new")
    beside.write_text(" ".join(map(str, progress)), encoding="ascii")
    beside.replace(progress_file(target))


def progress_file(target: Path) -> Path:
    """Return the file beside a snapshot that is being made that says how many rows are done, of how many."""
    return target.with_suffix(".progress")


def _table_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that fill a table.

    Few identities have a second revision: they are found first, for sorting all rows would take most of the time. What is sorted is
    narrow: the evidence of twenty thousand incidents is more than the memory that there is for it.
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
    """The columns that a snapshot has of a record type."""
    return [name for name in columns_of(schema) if name not in LEFT_OUT.get(schema.table, ())]


def comment_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that say what a table of a snapshot and its columns hold."""
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
    """The table that is being made."""
    rows: int
    """Its rows."""


def progress_of(target: Path) -> Progress | None:
    """Return how far a snapshot is that is being made; None if that is not known yet."""
    try:
        done, total, table, rows = progress_file(target).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return Progress(int(done), int(total), table, int(rows))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, DuckDB's name of its type, and what it holds; nothing where its name says that."""

    name: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table of a snapshot, with its columns in their order."""

    name: str
    words: str
    is_view: bool
    """True for a view that is made to be read; the others are the record types themselves."""
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
