"""Connections to a DuckDB file: opened so that nothing but the file is read, and queried into frames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import StoreError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

_HOLDER = re.compile(r"\(PID (\d+)\)")
_LOCKED = "could not set lock on file"
IN_USE = (
    "Another process has the file and takes no commands: a server that is not up yet takes them in a moment; if it is an import, "
    "perhaps one that follows, wait for it or stop it."
)
"""Advice on a file that another process has open."""
_OPEN_HINTS = {
    _LOCKED: IN_USE,
    "replaying wal file": "The write-ahead log is damaged: move the .wal file aside and bring again what came since; what is in the file stays.",
}


# A CSV, JSON or Parquet file is opened as a view in a database in memory: what is written to that is lost.
_KEPT_IN = "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"


def fetch(connection: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """The result of a query as a frame."""
    return pl.DataFrame(connection.sql(statement, params=dict(values or {})))


def connect(path: Path | None) -> duckdb.DuckDBPyConnection:
    """A connection to the file, or to a database in memory; StoreError with a hint when the file cannot be opened."""
    settings: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=settings)
    except duckdb.Error as error:
        raise store_error(path, error) from error
    if path is not None and connection.execute(_KEPT_IN).fetchone() == (None,):
        connection.close()
        raise StoreError(f"{path}: is no DuckDB database", hint="Name the file of a database, or one that is not there yet.")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # else cursors go by the machine's zone
    return connection


def store_error(path: Path | None, error: duckdb.Error) -> StoreError:
    """Return DuckDB's error about a file, with advice; if another process has the file, the error names that process."""
    message = str(error).splitlines()[0]
    if _LOCKED in message.lower():
        holder = _HOLDER.search(message)
        return in_use(path, int(holder[1]) if holder else None)
    hints = (hint for phrase, hint in _OPEN_HINTS.items() if phrase in message.lower())
    hint = next(hints, "Check that the path is a DuckDB file of this version and that the folder can be written to.")
    return StoreError(f"{path}: {message}", hint=hint)


def in_use(path: Path | None, process: int | None) -> StoreError:
    """Return the error that another process has the file, with advice; it names the process where that is known."""
    return StoreError(f"{path}: in use by {'another process' if process is None else f'process {process}'}", hint=IN_USE)
