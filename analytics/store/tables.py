"""DuckDB tables and views, derived from the Avro schemas: one table per record type; and writing frames into them.

Every record type has an append-only table in the schema `log`, with the place of each record in its topic. People and queries read
the view of the same name in the schema `main`, which has the current revision of each identity and no system columns. The current
revision is the latest one; for an evaluation, the latest finished one, if any. The store's internal records (stage states, watermarks, import progress) have a table and no view.

Rows are appended, or replace the earlier version of their identity; every row is counted.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from analytics.store.views import CURRENT_EXCHANGES_STATEMENT, current_source
from analytics.sums.macros import macro_statements, reading_statements
from schemas.codec.arrow import ArrowStream, empty_frame
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl
from schemas.records import Record
from schemas.registry import Json, RecordSchema, current_schemas, schema_of, unfoldings

LOG = "log"
NEWER = "A newer Driftline wrote this file: upgrade, or open it with that version."
SYSTEM_COLUMNS = {
    "_topic": ("VARCHAR", "Topic the record came on."),
    "_partition": ("INTEGER", "Partition of the topic."),
    "_offset": ("BIGINT", "Position within the partition."),
}
PRIMITIVES = {
    "string": "VARCHAR",
    "bytes": "BLOB",
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
}


KEPT = {"scores": ("project", "exchange_at"), "incidents": ("project",)}
"""The columns that no revision changes, by table, so that filters on them are pushed down to the scan."""


READ_AS = {
    "incidents": {
        "status": "log.incident_status(status)",
        "resolution": "log.incident_resolution(status, resolution)",
        "assignee": "log.incident_assignee(assignee, assigned_at, acknowledged_by)",
    }
}
"""Columns whose values from earlier versions the views translate; the rows themselves stay unchanged."""
DIGEST = "views_digest"
"""The macro that returns the digest of a file's views and macros."""
COMMENT = "COMMENT ON "
"""The first words of every statement that describes a table, a view or a column."""


def quote(name: str) -> str:
    """An SQL identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """An SQL string literal, quoted."""
    return "'" + text.replace("'", "''") + "'"


def sql_type(avro_type: Any, named: dict[str, str], *, timestamp: str = "TIMESTAMP") -> str:
    """The DuckDB type of an Avro type.

    `named` collects the record types seen so far, for references. `timestamp` is TIMESTAMP in tables (always UTC) and TIMESTAMPTZ
    in rows for Python, which needs the zone.
    """
    if isinstance(avro_type, str):
        return named[avro_type] if avro_type in named else PRIMITIVES[avro_type]
    if isinstance(avro_type, list):
        return sql_type(avro_type[1], named, timestamp=timestamp)
    if "logicalType" in avro_type:
        return timestamp
    if avro_type["type"] == "array":
        return sql_type(avro_type["items"], named, timestamp=timestamp) + "[]"
    fields = (f"{quote(field['name'])} {sql_type(field['type'], named, timestamp=timestamp)}" for field in avro_type["fields"])
    text = f"STRUCT({', '.join(fields)})"
    named[f"driftline.{avro_type['name']}"] = text
    return text


def columns_of(schema: RecordSchema, *, timestamp: str = "TIMESTAMP") -> dict[str, str]:
    """The record's own columns with their DuckDB types, in the schema's order."""
    named: dict[str, str] = {}
    return {field["name"]: sql_type(field["type"], named, timestamp=timestamp) for field in schema.fields}


def default_of(field: Json) -> str:
    """The SQL default of a field for rows written before it existed."""
    value = field.get("default")
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, (int, float)):
        return str(value)
    return literal(value) if isinstance(value, str) else "[]"


def unfolding_statements(schema: RecordSchema, added: Collection[str]) -> Iterator[str]:
    """Return the statements that fill added columns from older columns of the same rows."""
    for unfolding in unfoldings(schema):
        if unfolding.field in added:
            items = ", ".join(
                f"{{{quote(unfolding.key)}: {literal(name)}, {quote(unfolding.value)}: struct_extract({quote(unfolding.source)}, {literal(name)})}}"
                for name in unfolding.names
            )
            yield f"UPDATE {full_name(schema)} SET {quote(unfolding.field)} = [{items}]"


def full_name(schema: RecordSchema) -> str:
    """The log table of a record type, quoted."""
    return f"{LOG}.{quote(schema.table)}"


def create_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that make a record type's table with its comments."""
    types = {name: kind for name, (kind, _) in SYSTEM_COLUMNS.items()} | columns_of(schema)
    columns = ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
    yield f"CREATE TABLE {full_name(schema)} ({columns})"
    yield from comment_statements(schema)


