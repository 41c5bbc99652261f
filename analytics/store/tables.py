"""DuckDB tables and views derived from the Avro schemas, one table per record type, and the statements that write into them.

Every record type has an append-only table in the schema `log`, with the position of each record in its topic. People and queries
read the view of the same name in the schema `main`, which has the current revision of each identity and no system columns. The
current revision is the latest one; for an evaluation, the latest finished one, if any. Internal records of the store (stage states,
watermarks, import progress) have a table and no view.

Rows are appended, or replace the earlier version of their identity. The number of written rows is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from analytics.store.views import CURRENT_EXCHANGES_STATEMENT, SUMMED_TABLE, current_rows_sql
from analytics.sums.failures import error_macro_statements
from analytics.sums.macros import macro_statements, translation_statements
from schemas.codec.arrow import ArrowStream, empty_frame
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl
from schemas.records import Record
from schemas.registry import Json, RecordSchema, current_schemas, schema_of, unfoldings

LOG = "log"
NEWER_HINT = "A newer version of Driftline wrote this file. Upgrade, or open it with that version."
SYSTEM_COLUMNS = {
    "_topic": ("VARCHAR", "Topic the record came on."),
    "_partition": ("INTEGER", "Partition of the topic."),
    "_offset": ("BIGINT", "Position within the partition."),
}
PRIMITIVE_TYPES = {
    "string": "VARCHAR",
    "bytes": "BLOB",
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
}


CONSTANT_COLUMNS = {"scores": ("project", "exchange_at"), "incidents": ("project",)}
"""Columns that no revision changes, by table. Filters on them can be pushed down to the scan."""
EVENT_TIMES = {
    "agent_events": ("occurred_at",),
    "anchors": ("occurred_at",),
    "baselines": ("computed_at",),
    "dead_letters": ("rejected_at",),
    "deployments": ("occurred_at",),
    "diagnoses": ("started_at", "closed_at"),
    "erasures": ("occurred_at",),
    "evaluation_requests": ("requested_at",),
    "evaluations": ("evaluated_at",),
    "exchanges": ("occurred_at",),
    "heartbeats": ("occurred_at",),
    "incidents": ("detected_at",),
    "judgements": ("judged_at",),
    "judging_requests": ("ingested_at",),
    "reservations": ("reserved_at",),
    "reviews": ("occurred_at",),
    "scores": ("exchange_at",),
    "scoring_tasks": (),
    "session_closings": ("closed_at",),
    "spans": ("started_at",),
    "trace_assemblies": ("started_at",),
}
"""The columns of each table whose first value is the event time of a record. Tasks have none."""


TRANSLATED_COLUMNS = {
    "incidents": {
        "status": "log.incident_status(status)",
        "resolution": "log.incident_resolution(status, resolution)",
        "assignee": "log.incident_assignee(assignee, assigned_at, acknowledged_by)",
    }
}
"""Columns of which the views translate values written by earlier versions. The rows themselves stay unchanged."""
DIGEST = "views_digest"
"""The macro that returns the digest of a file's views and macros."""
COMMENT = "COMMENT ON "
"""Prefix of the statements that describe a table, a view or a column."""


def quote(name: str) -> str:
    """Return a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a quoted SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_type(avro_type: Any, record_types: dict[str, str], *, timestamp: str = "TIMESTAMP") -> str:
    """Return the DuckDB type of an Avro type.

    `record_types` collects record types, so that later fields can refer to them by name. `timestamp` is TIMESTAMP in tables (always UTC)
    and TIMESTAMPTZ in rows for Python, which needs the time zone.
    """
    if isinstance(avro_type, str):
        return record_types[avro_type] if avro_type in record_types else PRIMITIVE_TYPES[avro_type]
    if isinstance(avro_type, list):
        return sql_type(avro_type[1], record_types, timestamp=timestamp)
    if "logicalType" in avro_type:
        return timestamp
    if avro_type["type"] == "array":
        return sql_type(avro_type["items"], record_types, timestamp=timestamp) + "[]"
    fields = (
        f"{quote(field['name'])} {sql_type(field['type'], record_types, timestamp=timestamp)}" for field in avro_type["fields"]
    )
    text = f"STRUCT({', '.join(fields)})"
    record_types[f"driftline.{avro_type['name']}"] = text
    return text


def column_types(schema: RecordSchema, *, timestamp: str = "TIMESTAMP") -> dict[str, str]:
    """Return the DuckDB types of a record type's columns, in the order of the schema."""
    record_types: dict[str, str] = {}
    return {field["name"]: sql_type(field["type"], record_types, timestamp=timestamp) for field in schema.fields}


