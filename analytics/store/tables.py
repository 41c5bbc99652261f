"""DuckDB tables and views, derived from the Avro schemas: a topic is a table is a schema.

Every record type has a table in the schema `log`: append-only, with the place of each record in its topic. Beside it stands a
view of the same name in the schema `main` with the current revision of each identity and without the system columns: this is
what people and queries read. The current revision is the latest; of an evaluation it is the latest that finished, if any did. What only the store keeps (stage state, watermarks, import progress) has a table and no view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Any

from analytics.store.views import CURRENT_EXCHANGES_STATEMENT, current_source
from analytics.sums.macros import macro_statements, reading_statements
from schemas.errors import StoreError
from schemas.registry import Json, RecordSchema, current_schemas
from schemas.unfolding import unfoldings

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
"""The columns that are alike in every revision, by table: a filter on them then meets only the rows that match."""


READ_AS = {
    "incidents": {
        "status": "log.incident_status(status)",
        "resolution": "log.incident_resolution(status, resolution)",
        "assignee": "log.incident_assignee(assignee, assigned_at, acknowledged_by)",
    }
}
"""Columns that views read otherwise than they were written: words of versions before, whose rows stay as they are."""
DIGEST = "views_digest"
"""Macro that answers the digest of the views and macros that a file has."""
COMMENT = "COMMENT ON "
"""The words that begin every statement that describes a table, a view or a column."""


def quote(name: str) -> str:
    """An SQL identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """An SQL string literal, quoted."""
    return "'" + text.replace("'", "''") + "'"


def sql_type(avro_type: Any, named: dict[str, str], *, timestamp: str = "TIMESTAMP") -> str:
    """The DuckDB type of an Avro type.

    `named` collects the record types met so far, for references. `timestamp` is TIMESTAMP in tables (always UTC) and
    TIMESTAMPTZ where rows leave for Python, which wants the zone.
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
    """The SQL value that rows written before the field existed get."""
    value = field.get("default")
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, (int, float)):
        return str(value)
    return literal(value) if isinstance(value, str) else "[]"


def unfolding_statements(schema: RecordSchema, added: Collection[str]) -> Iterator[str]:
    """Return the statements that fill added columns with what earlier rows have in another form."""
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
    """The schema's docs as comments on the table and its columns."""
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

    `existing` maps each table of the log to its columns and their types; `made` is the digest of views and
    macros that the file answers, None where it answers none. A missing table is made, a missing column is added with its default, or filled
    with what it unfolds. `has_macros` is False for a file of which no one asks sums.
    StoreError when the file has a column this version does not know or knows otherwise: then a newer version wrote it.
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
        # DuckDB quotes the names in a type only where it must.
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
