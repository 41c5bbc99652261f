# ruff: noqa: S608 - what is wrapped is the statement of an analyst, and nothing but that is what runs
"""Queries of analysts over a snapshot: values as parameters, so many rows, so much time and memory, and nothing else to reach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from analytics.sandbox.adhoc import LOCKED, LOCKING, only_statement, refusals
from analytics.sandbox.result_formats import frame_of
from analytics.store.tables import literal
from schemas.errors import QueryError
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

CATALOG = "driftline"
"""The name of the snapshot in a statement."""
ATTACHED_LATER = frozenset({"enable_external_access"})
"""Settings that would keep the snapshot from being attached; they follow once it is."""
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_WRAPPING_LINES = 1
_NULL = "NULL"
"""A type that DuckDB quotes, as if it were a user's type."""


class Limited(NamedTuple):
    """The rows of an answer, the types of its columns in DuckDB's words, and whether there are more rows."""

    frame: pl.DataFrame
    types: list[str]
    more: bool


def open_snapshot(file: str, *, memory: int, seconds: float) -> duckdb.DuckDBPyConnection:
    """A connection to a snapshot that takes up to `memory` bytes and `seconds` for a statement, and reaches nothing else."""
    config = {name: value for name, value in LOCKED.items() if name not in ATTACHED_LATER}
    connection = duckdb.connect(":memory:", config=config | {"threads": 1, "home_directory": "/", "secret_directory": "/"})
    connection.execute(f"ATTACH {literal(file)} AS {CATALOG} (READ_ONLY)")
    connection.execute(f"USE {CATALOG}")
    bounds = (f"SET memory_limit = '{memory}B'", f"SET max_execution_time = {int(seconds * 1000)}")
    for setting in (*bounds, "SET enable_external_access = false", *LOCKING):
        connection.execute(setting)
    return connection


def limited_frame(connection: duckdb.DuckDBPyConnection, statement: str, parameters: Mapping[str, Any], limit: int) -> Limited:
    """The first `limit` rows a statement answers.

    `parameters` are the values of its `$names`. QueryError as `read_only_rows` says.
    """
    with refusals():
        only_statement(connection, statement)
        wrapped = f"SELECT * FROM (\n{_unterminated(statement)}\n) LIMIT {limit + 1}"
        if not _parses(connection, wrapped):  # EXPLAIN stands only by itself
            return _cut(connection.sql(statement, params=dict(parameters)), limit)
    try:
        with refusals():
            return _cut(connection.sql(wrapped, params=dict(parameters)), limit)
    except QueryError as error:
        placed = _placed(error, connection, wrapped, parameters)
        told = _LINE.sub(lambda line: f"LINE {int(line[1]) - _WRAPPING_LINES}:", str(placed))
        raise QueryError(told, hint=placed.hint) from error


def _placed(
    error: QueryError, connection: duckdb.DuckDBPyConnection, wrapped: str, parameters: Mapping[str, Any]
) -> QueryError:
    """The error with its place in the statement: of a name that is not there a relation does not say where, and execute does."""
    if isinstance(error.__cause__, (duckdb.BinderException, duckdb.CatalogException)):
        try:
            with refusals():
                connection.execute(wrapped, dict(parameters))
        except QueryError as placed:
            return placed
    return error


def _cut(relation: duckdb.DuckDBPyRelation, limit: int) -> Limited:
    frame = frame_of(relation)
    return Limited(
        frame.head(limit), [_NULL if str(kind) == f'"{_NULL}"' else str(kind) for kind in relation.types], frame.height > limit
    )


def _unterminated(statement: str) -> str:
    """The statement without the semicolons that end it."""
    encoded = bytearray(statement.encode())
    for start, kind in duckdb.tokenize(statement):
        if kind == duckdb.token_type.operator and encoded[start : start + 1] == b";":
            encoded[start : start + 1] = b" "
    return encoded.decode()


def _parses(connection: duckdb.DuckDBPyConnection, statement: str) -> bool:
    try:
        return len(connection.extract_statements(statement)) == 1
    except duckdb.ParserException:
        return False
