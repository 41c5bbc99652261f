# ruff: noqa: S608 - statements are built from the names in schemas and manifests, quoted; values are literals, quoted
"""Digests of records, computed by DuckDB from the columns of a table or of a Parquet file. `docs/how-to/verify.md` defines them.

The text of a record is independent of how a file encodes it: the values of its columns in order, each with its length or in a form that
contains no comma, so that two records have the same text only if all their values are equal.
"""

from __future__ import annotations

from typing import Any

from analytics.store.tables import SYSTEM_COLUMNS, literal, quote
from schemas.registry import RecordSchema
from service.export.manifest import CHECK_LENGTH, Columns, Kind

AVRO_KINDS = {
    "string": "text",
    "bytes": "bytes",
    "boolean": "boolean",
    "int": "integer",
    "long": "integer",
    "float": "float",
    "double": "float",
}
"""Kinds of columns by the Avro type."""
SUBJECT = ("connection", "session_id")
"""The columns by which a line groups records, so that those of an erased session can leave together."""
NO_VALUE = "-"


def columns_of(schema: RecordSchema, topic: str, day: tuple[str, ...]) -> Columns:
    """Return the columns of a record type as a line of a manifest."""
    named: dict[str, Kind] = {}
    columns = [(name, "text" if sql_type == "VARCHAR" else "integer") for name, (sql_type, _) in SYSTEM_COLUMNS.items()]
    columns += [(field["name"], kind_of(field["type"], named)) for field in schema.fields]
    return Columns(topic=topic, table=schema.table, columns=columns, day=list(day))


def kind_of(avro_type: Any, named: dict[str, Kind]) -> Kind:
    """Return the kind of an Avro type. `named` collects record types, so that later fields can refer to them."""
    if isinstance(avro_type, str):
        return named[avro_type] if avro_type in named else AVRO_KINDS[avro_type]
    if isinstance(avro_type, list):
        return kind_of(avro_type[1], named)
    if "logicalType" in avro_type:
        return "time"
    if avro_type["type"] == "array":
        return {"list": kind_of(avro_type["items"], named)}
    kind = {"struct": [[field["name"], kind_of(field["type"], named)] for field in avro_type["fields"]]}
    named[f"driftline.{avro_type['name']}"] = kind
    return kind


def value_sql(value: str, kind: Kind, depth: int = 0) -> str:
    """Return the SQL expression of the text of a value."""
    match kind:
        case "text":
            return f"coalesce(strlen({value}) || ':' || {value}, '{NO_VALUE}')"
        case "bytes":
            return f"coalesce(2 * octet_length({value}) || ':' || lower(hex({value})), '{NO_VALUE}')"
        case "time":
            return f"coalesce(epoch_us({value})::VARCHAR, '{NO_VALUE}')"
        case {"list": item}:
            name = f"item{depth}"
            items = f"array_to_string(list_transform({value}, lambda {name}: {value_sql(name, item, depth + 1)}), ',')"
            return f"CASE WHEN {value} IS NULL THEN '{NO_VALUE}' WHEN len({value}) = 0 THEN '[]' ELSE '[' || {items} || ']' END"
        case {"struct": fields}:
            values = ", ".join(value_sql(f"struct_extract({value}, {literal(name)})", kind, depth + 1) for name, kind in fields)
            return f"CASE WHEN {value} IS NULL THEN '{NO_VALUE}' ELSE '{{' || concat_ws(',', {values}) || '}}' END"
        case _:
            return f"coalesce({value}::VARCHAR, '{NO_VALUE}')"


def record_sql(columns: Columns) -> str:
    """Return the SQL expression of a record's digest."""
    return f"sha256(concat_ws(',', {', '.join(value_sql(quote(name), kind) for name, kind in columns.columns)}))"


def day_sql(columns: Columns) -> str:
    """Return the SQL expression of a record's UTC day, whether its times have a time zone or not."""
    if not columns.day:
        return "NULL::VARCHAR"
    return f"make_timestamp(epoch_us(coalesce({', '.join(map(quote, columns.day))})))::DATE::VARCHAR"


def subject_sql(columns: Columns) -> tuple[str, str]:
    """Return the SQL expressions of the connection and the session of a record, null where its table has none."""
    names = {name for name, _ in columns.columns}
    connection, session = (quote(name) if name in names else "NULL::VARCHAR" for name in SUBJECT)
    return connection, session


def subject_digest_sql(value: str) -> str:
    """Return the SQL expression of the digest of a connection or a session."""
    return f"sha256({value_sql(value, 'text')})"


def select_digests(columns: Columns, source: str) -> str:
    """Return the query for position, day, connection, session and digest of the records of a source."""
    connection, session = subject_sql(columns)
    return (
        f"SELECT {', '.join(SYSTEM_COLUMNS)}, {day_sql(columns)} AS day, {connection} AS connection, {session} AS session_id, "
        f"{record_sql(columns)} AS digest FROM {source}"
    )


def line_digests_sql(rows: str, key: str, connection: str, session: str) -> str:
    """Return the query for the digest, number and checks of each line of records.

    `rows` has records with connection, session, digest and position. `key` names the columns that identify the line; `connection` and
    `session` are expressions of the digests of these two columns.
    """
    return f"""
        WITH subjects AS (
            SELECT {key}, connection, session_id, sha256(string_agg(digest, '' ORDER BY _partition, _offset)) AS records_digest
            FROM {rows} GROUP BY {key}, connection, session_id
        ), leaves AS (
            SELECT {key}, sha256({connection} || {session} || records_digest) AS leaf FROM subjects
        ), digests AS (
            SELECT {key}, sha256(string_agg(leaf, '' ORDER BY leaf)) AS digest FROM leaves GROUP BY {key}
        ), records AS (
            SELECT {key}, count(*) AS record_count, string_agg(left(digest, {CHECK_LENGTH}), '' ORDER BY _partition, _offset) AS checks
            FROM {rows} GROUP BY {key}
        )
        SELECT {", ".join(f"records.{name}" for name in key.split(", "))}, record_count, digests.digest, checks
        FROM records JOIN digests ON {" AND ".join(f"records.{name} IS NOT DISTINCT FROM digests.{name}" for name in key.split(", "))}"""
