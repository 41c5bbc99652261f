# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Ad-hoc SQL: one read-only statement on a database or a snapshot, and the encoding of its result.

The owner of a file may query it directly. An analyst's query over a snapshot has bounded rows, time and memory, and takes its
values as parameters.

DuckDB reports only the outer type of a nested statement: `EXPLAIN ANALYZE COPY …` runs the copy but counts as EXPLAIN,
`COPY (PIVOT …) TO …` counts as MULTI, and `WITH x AS (DELETE … RETURNING *) SELECT …` as SELECT. So the statement's own tokens
are checked too.

Results are JSON, CSV, an Arrow file or Parquet. Times are written in UTC with their zone.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from analytics.queries import Query
from analytics.store.connection import FileLock, store_error
from analytics.store.tables import literal, quote
from analytics.store.views import add_temporary_views
from schemas.errors import QueryError
from schemas.lazy import duckdb, pl

READ_ONLY_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
"""Settings for opening a file: no network, no extensions, no Python variables, no temporary files."""
LOCKDOWN_STATEMENTS = (
    "SET TimeZone = 'UTC'",
    # Without a script DuckDB believes that the interpreter is interactive, and draws a progress bar on standard output, into the result.
    "SET enable_progress_bar = false",
    # Even without external access DuckDB can write files beside the database, such as its write-ahead log.
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)
"""Statements to run after opening the file. They disable the file system and lock the settings."""
_READING_TYPES = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""DuckDB's types of reading statements. FROM, WITH, VALUES, SHOW, DESCRIBE and SUMMARIZE are SELECT; PIVOT without listed columns is MULTI."""
ZONED_TYPES = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMP", "TIMESTAMPTZ_NS": "TIMESTAMP_NS"}
"""DuckDB's types of times with a zone, and their equivalents in UTC. Fetching a time with a zone needs pytz, which we do not install."""
ERROR_HINTS = {
    "read-only mode": "The database is opened for reading only.",
    "disabled by configuration": "A statement can read only the database: no files, no network, no extensions.",
    "configuration has been locked": "A statement cannot change settings.",
    "maximum execution time": "Query less: a shorter time, fewer sessions, no cross joins.",
    "Out of Memory": "Query less at once: fewer columns, a shorter time, fewer rows to sort.",
    **{
        f'"{column}" not found': f"A snapshot has no {column}; `driftline sql` has it."
        for column in ("user_message", "agent_response", "agent_thinking")
    },
}
"""Advice on an error, by a phrase of DuckDB's message."""
READ_ONLY_HINT = (
    "Use a read-only statement: SELECT, FROM, WITH, VALUES, PIVOT, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN of one of these."
)
CATALOG_HINT = "`driftline sql 'SHOW TABLES'` lists the tables, `driftline sql 'DESCRIBE scores'` the columns of one."

READING_KEYWORDS = frozenset({"select", "from", "values", "table", "pivot", "unpivot", "show", "describe", "desc", "summarize"})
"""First keywords of read-only statements."""
WRITING_KEYWORDS = frozenset({"copy", "insert", "update", "delete", "merge", "truncate"})
"""First keywords of common table expressions that change data."""
_ANALYZE = frozenset({"analyze", "analyse"})
_CTE_WORDS = frozenset({",", "as", "using"})
"""Tokens that follow a closing parenthesis within the list of a WITH. Any other token begins the main statement."""

CATALOG = "driftline"
"""The name of the snapshot in a statement."""
ATTACHED_LATER = frozenset({"enable_external_access"})
"""Settings to apply after attaching the snapshot, because they would prevent attaching it."""
_LINE_NUMBER = re.compile(r"^LINE (\d+):", re.MULTILINE)
_WRAPPING_LINES = 1
_NULL = "NULL"
"""DuckDB quotes this type like a user-defined one."""


