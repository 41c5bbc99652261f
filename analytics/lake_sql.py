# ruff: noqa: S608 - statements are built from names of our own and quoted paths
"""SQL over a lake: a read-only statement of an analyst, by DuckDB, over the files that Delta's log lists.

1. The tables and views have the names and columns that they have in a database, so the same statement runs on both. A table in the
   schema `log` has each revision of a record once; in `main` it has the current one.
2. Missing are the tables that only a server computes: sums by day (`daily_failures`, and `failure_groups` over it) and the numbers of
   runs, which are null.
3. A statement sees the lake as it was when it began. It can read these files and nothing else, within limits of time and memory.
   It needs no lock and no server, so any number of processes may read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analytics.adhoc import ATTACHED_LATER, READ_ONLY_SETTINGS, LimitedResult, fetch_limited
from analytics.lake import ORIGIN, Lake
from analytics.store.tables import (
    CONSTANT_COLUMNS,
    column_types,
    create_statements,
    default_literal,
    full_name,
    literal,
    quote,
    view_statements,
)
from analytics.store.views import CURRENT_EXCHANGES_STATEMENT, add_temporary_views
from analytics.store.views import view_statements as analysts_views
from analytics.sums.macros import translation_statements
from schemas.errors import LakeError, QueryError, first_line
from schemas.lazy import duckdb
from schemas.registry import RecordSchema, current_schemas

RAW = "lake"
"""The schema with the rows of the files."""
_RUN_NUMBERS = """
CREATE VIEW log.run_numbers AS
SELECT DISTINCT project, "connection", session_id, NULL::BIGINT AS number FROM log.diagnoses"""
_CREATED = re.compile(r"CREATE VIEW (\w+)")
_WORD = re.compile(r"\w+")
_CATALOG_NAMES = frozenset({"show", "describe", "desc", "summarize", "information_schema", "query", "query_table"})
"""Words of statements that may refer to tables without naming them; so do the functions that begin with `duckdb_`."""
_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True)
class LakeQueryLimits:
    """The limits of a statement."""

    seconds: float = 10.0
    memory: int = 1024 * 1024 * 1024
    """Bytes that DuckDB may use."""


def fetch_from_lake(lake: Lake, statement: str, limit: int, limits: LakeQueryLimits) -> LimitedResult:
    """Return the first `limit` rows of a read-only statement. Raises QueryError for the statement, LakeError for the lake."""
    try:
        return _fetch(lake, statement, limit, limits)
    except LakeError:
        # A sink may have replaced files since they were listed, and removed the old ones.
        lake.reload()
        return _fetch(lake, statement, limit, limits)


def _fetch(lake: Lake, statement: str, limit: int, limits: LakeQueryLimits) -> LimitedResult:
    """Raise LakeError if a file cannot be read."""
    try:
        with open_lake(lake, statement, limits) as connection:
            return fetch_limited(connection, statement, {}, limit)
    except duckdb.IOException as error:
        raise LakeError(f"{lake.root}: {first_line(error)}", hint="Run the statement again.") from error
    except QueryError as error:
        if isinstance(error.__cause__, duckdb.IOException):
            raise LakeError(f"{lake.root}: {error}", hint="Run the statement again.") from error
        raise


def readable_folder(lake: Lake) -> Path | None:
    """Return the absolute folder of a lake; None if DuckDB cannot read it, in an object store or under a path that looks like a pattern."""
    folder = None if lake.folder is None else lake.folder.absolute()
    return folder if _GLOB_CHARACTERS.isdisjoint(str(folder)) else None


def require_readable(lake: Lake) -> Path:
    """Return the absolute folder of a lake. Raises LakeError if DuckDB cannot read it."""
    folder = readable_folder(lake)
    if folder is None:
        raise LakeError(
            f"{lake.root}: DuckDB reads a lake only in a folder whose path has none of * ? [",
            hint="Read an object store with Polars or Spark: see the guide to the lake.",
        )
    return folder


@contextlib.contextmanager
def open_lake(lake: Lake, statement: str, limits: LakeQueryLimits) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection with the tables that a statement names, which can only read their files of the lake's present version.

    Raises LakeError if there is no lake.
    """
    require_readable(lake)
    lake.require()
    config = {name: value for name, value in READ_ONLY_SETTINGS.items() if name not in ATTACHED_LATER}
    with duckdb.connect(":memory:", config=config) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        files = _create_views(connection, lake, _select_tables(statement))
        for setting in (
            f"SET memory_limit = '{limits.memory}B'",
            f"SET max_execution_time = {int(limits.seconds * 1000)}",
            "SET enable_progress_bar = false",
            f"SET allowed_paths = [{', '.join(map(literal, files))}]",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            connection.execute(setting)
        yield connection


def _select_tables(statement: str) -> list[RecordSchema]:
    """Return the record types whose tables a statement may read, directly or in a view; all of them if it asks for the catalog.

    To open a table means to read the end of each of its files, which takes long for all tables of a large lake.
    """
    texts = {match[1]: text for text in analysts_views() if (match := _CREATED.match(text)) is not None}
    names = _find_names(statement)
    visited = set[str]()
    while pending := names & texts.keys() - visited:
        visited |= pending
        for name in pending:
            names |= _find_names(texts[name])
    schemas = [schema for schema in current_schemas().values() if schema.topics]
    return [schema for schema in schemas if schema.table in names] if not _reads_catalog(names) else schemas


def _reads_catalog(names: Iterable[str]) -> bool:
    return any(name in _CATALOG_NAMES or name.startswith("duckdb_") for name in names)


def _find_names(statement: str) -> set[str]:
    names = set(_WORD.findall(statement.lower()))
    return names | {"diagnoses"} if "run_numbers" in names else names


def _create_views(connection: duckdb.DuckDBPyConnection, lake: Lake, schemas: Sequence[RecordSchema]) -> list[str]:
    """Create the tables' views and the analysts' views over them; return the files that they read."""
    files: list[str] = []
    connection.execute(f"CREATE SCHEMA {RAW}; CREATE SCHEMA log")
    for statement in translation_statements():
        connection.execute(statement)
    for schema in schemas:
        table_files = lake.table(schema.name).file_uris()
        for statement in _table_statements(schema, table_files, lake.columns(schema.name)):
            connection.execute(statement)
        files += table_files
    tables = {schema.table for schema in schemas}
    if "exchanges" in tables:
        connection.execute(CURRENT_EXCHANGES_STATEMENT)
    for schema in schemas:
        for statement in view_statements(schema):
            connection.execute(statement)
    if "diagnoses" in tables:
        connection.execute(_RUN_NUMBERS)
    add_temporary_views(connection)
    return files


def _table_statements(schema: RecordSchema, files: list[str], columns: frozenset[str]) -> Iterator[str]:
    """Return the statements that create the table of a record type in the schema `log`, over its files."""
    if not files:
        yield from create_statements(schema)
        return
    yield f"CREATE VIEW {RAW}.{quote(schema.table)} AS {select_rows(schema, files, columns)}"
    same = [*CONSTANT_COLUMNS.get(schema.table, ()), *schema.identity, *(["revision"] if schema.has_revisions else [])]
    if len(schema.topics) > 1:
        same.append("_topic")
    identity = ", ".join(map(quote, dict.fromkeys(same)))
    # A topic may have a record twice, and the first one counts.
    yield (
        f"CREATE VIEW {full_name(schema)} AS FROM {RAW}.{quote(schema.table)} "
        f"QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY _partition, _offset) = 1"
    )


def select_rows(schema: RecordSchema, files: Iterable[str], columns: frozenset[str]) -> str:
    """Return the statement that selects all rows of the files of a table, in the order of the files, with the columns of a database.

    `columns` are those of the table.
    """
    types = column_types(schema)
    selected = ", ".join(
        [*ORIGIN, *(_column(field["name"], types[field["name"]], default_literal(field), columns) for field in schema.fields)]
    )
    listed = ", ".join(map(literal, files))
    return f"SELECT {selected} FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"


def _column(name: str, kind: str, default: str, columns: frozenset[str]) -> str:
    """Return the expression of a column as a database has it: times without a zone, and defaults in rows from before the column."""
    if name not in columns:
        return f"CAST({default} AS {kind}) AS {quote(name)}"
    value = f"CAST({quote(name)} AS {kind})" if "TIMESTAMP" in kind else quote(name)
    if default != "NULL":
        value = f"coalesce({value}, CAST({default} AS {kind}))"
    return f"{value} AS {quote(name)}"