def default_literal(field: Json) -> str:
    """Return the SQL default of a field, for rows written before the field existed."""
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
    """Return the log table of a record type, quoted."""
    return f"{LOG}.{quote(schema.table)}"


def create_statements(schema: RecordSchema) -> Iterator[str]:
    """Return the statements that create a record type's table with its comments."""
    types = {name: kind for name, (kind, _) in SYSTEM_COLUMNS.items()} | column_types(schema)
    columns = ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
    yield f"CREATE TABLE {full_name(schema)} ({columns})"
    yield from comment_statements(schema)


def comment_statements(schema: RecordSchema) -> Iterator[str]:
    """Return the statements that copy the schema's docs to comments on the table and its columns."""
    yield f"{COMMENT}TABLE {full_name(schema)} IS {literal(schema.definition['doc'])}"
    docs = {name: doc for name, (_, doc) in SYSTEM_COLUMNS.items()} | {field["name"]: field["doc"] for field in schema.fields}
    for name, doc in docs.items():
        yield f"{COMMENT}COLUMN {full_name(schema)}.{quote(name)} IS {literal(doc)}"


def view_statements(schema: RecordSchema) -> Iterator[str]:
    """Return the statements that create the view of a record type, with the current revision of each identity."""
    if not schema.topics and schema.table != SUMMED_TABLE:
        return
    read_as = TRANSLATED_COLUMNS.get(schema.table, {})
    columns = ", ".join(
        f"{read_as[name]} AS {quote(name)}" if name in read_as else quote(name) for name in column_types(schema)
    )
    rows, latest = current_rows_sql(schema, CONSTANT_COLUMNS.get(schema.table, ()))
    yield f"CREATE OR REPLACE VIEW main.{quote(schema.table)} AS SELECT {columns} FROM {rows}{latest}"
    yield f"{COMMENT}VIEW main.{quote(schema.table)} IS {literal(schema.definition['doc'])}"
    for field in schema.fields:
        yield f"{COMMENT}COLUMN main.{quote(schema.table)}.{quote(field['name'])} IS {literal(field['doc'])}"


def migration_statements(
    existing: dict[str, dict[str, str]], digest: str | None = None, *, has_macros: bool = True
) -> Iterator[str]:
    """Return the statements that migrate a file to the current schemas, views and macros.

    `existing` maps each table of the log to its columns and their types; `digest` is the file's digest of views and macros, None if
    it has none. A missing table is created. A missing column is added with its default, or filled from the column that it unfolds.
    `has_macros` is False for a file whose sums are never queried.

    Raises StoreError if a column is unknown or has another type, because then a newer version wrote the file.
    """
    changed = False
    for schema in current_schemas().values():
        present = existing.get(schema.table)
        if present is None:
            yield from create_statements(schema)
            changed = True
            continue
        own_types = column_types(schema)
        types = {name: kind for name, (kind, _) in SYSTEM_COLUMNS.items()} | own_types
        # DuckDB quotes names in a type only if necessary.
        unknown = [name for name, kind in present.items() if kind.replace('"', "") != types.get(name, "").replace('"', "")]
        if unknown:
            names = ", ".join(sorted(unknown))
            raise StoreError(f"table {schema.table} has columns that this version does not support: {names}", hint=NEWER_HINT)
        added = [field for field in schema.fields if field["name"] not in present]
        for field in added:
            column = f"{quote(field['name'])} {own_types[field['name']]}"
            yield f"ALTER TABLE {full_name(schema)} ADD COLUMN {column} DEFAULT {default_literal(field)}"
        yield from unfolding_statements(schema, {field["name"] for field in added})
        if added:
            yield from comment_statements(schema)
            changed = True
    views = [
        *translation_statements(),
        CURRENT_EXCHANGES_STATEMENT,
        *(statement for schema in current_schemas().values() for statement in view_statements(schema)),
        *error_macro_statements(),
        *(macro_statements() if has_macros else ()),
    ]
    current = hashlib.sha256("\n".join(views).encode()).hexdigest()
    if changed or digest != current:
        yield from views
        yield f"CREATE OR REPLACE MACRO {LOG}.{DIGEST}() AS {literal(current)}"