def fetch_rows(
    path: Path, statement: str, limit: int, bounds: Sequence[str] = ()
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Return the column names of a statement's result, up to `limit` rows with times in UTC, and whether there are more.

    `bounds` are further settings, such as of time and memory, for a statement that its caller did not write.

    Raises QueryError unless the text is exactly one read-only statement that DuckDB can run; StoreError if the file cannot be opened.
    """
    with open_read_only(path, bounds) as connection, raise_query_errors():
        add_temporary_views(connection)
        return _fetch_rows(connection, statement, limit)


@contextlib.contextmanager
def open_read_only(path: Path, bounds: Sequence[str] = ()) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection that can only read the database. Raises StoreError if the file cannot be opened."""
    with FileLock(path, shared=True):
        try:
            connection = duckdb.connect(str(path), read_only=True, config=READ_ONLY_SETTINGS)
        except duckdb.Error as error:
            raise store_error(path, error) from error
        with connection:
            for setting in (*bounds, *LOCKDOWN_STATEMENTS):
                connection.execute(setting)
            yield connection


@contextlib.contextmanager
def raise_query_errors() -> Iterator[None]:
    """Convert DuckDB's errors about a statement to QueryError, with a hint."""
    try:
        yield
    except duckdb.Error as error:
        hints = (hint for phrase, hint in ERROR_HINTS.items() if phrase in str(error))
        raise QueryError(_remove_blank_lines(str(error)), hint=next(hints, CATALOG_HINT)) from error


def _remove_blank_lines(message: str) -> str:
    return "\n".join(line for line in message.splitlines() if line.strip())


def _fetch_rows(
    connection: duckdb.DuckDBPyConnection, statement: str, limit: int
) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    result = connection.execute(parse_single_statement(connection, statement))
    names = [column[0] for column in result.description]
    types = [str(column[1]) for column in result.description]
    if any(zoned in kind for kind in types for zoned in ZONED_TYPES):
        columns = ", ".join(f"#{number}::{_remove_zone(kind)}" for number, kind in enumerate(types, start=1))
        result = connection.execute(f"SELECT {columns} FROM query($statement)", {"statement": statement})
    rows = result.fetchmany(limit + 1)
    if any("TIMESTAMP" in kind for kind in types):
        rows = [tuple(map(_mark_utc, row)) for row in rows]
    return names, rows[:limit], len(rows) > limit


def parse_single_statement(connection: duckdb.DuckDBPyConnection, statement: str) -> duckdb.Statement:
    """Return the only statement of a text. Raises QueryError unless there is exactly one and it is read-only."""
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise QueryError(f"the statement is not valid text: {error}", hint="Send it in UTF-8.") from error
    statements = connection.extract_statements(statement)
    if len(statements) != 1:
        raise QueryError(f"expected one statement, got {len(statements)}", hint="Send one read-only statement.")
    kind = statements[0].type
    if kind.name not in _READING_TYPES:
        raise QueryError(f"statements of the type {kind.name} are not allowed", hint=READ_ONLY_HINT)
    if not is_read_only(statement):
        raise QueryError("statements that contain a write are not allowed", hint=READ_ONLY_HINT)
    return statements[0]


def is_read_only(statement: str) -> bool:
    """Tell whether a valid statement, or the statement that it explains, only reads."""
    tokens = _tokenize(statement)
    return _find_main_keyword(_strip_explain(tokens)) in READING_KEYWORDS and not _has_writing_cte(tokens)


def _tokenize(statement: str) -> list[str]:
    """Return the statement's words and operators in lower case, without comments. Every operator is one character."""
    encoded = statement.encode()
    spans = duckdb.tokenize(statement)
    ends = [start for start, _ in spans[1:]] + [len(encoded)]
    tokens: list[str] = []
    for (start, kind), end in zip(spans, ends, strict=True):
        text = encoded[start:end].decode().strip().lower()
        if kind == duckdb.token_type.operator:
            tokens += text
        elif kind != duckdb.token_type.comment:
            tokens.append(text)
    return tokens


def _find_main_keyword(tokens: Sequence[str]) -> str:
    """Return the first keyword of the main statement, after opening parentheses and the list of a WITH."""
    start = 0
    while start < len(tokens) and tokens[start] == "(":
        start += 1
    if tokens[start : start + 1] != ["with"]:
        return "".join(tokens[start : start + 1])
    while start < len(tokens):
        if tokens[start] != "(":
            start += 1
            continue
        start = _find_closing_parenthesis(tokens, start)
        if start < len(tokens) and tokens[start] not in _CTE_WORDS:
            return _find_main_keyword(tokens[start:])
    return ""


def _find_closing_parenthesis(tokens: Sequence[str], start: int) -> int:
    """Return the index after the parenthesis that closes the one at index `start`."""
    depth = 0
    for end in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[end], 0)
        if depth == 0:
            return end + 1
    return len(tokens)


def _strip_explain(tokens: Sequence[str]) -> Sequence[str]:
    """Return the tokens of the statement that an EXPLAIN explains, or all tokens of any other statement."""
    if tokens[:1] != ["explain"]:
        return tokens
    explained = tokens[1:]
    if explained[:1] and explained[0] in _ANALYZE:
        return explained[1:]
    # Parentheses hold EXPLAIN's options unless they begin a statement.
    if explained[:1] == ["("] and _find_main_keyword(explained) not in READING_KEYWORDS:
        return explained[_find_closing_parenthesis(explained, 0) :]
    return explained


