"""Ad-hoc SQL by the owner of the file: one statement, on a connection that can read the database and reach nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analytics.sandbox.statements import only_reads
from analytics.store.connection import store_error
from analytics.store.file_lock import FileLock
from analytics.store.readable_views import add_temporary_views
from schemas.errors import QueryError
from schemas.lazy.duckdb import duckdb

LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
"""The settings with which the file is opened: no network, no extensions, no Python variables, nothing written aside."""
LOCKING = (
    "SET TimeZone = 'UTC'",
    # An interpreter without a script counts as interactive, and has a bar drawn on standard output, where the answer goes.
    "SET enable_progress_bar = false",
    # Without external access DuckDB still writes what lies beside the file, its write-ahead log above all.
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)
"""The statements that follow once the file is open: no other file, and no way to change any of it."""
READING = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""Kinds of statements that read: FROM, WITH, VALUES, SHOW, DESCRIBE and SUMMARIZE count as SELECT, a PIVOT that has to look for its columns as MULTI."""
ZONED = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMP", "TIMESTAMPTZ_NS": "TIMESTAMP_NS"}
"""DuckDB's types for times with a zone, which take a package that is not ours to fetch, and those that hold the same in UTC."""
HINTS = {
    "read-only mode": "The database is opened for reading only.",
    "disabled by configuration": "A statement reads the database and nothing else: no files, no network, no extensions.",
    "configuration has been locked": "A statement reads the database and changes no setting.",
    "maximum execution time": "Ask for less: a shorter time, fewer sessions, no join of everything with everything.",
    "Out of Memory": "Ask for less at once: fewer columns, a shorter time, fewer rows to sort.",
}
"""Advice on an error, by a phrase of DuckDB's message."""
READ_ONLY = "Give one that reads: SELECT, FROM, WITH, VALUES, PIVOT, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN of one of these."
LOOK_FIRST = "`driftline sql 'SHOW TABLES'` lists the tables, `driftline sql 'DESCRIBE scores'` the columns of one."


def read_only_rows(path: Path, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Column names, up to `limit` rows, and whether there are more; times carry their zone, which is UTC.

    QueryError when it is not exactly one statement that reads, or when DuckDB cannot answer it. StoreError when the file cannot
    be opened.
    """
    with open_read_only(path) as connection, refusals():
        add_temporary_views(connection)
        return _answer(connection, statement, limit)


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that can read the database and reach nothing else; StoreError when the file cannot be opened."""
    with FileLock(path, shared=True):
        try:
            connection = duckdb.connect(str(path), read_only=True, config=LOCKED)
        except duckdb.Error as error:
            raise store_error(path, error) from error
        with connection:
            for setting in LOCKING:
                connection.execute(setting)
            yield connection


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise DuckDB's objections to a statement as a QueryError, with advice."""
    try:
        yield
    except duckdb.Error as error:
        hints = (hint for phrase, hint in HINTS.items() if phrase in str(error))
        raise QueryError(_without_blank_lines(str(error)), hint=next(hints, LOOK_FIRST)) from error


def _answer(connection: duckdb.DuckDBPyConnection, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    result = connection.execute(only_statement(connection, statement))
    names = [column[0] for column in result.description]
    types = [str(column[1]) for column in result.description]
    if any(zoned in kind for kind in types for zoned in ZONED):
        columns = ", ".join(f"#{number}::{_without_zone(kind)}" for number, kind in enumerate(types, start=1))
        result = connection.execute(f"SELECT {columns} FROM query($statement)", {"statement": statement})  # noqa: S608
    rows = result.fetchmany(limit + 1)
    if any("TIMESTAMP" in kind for kind in types):
        rows = [tuple(map(_in_utc, row)) for row in rows]
    return names, rows[:limit], len(rows) > limit


def only_statement(connection: duckdb.DuckDBPyConnection, statement: str) -> duckdb.Statement:
    """The one statement that was given; QueryError when there are none or several, or when it does not read."""
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise QueryError(f"the statement is not text: {error}", hint="Give it in UTF-8.") from error
    statements = connection.extract_statements(statement)
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} statements were given", hint="Give one statement that reads.")
    kind = statements[0].type
    if kind.name not in READING:
        raise QueryError(f"a statement of the type {kind.name} is not answered", hint=READ_ONLY)
    if not only_reads(statement):
        raise QueryError("a statement that contains one that writes is not answered", hint=READ_ONLY)
    return statements[0]


def _without_zone(kind: str) -> str:
    for zoned, plain in ZONED.items():
        kind = kind.replace(zoned, plain)
    return kind


def _in_utc(value: Any) -> Any:
    """The value with every time in it marked as UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, list):
        return [_in_utc(item) for item in value]
    if isinstance(value, dict):
        return {_in_utc(key): _in_utc(item) for key, item in value.items()}
    return value


def _without_blank_lines(message: str) -> str:
    return "\n".join(line for line in message.splitlines() if line.strip())