BATCH = "_driftline_batch"
"""Name under which a batch is registered. A table of this name would take precedence, so no table may use it."""
PARTITION = 0
"""The embedded log has one partition per topic."""

MAX_ROWS_BY_VALUE = 4
"""Up to this many records are written by value instead of as a frame, so that an idle server, which only moves watermarks, never loads
polars (80 MB)."""
_NO_POSITION = {"_topic": "", "_partition": PARTITION, "_offset": 0}
"""Position of rows that belong to no topic."""


@contextlib.contextmanager
def registered(connection: duckdb.DuckDBPyConnection, frame: pl.DataFrame, name: str = BATCH) -> Iterator[None]:
    """Register the frame under a name, so that statements can read it."""
    connection.register(name, ArrowStream(frame))
    try:
        yield
    finally:
        connection.unregister(name)


def insert(connection: duckdb.DuckDBPyConnection, schema: RecordSchema, frame: pl.DataFrame) -> int:
    """Insert rows into the table of a record type; return their number. Raises StoreError if any row was not written."""
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
    positioned = frame.with_columns(
        pl.lit(topic).alias("_topic"), pl.lit(PARTITION, pl.Int32).alias("_partition"), offsets.alias("_offset")
    )
    return insert(connection, schema, positioned)


def replace(connection: duckdb.DuckDBPyConnection, records: Sequence[Record]) -> None:
    """Insert records of one internal type, replacing those with the same identity."""
    if not records:
        return
    schema = schema_of(type(records[0]).__name__)
    if len(records) <= MAX_ROWS_BY_VALUE:
        for record in records:
            _replace_by_values(connection, schema, record)
        return
    frame = _build_frame(schema, records).unique(subset=schema.identity, keep="last", maintain_order=True)
    matches = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in schema.identity)
    with registered(connection, frame):
        connection.execute(f"DELETE FROM {full_name(schema)} AS old USING {BATCH} AS new WHERE {matches}")
    insert(connection, schema, frame)


def _replace_by_values(connection: duckdb.DuckDBPyConnection, schema: RecordSchema, record: Record) -> None:
    values = _field_values(record)
    changed = ", ".join(f"{quote(name)} = ${name}" for name in values if name not in schema.identity)
    same = " AND ".join(f"{quote(name)} = ${name}" for name in schema.identity)
    ((updated,),) = connection.execute(f"UPDATE {full_name(schema)} SET {changed} WHERE {same}", values).fetchall()
    if not updated:
        row = values | _NO_POSITION
        columns = ", ".join(map(quote, row))
        placeholders = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO {full_name(schema)} ({columns}) VALUES ({placeholders})", list(row.values()))


def _field_values(record: Record) -> dict[str, Any]:
    """Return the fields of a record. Nested records become mappings, as DuckDB expects them."""
    values = msgspec.structs.asdict(record)
    nested = {
        name: value
        for name, value in values.items()
        if isinstance(value, tuple) and isinstance(next(iter(value), None), Record)
    }
    return values | {name: [msgspec.structs.asdict(part) for part in value] for name, value in nested.items()}


def _build_frame(schema: RecordSchema, records: Sequence[Record]) -> pl.DataFrame:
    # No message size limit applies to these records, because they are on no topic. A state can hold complete exchanges.
    frame = pl.DataFrame(map(_field_values, records), schema=empty_frame(schema.name).schema)
    return frame.with_columns(**{name: pl.lit(value) for name, value in _NO_POSITION.items()})