def _has_writing_cte(tokens: Sequence[str]) -> bool:
    """Tell whether a common table expression of the statement changes data."""
    words = [token for token in tokens if token not in {"not", "materialized"}]
    return any(
        previous == "as" and word == "(" and _find_main_keyword(words[index + 1 :]) in WRITING_KEYWORDS
        for index, (previous, word) in enumerate(pairwise(words))
    )


def _remove_zone(kind: str) -> str:
    for zoned, plain in ZONED_TYPES.items():
        kind = kind.replace(zoned, plain)
    return kind


def _mark_utc(value: Any) -> Any:
    """Return the value with the time zone UTC set on every time in it."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, list):
        return [_mark_utc(item) for item in value]
    if isinstance(value, dict):
        return {_mark_utc(key): _mark_utc(item) for key, item in value.items()}
    return value


class LimitedResult(NamedTuple):
    """The rows of a result, DuckDB's names of the column types, and whether there are more rows."""

    frame: pl.DataFrame
    types: list[str]
    has_more: bool


def open_snapshot(file: str, *, memory: int, seconds: float) -> duckdb.DuckDBPyConnection:
    """Open a connection that can only read a snapshot, with up to `memory` bytes and `seconds` per statement."""
    config = {name: value for name, value in READ_ONLY_SETTINGS.items() if name not in ATTACHED_LATER}
    folders = {"home_directory": "/", "secret_directory": "/"}
    # Without threads of its own, so that a process with the connection can fork.
    connection = duckdb.connect(":memory:", config=config | folders | {"threads": 1, "async_threads": 0})
    connection.execute(f"ATTACH {literal(file)} AS {CATALOG} (READ_ONLY)")
    connection.execute(f"USE {CATALOG}")
    bounds = (f"SET memory_limit = '{memory}B'", f"SET max_execution_time = {int(seconds * 1000)}")
    for setting in (*bounds, "SET enable_external_access = false", *LOCKDOWN_STATEMENTS):
        connection.execute(setting)
    return connection


def fetch_limited(
    connection: duckdb.DuckDBPyConnection, statement: str, parameters: Mapping[str, Any], limit: int
) -> LimitedResult:
    """Return the first `limit` rows of a statement's result.

    `parameters` are the values of its `$names`. Raises QueryError like `fetch_rows`.
    """
    with raise_query_errors():
        parse_single_statement(connection, statement)
        wrapped = f"SELECT * FROM (\n{_remove_terminators(statement)}\n) LIMIT {limit + 1}"
        if not _is_valid(connection, wrapped):  # EXPLAIN cannot be a subquery
            return _limit_rows(connection.sql(statement, params=dict(parameters)), limit)
    try:
        with raise_query_errors():
            return _limit_rows(connection.sql(wrapped, params=dict(parameters)), limit)
    except QueryError as error:
        located = _locate_error(error, connection, wrapped, parameters)
        message = _LINE_NUMBER.sub(lambda line: f"LINE {int(line[1]) - _WRAPPING_LINES}:", str(located))
        raise QueryError(message, hint=located.hint) from error


def _remove_terminators(statement: str) -> str:
    """Return the statement without its final semicolons."""
    encoded = bytearray(statement.encode())
    for start, kind in duckdb.tokenize(statement):
        if kind == duckdb.token_type.operator and encoded[start : start + 1] == b";":
            encoded[start : start + 1] = b" "
    return encoded.decode()


def _is_valid(connection: duckdb.DuckDBPyConnection, statement: str) -> bool:
    try:
        return len(connection.extract_statements(statement)) == 1
    except duckdb.ParserException:
        return False


def _limit_rows(relation: duckdb.DuckDBPyRelation, limit: int) -> LimitedResult:
    frame = fetch_frame(relation)
    return LimitedResult(
        frame.head(limit), [_NULL if str(kind) == f'"{_NULL}"' else str(kind) for kind in relation.types], frame.height > limit
    )


def _locate_error(
    error: QueryError, connection: duckdb.DuckDBPyConnection, wrapped: str, parameters: Mapping[str, Any]
) -> QueryError:
    """Return the error with its position.

    DuckDB reports the position of an unknown name only from execute(), so the statement runs again that way.
    """
    if isinstance(error.__cause__, (duckdb.BinderException, duckdb.CatalogException)):
        try:
            with raise_query_errors():
                connection.execute(wrapped, dict(parameters))
        except QueryError as located:
            return located
    return error


def fetch_statement(path: Path, statement: str, limit: int) -> tuple[pl.DataFrame, bool]:
    """Return up to `limit` rows of a read-only statement, and whether there are more. Raises errors like `fetch_rows`."""
    with open_read_only(path) as connection:
        add_temporary_views(connection)
        answer = fetch_limited(connection, statement, {}, limit)
        return answer.frame, answer.has_more