def comment_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that make the schema's docs comments on the table and its columns."""
    yield f"{COMMENT}TABLE {full_name(schema)} IS {literal(schema.definition['doc'])}"
    docs = {name: doc for name, (_, doc) in SYSTEM_COLUMNS.items()} | {field["name"]: field["doc"] for field in schema.fields}
    for name, doc in docs.items():
        yield f"{COMMENT}COLUMN {full_name(schema)}.{quote(name)} IS {literal(doc)}"


def view_statements(schema: RecordSchema) -> Iterator[str]:
    """The statements that make the view of a record type: the current revision of each identity."""
    if not schema.topics:
        return
    read_as = READ_AS.get(schema.table, {})
    columns = ", ".join(f"{read_as[name]} AS {quote(name)}" if name in read_as else quote(name) for name in columns_of(schema))
    rows, latest = current_source(schema, KEPT.get(schema.table, ()))
    yield f"CREATE OR REPLACE VIEW main.{quote(schema.table)} AS SELECT {columns} FROM {rows}{latest}"
    yield f"{COMMENT}VIEW main.{quote(schema.table)} IS {literal(schema.definition['doc'])}"
    for field in schema.fields:
        yield f"{COMMENT}COLUMN main.{quote(schema.table)}.{quote(field['name'])} IS {literal(field['doc'])}"


def migration_statements(
    existing: dict[str, dict[str, str]], made: str | None = None, *, has_macros: bool = True
) -> Iterator[str]:
    """The statements that bring a file to the current schemas, and to the current views and macros.

    `existing` maps each table of the log to its columns and their types; `made` is the file's digest of views and macros, None if it
    has none. A missing table is created; a missing column is added with its default, or filled from the column that it unfolds.
    `has_macros` is False for a file whose sums are never queried.
    StoreError if a column is unknown to this version or has another type: then a newer version wrote the file.
    """
    changed = False
    for schema in current_schemas().values():
        present = existing.get(schema.table)
        if present is None:
            yield from create_statements(schema)
            changed = True
            continue
        wanted = columns_of(schema)
        types = {name: kind for name, (kind, _) in SYSTEM_COLUMNS.items()} | wanted
        # DuckDB quotes names in a type only if it must.
        unknown = [name for name, kind in present.items() if kind.replace('"', "") != types.get(name, "").replace('"', "")]
        if unknown:
            names = ", ".join(sorted(unknown))
            raise StoreError(f"table {schema.table} has columns this version does not know: {names}", hint=NEWER)
        added = [field for field in schema.fields if field["name"] not in present]
        for field in added:
            column = f"{quote(field['name'])} {wanted[field['name']]}"
            yield f"ALTER TABLE {full_name(schema)} ADD COLUMN {column} DEFAULT {default_of(field)}"
        yield from unfolding_statements(schema, {field["name"] for field in added})
        if added:
            yield from comment_statements(schema)
            changed = True
    views = [
        *reading_statements(),
        CURRENT_EXCHANGES_STATEMENT,
        *(statement for schema in current_schemas().values() for statement in view_statements(schema)),
        *(macro_statements() if has_macros else ()),
    ]
    current = hashlib.sha256("\n".join(views).encode()).hexdigest()
    if changed or made != current:
        yield from views
        yield f"CREATE OR REPLACE MACRO {LOG}.{DIGEST}() AS {literal(current)}"


