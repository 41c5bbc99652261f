# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Frames into DuckDB: registered under a name no table has, and inserted so that every row is counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from analytics.store.tables import full_name
from schemas.codec.arrow import ArrowStream
from schemas.errors import StoreError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.registry import RecordSchema

BATCH = "_driftline_batch"
"""Name under which a batch is registered. A table's name would win over it, and no table may be called so."""

PARTITION = 0
"""The embedded log has one partition a topic."""


@contextlib.contextmanager
def registered(connection: duckdb.DuckDBPyConnection, frame: pl.DataFrame, name: str = BATCH) -> Iterator[None]:
    """Let statements read the frame under this name."""
    connection.register(name, ArrowStream(frame))
    try:
        yield
    finally:
        connection.unregister(name)


def insert(connection: duckdb.DuckDBPyConnection, schema: RecordSchema, frame: pl.DataFrame) -> int:
    """Insert rows into the log table of a record type; answers how many. StoreError when not all were written."""
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
    """Insert rows as records of a topic at these positions; answers how many."""
    placed = frame.with_columns(
        pl.lit(topic).alias("_topic"), pl.lit(PARTITION, pl.Int32).alias("_partition"), offsets.alias("_offset")
    )
    return insert(connection, schema, placed)