def fetch_query(path: Path, query: Query, values: Mapping[str, Any], limit: int) -> tuple[pl.DataFrame, bool]:
    """Return up to `limit` rows of a named query with a value for each parameter, and whether there are more.

    Raises QueryError if a value does not fit its parameter's type; StoreError if the file cannot be opened.
    """
    with open_read_only(path) as connection, raise_query_errors():
        frame = fetch_frame(connection.sql(query.text, params=dict(values)))
        return frame.head(limit), frame.height > limit


FORMULA_START = r"^[=+\-@\t\r\n＝＋－＠]"  # noqa: RUF001 - some spreadsheets also accept full-width forms
"""First characters by which a spreadsheet recognizes a formula."""
_NOT_IN_FRAMES = re.compile(r"\b(INTERVAL|UNION|BIT|VARIANT|GEOMETRY|BIGNUM|UHUGEINT|TIME WITH TIME ZONE|TIME_NS|LAMBDA)\b")
_WITHOUT_ZONE = re.compile(r"\bTIMESTAMP\b(?! WITH)")
_JSON = msgspec.json.Encoder(decimal_format="number")
Encode: TypeAlias = "Callable[[pl.DataFrame], bytes]"


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """A result format: its media type, file extension and encoder."""

    media_type: str
    extension: str
    encode: Encode


def fetch_frame(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """Return the rows of a relation as a frame with distinct column names and times in UTC.

    Types that polars does not support, such as intervals and unions, become text.
    """
    names = _number_repeated(relation.columns)
    columns = (
        f"{_cast_column(number, str(kind))} AS {quote(name)}"
        for number, (name, kind) in enumerate(zip(names, relation.types, strict=True), 1)
    )
    frame = pl.DataFrame(relation.project(", ".join(columns)))
    return frame.with_columns(
        pl.selectors.datetime(time_zone=None).dt.replace_time_zone("UTC"),
        pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"),  # DuckDB names the zone Etc/UTC
    )


def _number_repeated(names: list[str]) -> list[str]:
    """Return the names, with numbers appended to repeated ones: `n`, `n_1`."""
    distinct: list[str] = []
    for name in names:
        number = 0
        candidate = name
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


def _cast_column(number: int, kind: str) -> str:
    if _NOT_IN_FRAMES.search(kind):
        return f"CAST(#{number} AS VARCHAR)"
    if _WITHOUT_ZONE.search(kind) and "ENUM(" not in kind:
        return f"CAST(#{number} AS {_WITHOUT_ZONE.sub('TIMESTAMP WITH TIME ZONE', kind)})"
    return f"#{number}"


def encode_json(frame: pl.DataFrame) -> bytes:
    """Return a JSON list with one object per row. NaN and infinities become null, bytes become Base64."""
    return _JSON.encode(frame.to_dicts())


def encode_csv(frame: pl.DataFrame) -> bytes:
    """Return CSV with a header. Lists and structs become JSON; a text that looks like a formula gets a leading apostrophe."""
    cells = frame.with_columns(*(_encode_column(frame[name]) for name in frame.columns if _needs_text(frame.schema[name])))
    guarded = cells.with_columns(
        pl.when(pl.selectors.string().str.contains(FORMULA_START))
        .then("'" + pl.selectors.string())
        .otherwise(pl.selectors.string())
        .name.keep()
    )
    header = {name: f"'{name}" for name in guarded.columns if re.match(FORMULA_START, name)}
    return guarded.rename(header).write_csv(datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ").encode()


def _needs_text(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind in (pl.Binary, pl.Categorical, pl.Enum, pl.Null)


def _encode_column(column: pl.Series) -> pl.Series:
    texts = (
        None if value is None else value if isinstance(value, str) else _JSON.encode(value).decode()
        for value in column.to_list()
    )
    return pl.Series(column.name, list(texts), dtype=pl.String)


def encode_arrow(frame: pl.DataFrame) -> bytes:
    """Return an Arrow file (IPC, also called Feather version 2)."""
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    return buffer.getvalue()


def encode_parquet(frame: pl.DataFrame) -> bytes:
    """Return a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


FORMATS = {
    "json": ResultFormat("application/json", "json", encode_json),
    "csv": ResultFormat("text/csv; charset=utf-8", "csv", encode_csv),
    "arrow": ResultFormat("application/vnd.apache.arrow.file", "arrow", encode_arrow),
    "parquet": ResultFormat("application/vnd.apache.parquet", "parquet", encode_parquet),
}
"""The result formats by name."""
