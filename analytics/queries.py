"""The named queries: one per file in `sql/`, with a header that states its purpose, grain and parameters.

No query reads a clock: the current time is the parameter `$as_of`. Values are always passed as parameters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from analytics.store.connection import fetch
from schemas.codec.single_object import record_from
from schemas.errors import QueryError
from schemas.lazy import duckdb, pl
from schemas.records import Record

HEADER = re.compile(r"(?:--.*\n)+")
"""A query starts with the comments `-- purpose: …`, `-- grain: …` and `-- parameters: …`; the last names each parameter as `$name`."""
ENTRY = re.compile(r"^-- (\w+): ", re.MULTILINE)
"""The start of an entry of the header. An entry goes on in indented comments."""
PARAMETER = re.compile(r"\$(\w+)")
Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class Query:
    """A named query: its text and its header."""

    name: str
    text: str
    purpose: str
    grain: str
    parameters: tuple[str, ...]
    explained: str
    """Description of the parameters."""

    @property
    def optional(self) -> tuple[str, ...]:
        """The parameters that may be NULL. The header explains NULL once for several parameters, so all earlier ones count too."""
        return tuple(name for name in self.parameters if "NULL" in self.explained[self.explained.index(f"${name}") :])


@functools.cache
def queries() -> dict[str, Query]:
    """Return every query by name."""
    files = sorted((resources.files("analytics") / "sql").iterdir(), key=lambda entry: entry.name)
    return {query.name: query for query in map(_read, files)}


def _read(file: Traversable) -> Query:
    text = file.read_text(encoding="utf-8")
    header = _read_header(text)
    parameters = tuple(PARAMETER.findall(header["parameters"]))
    return Query(file.name.removesuffix(".sql"), text, header["purpose"], header["grain"], parameters, header["parameters"])


def _read_header(text: str) -> dict[str, str]:
    """Return the entries of a query's header by name, each on one line."""
    header = HEADER.match(text)
    if header is None:
        raise QueryError("a query has no header", hint="Begin it with its purpose, grain and parameters.")
    _, *parts = ENTRY.split(header[0])
    names, entries = parts[::2], parts[1::2]
    return {name: " ".join(entry.replace("\n--", "\n").split()) for name, entry in zip(names, entries, strict=True)}


def run_query(cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Return the result of a named query. Raises QueryError if the query is unknown or a parameter is missing or unknown."""
    return fetch(cursor, *_check_parameters(name, values))


def query_tuples(
    cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a named query as tuples. Faster than `run_query` for few rows: DuckDB binds a statement twice for a frame."""
    return cursor.execute(*_check_parameters(name, values)).fetchall()


def _check_parameters(name: str, values: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Return the text of a named query and its parameters. Raises QueryError if they do not match."""
    query = queries().get(name)
    if query is None:
        raise QueryError(f"there is no query {name}", hint=f"Queries: {', '.join(queries())}.")
    parameters = dict(values or {})
    if set(parameters) != set(query.parameters):
        expected = ", ".join(query.parameters) or "none"
        raise QueryError(f"query {name} has the parameters {expected}, not {', '.join(parameters) or 'none'}")
    return query.text, parameters


def query_rows(
    cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Any] | None = None, *, kept: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a named query by column name, with times in UTC.

    For the macros in `kept`, the query reads only the kept sums: see `analytics.sums.daily`.
    """
    text, parameters = _check_parameters(name, values)
    for macro in kept:
        text = text.replace(f"log.{macro}(", f"log.kept_{macro}(")
    result = cursor.execute(text, parameters)
    columns = [(column[0], str(column[1]) == "TIMESTAMP") for column in result.description or ()]
    names = [column for column, _ in columns]
    rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    for column in (column for column, is_time in columns if is_time):
        for row in rows:
            if row[column] is not None:
                row[column] = row[column].replace(tzinfo=UTC)
    return rows


def query_records(
    cursor: duckdb.DuckDBPyConnection, name: str, record_type: type[Kind], values: Mapping[str, Any] | None = None
) -> Iterator[Kind]:
    """Return the rows of a named query as records of a type, whose columns the query has to select."""
    return (record_from(record_type, row) for row in query_rows(cursor, name, values))
