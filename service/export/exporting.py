# ruff: noqa: S608 - statements are built from the names in the schemas, quoted
"""The log as Parquet: one file per table, rows in the order of topic, partition and offset, times in UTC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analytics.store.store import Store
from analytics.store.tables import SYSTEM_COLUMNS, columns_of, full_name, literal, quote
from schemas.errors import InputError
from schemas.lazy.duckdb import duckdb
from schemas.registry import RecordSchema, current_schemas

ROW_GROUP = 10_000
"""Rows of one row group: a replay reads windows, and exchanges are large."""


def export_tables(store: Store, folder: Path, tell: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Write every table whose records travel on a topic; return the rows of each. `tell` hears the name of each before.

    A file is there whole or not at all, in place of one of that name. InputError when the folder cannot be written to.
    """
    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for schema in current_schemas().values():
            if schema.topics:
                tell(schema.table)
                written[schema.table] = _export(store, schema, folder)
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"{folder}: {str(error).splitlines()[0]}", hint="Choose a writable folder.") from error
    return written


def _export(store: Store, schema: RecordSchema, folder: Path) -> int:
    columns = [*(quote(name) for name in SYSTEM_COLUMNS)]
    columns += [f"{quote(name)}::{kind} AS {quote(name)}" for name, kind in columns_of(schema, timestamp="TIMESTAMPTZ").items()]
    unfinished = folder / f".{schema.table}.parquet"
    statement = (
        f"COPY (SELECT {', '.join(columns)} FROM {full_name(schema)} ORDER BY _topic, _partition, _offset) "
        f"TO {literal(str(unfinished))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
    )
    ((rows,),) = store.cursor().execute(statement).fetchall()
    unfinished.replace(folder / f"{schema.table}.parquet")
    return int(rows)
