"""Several DuckDB files read side by side on one connection, of which none is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from analytics.store.connection import connect, store_error
from analytics.store.file_lock import FileLock
from analytics.store.tables import LOG, literal, quote
from schemas.lazy.duckdb import duckdb


@contextlib.contextmanager
def attached(files: Mapping[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that has each file attached under its name, for reading only.

    StoreError with a hint when one cannot be opened: in use, damaged, or no database.
    """
    with contextlib.ExitStack() as opened:
        for path in files.values():
            opened.enter_context(FileLock(path, shared=True))
        connection = opened.enter_context(connect(None))
        for name, path in files.items():
            try:
                connection.execute(f"ATTACH {literal(str(path))} AS {quote(name)} (READ_ONLY)")
            except duckdb.Error as error:
                raise store_error(path, error) from error
        yield connection


def reading(name: str, table: str) -> str:
    """The statement that reads the log's rows of a table in the file that is attached under a name."""
    return f"FROM {quote(name)}.{LOG}.{quote(table)}"
