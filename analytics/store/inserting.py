# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Writes frames into DuckDB and counts every row: rows are appended, or replace the earlier version of their identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from analytics.store.tables import full_name, quote
from schemas.codec.arrow import ArrowStream, empty_frame
from schemas.errors import StoreError
from schemas.lazy import duckdb, pl
from schemas.records import Record
from schemas.registry import RecordSchema, schema_of

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