BATCH = "_driftline_batch"
"""The name under which a batch is registered. A table of this name would take precedence, so no table may have it."""
PARTITION = 0
"""The embedded log has one partition per topic."""

BY_VALUES = 4
"""Up to this many records are written by value, not as a frame: an idle server, which only moves watermarks, then never loads polars (80 MB)."""
_PLACE = {"_topic": "", "_partition": PARTITION, "_offset": 0}
"""These rows belong to no topic."""


@contextlib.contextmanager
def registered(connection: duckdb.DuckDBPyConnection, frame: pl.DataFrame, name: str = BATCH) -> Iterator[None]:
    """Let statements read the frame under this name."""
    connection.register(name, ArrowStream(frame))
    try:
        yield
    finally:
        connection.unregister(name)


def insert(connection: duckdb.DuckDBPyConnection, schema: RecordSchema, frame: pl.DataFrame) -> int:
    """Insert rows into the log table of a record type; return their number. StoreError if not all were written."""
    if not frame.height:
        return 0
    with registered(connection, frame):
        statement = f"INSERT INTO {full_name(schema)} BY NAME SELECT * FROM {BATCH}"
        ((written,),) = connection.execute(statement).fetchall()
    if written != frame.height:
        raise StoreError(f"{schema.table}: {written} of {frame.height} rows were written")
    return frame.height


def insert_at(
    connection: duckdb.DuckDBPyConnection, schema: RecordSchema, frame: pl.DataFrame, topic: str, offsets: pl.Series
) -> int:
    """Insert rows as records of a topic at these positions; return their number."""
    placed = frame.with_columns(
        pl.lit(topic).alias("_topic"), pl.lit(PARTITION, pl.Int32).alias("_partition"), offsets.alias("_offset")
    )
    return insert(connection, schema, placed)


def replace(connection: duckdb.DuckDBPyConnection, records: Sequence[Record]) -> None:
    """Insert records of one internal type, replacing those with the same identity."""
    if not records:
        return
    schema = schema_of(type(records[0]).__name__)
    if len(records) <= BY_VALUES:
        for record in records:
            _replace_by_values(connection, schema, record)
        return
    frame = _frame(schema, records).unique(subset=schema.identity, keep="last", maintain_order=True)
    matches = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in schema.identity)
    with registered(connection, frame):
        connection.execute(f"DELETE FROM {full_name(schema)} AS old USING {BATCH} AS new WHERE {matches}")
    insert(connection, schema, frame)


def _replace_by_values(connection: duckdb.DuckDBPyConnection, schema: RecordSchema, record: Record) -> None:
    values = _values_of(record)
    changed = ", ".join(f"{quote(name)} = ${name}" for name in values if name not in schema.identity)
    same = " AND ".join(f"{quote(name)} = ${name}" for name in schema.identity)
    ((updated,),) = connection.execute(f"UPDATE {full_name(schema)} SET {changed} WHERE {same}", values).fetchall()
    if not updated:
        row = values | _PLACE
        columns, marks = ", ".join(map(quote, row)), ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO {full_name(schema)} ({columns}) VALUES ({marks})", list(row.values()))


def _values_of(record: Record) -> dict[str, Any]:
    """The fields of a record; nested lists of records become lists of mappings, as DuckDB takes them."""
    values = msgspec.structs.asdict(record)
    nested = {
        name: value
        for name, value in values.items()
        if isinstance(value, tuple) and isinstance(next(iter(value), None), Record)
    }
    return values | {name: [msgspec.structs.asdict(part) for part in value] for name, value in nested.items()}


def _frame(schema: RecordSchema, records: Sequence[Record]) -> pl.DataFrame:
    # These records travel on no topic, so the message size limit does not apply: a state can hold whole exchanges.
    frame = pl.DataFrame(map(_values_of, records), schema=empty_frame(schema.name).schema)
    return frame.with_columns(**{name: pl.lit(value) for name, value in _PLACE.items()})
