# ruff: noqa: S608 - statements are built from names of our own, quoted; values are always parameters
"""Ad-hoc SQL: one statement, on a connection that can only read the database or a snapshot; and its result as bytes.

The owner of a file may read it directly; an analyst's query over a snapshot has bounded rows, time and memory, and its values are
parameters. Only statements that read are run. DuckDB names only the outer type of a statement that explains or contains
another: `EXPLAIN ANALYZE COPY …` runs the copy and counts as an explanation, `COPY (PIVOT …) TO …` as several statements, and
`WITH x AS (DELETE … RETURNING *) SELECT …` as one that reads. So statements are classified by their own tokens as well.

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

LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
"""The settings with which the file is opened: no network, no extensions, no Python variables, no temporary files."""
LOCKING = (
    "SET TimeZone = 'UTC'",
    # DuckDB takes an interpreter without a script for interactive and draws a bar on standard output, where the answer goes.
    "SET enable_progress_bar = false",
    # Even without external access DuckDB writes files beside the database, above all its write-ahead log.
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)
"""The statements that run once the file is open: they shut off the file system and lock the settings."""
_READING_TYPES = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""Kinds of statements that read: FROM, WITH, VALUES, SHOW, DESCRIBE and SUMMARIZE count as SELECT; a PIVOT without listed columns counts as MULTI."""
ZONED = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMP", "TIMESTAMPTZ_NS": "TIMESTAMP_NS"}
"""DuckDB's types for times with a zone, which need a package that we do not install to fetch, and their equivalents in UTC."""
HINTS = {
    "read-only mode": "The database is opened for reading only.",
    "disabled by configuration": "A statement can read only the database: no files, no network, no extensions.",
    "configuration has been locked": "A statement cannot change settings.",
    "maximum execution time": "Query less: a shorter time, fewer sessions, no cross joins.",
    "Out of Memory": "Query less at once: fewer columns, a shorter time, fewer rows to sort.",
}
"""Advice on an error, by a phrase of DuckDB's message."""
READ_ONLY = "Give one that reads: SELECT, FROM, WITH, VALUES, PIVOT, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN of one of these."
LOOK_FIRST = "`driftline sql 'SHOW TABLES'` lists the tables, `driftline sql 'DESCRIBE scores'` the columns of one."

READING = frozenset({"select", "from", "values", "table", "pivot", "unpivot", "show", "describe", "desc", "summarize"})
"""The first words of statements that read."""
WRITING = frozenset({"copy", "insert", "update", "delete", "merge", "truncate"})
"""The first words of parts of a WITH that change data."""
_ANALYZE = frozenset({"analyze", "analyse"})
_OF_A_PART = frozenset({",", "as", "using"})
"""The words that follow a parenthesis within the list of a WITH; the statement itself begins with something else."""

CATALOG = "driftline"
"""The name of the snapshot in a statement."""
ATTACHED_LATER = frozenset({"enable_external_access"})
"""Settings applied after the snapshot is attached, because they would prevent attaching it."""
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_WRAPPING_LINES = 1
_NULL = "NULL"
"""DuckDB quotes this type as if it were a user's type."""


def read_only_rows(path: Path, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """The column names, up to `limit` rows, and whether there are more; times are marked as UTC.

    QueryError unless the text is exactly one statement that reads and DuckDB can answer it. StoreError if the file cannot be opened.
    """
    with open_read_only(path) as connection, refusals():
        add_temporary_views(connection)
        return _answer(connection, statement, limit)


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that can only read the database; StoreError if the file cannot be opened."""
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


def _without_blank_lines(message: str) -> str:
    return "\n".join(line for line in message.splitlines() if line.strip())


def _answer(connection: duckdb.DuckDBPyConnection, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    result = connection.execute(only_statement(connection, statement))
    names = [column[0] for column in result.description]
    types = [str(column[1]) for column in result.description]
    if any(zoned in kind for kind in types for zoned in ZONED):
        columns = ", ".join(f"#{number}::{_without_zone(kind)}" for number, kind in enumerate(types, start=1))
        result = connection.execute(f"SELECT {columns} FROM query($statement)", {"statement": statement})
    rows = result.fetchmany(limit + 1)
    if any("TIMESTAMP" in kind for kind in types):
        rows = [tuple(map(_in_utc, row)) for row in rows]
    return names, rows[:limit], len(rows) > limit


def only_statement(connection: duckdb.DuckDBPyConnection, statement: str) -> duckdb.Statement:
    """The one statement in a text; QueryError if there is none, several, or one that does not read."""
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise QueryError(f"the statement is not text: {error}", hint="Give it in UTF-8.") from error
    statements = connection.extract_statements(statement)
    if len(statements) != 1:
        raise QueryError(f"{len(statements)} statements were given", hint="Send one read-only statement.")
    kind = statements[0].type
    if kind.name not in _READING_TYPES:
        raise QueryError(f"statements of the type {kind.name} are not allowed", hint=READ_ONLY)
    if not only_reads(statement):
        raise QueryError("statements that contain a write are not allowed", hint=READ_ONLY)
    return statements[0]


def only_reads(statement: str) -> bool:
    """Tell whether a statement that DuckDB can parse, or the one that it explains, only reads."""
    tokens = _tokens(statement)
    return _main_word(_explained(tokens)) in READING and not _writes_in_parts(tokens)


def _tokens(statement: str) -> list[str]:
    """The statement's words and operators in lower case, without comments; every operator is one character."""
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


def _main_word(tokens: Sequence[str]) -> str:
    """The keyword that decides the kind of a statement, after parentheses and the list of a WITH."""
    start = 0
    while start < len(tokens) and tokens[start] == "(":
        start += 1
    if tokens[start : start + 1] != ["with"]:
        return "".join(tokens[start : start + 1])
    while start < len(tokens):
        if tokens[start] != "(":
            start += 1
            continue
        start = _end_of_parentheses(tokens, start)
        if start < len(tokens) and tokens[start] not in _OF_A_PART:
            return _main_word(tokens[start:])
    return ""


def _end_of_parentheses(tokens: Sequence[str], start: int) -> int:
    """The place after the parenthesis that closes the one at a place."""
    depth = 0
    for end in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[end], 0)
        if depth == 0:
            return end + 1
    return len(tokens)


def _explained(tokens: Sequence[str]) -> Sequence[str]:
    """The tokens of the statement that an EXPLAIN explains; the tokens of any other statement unchanged."""
    if tokens[:1] != ["explain"]:
        return tokens
    rest = tokens[1:]
    if rest[:1] and rest[0] in _ANALYZE:
        return rest[1:]
    if rest[:1] == ["("] and _main_word(rest) not in READING:  # EXPLAIN's options, not a statement in parentheses
        return rest[_end_of_parentheses(rest, 0) :]
    return rest


def _writes_in_parts(tokens: Sequence[str]) -> bool:
    opened = [word for word in tokens if word not in {"not", "materialized"}]
    return any(
        before == "as" and word == "(" and _main_word(opened[place + 1 :]) in WRITING
        for place, (before, word) in enumerate(pairwise(opened))
    )


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


class Limited(NamedTuple):
    """The rows of an answer, DuckDB's names of its columns' types, and whether there are more rows."""

    frame: pl.DataFrame
    types: list[str]
    more: bool


def open_snapshot(file: str, *, memory: int, seconds: float) -> duckdb.DuckDBPyConnection:
    """A connection that can only read a snapshot, with up to `memory` bytes and `seconds` per statement."""
    config = {name: value for name, value in LOCKED.items() if name not in ATTACHED_LATER}
    connection = duckdb.connect(":memory:", config=config | {"threads": 1, "home_directory": "/", "secret_directory": "/"})
    connection.execute(f"ATTACH {literal(file)} AS {CATALOG} (READ_ONLY)")
    connection.execute(f"USE {CATALOG}")
    bounds = (f"SET memory_limit = '{memory}B'", f"SET max_execution_time = {int(seconds * 1000)}")
    for setting in (*bounds, "SET enable_external_access = false", *LOCKING):
        connection.execute(setting)
    return connection


def limited_frame(connection: duckdb.DuckDBPyConnection, statement: str, parameters: Mapping[str, Any], limit: int) -> Limited:
    """The first `limit` rows of a statement's answer.

    `parameters` are the values of its `$names`. QueryError as `read_only_rows` says.
    """
    with refusals():
        only_statement(connection, statement)
        wrapped = f"SELECT * FROM (\n{_unterminated(statement)}\n) LIMIT {limit + 1}"
        if not _parses(connection, wrapped):  # EXPLAIN cannot be a subquery
            return _cut(connection.sql(statement, params=dict(parameters)), limit)
    try:
        with refusals():
            return _cut(connection.sql(wrapped, params=dict(parameters)), limit)
    except QueryError as error:
        placed = _placed(error, connection, wrapped, parameters)
        message = _LINE.sub(lambda line: f"LINE {int(line[1]) - _WRAPPING_LINES}:", str(placed))
        raise QueryError(message, hint=placed.hint) from error


def _unterminated(statement: str) -> str:
    """The statement without its final semicolons."""
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


def _cut(relation: duckdb.DuckDBPyRelation, limit: int) -> Limited:
    frame = frame_of(relation)
    return Limited(
        frame.head(limit), [_NULL if str(kind) == f'"{_NULL}"' else str(kind) for kind in relation.types], frame.height > limit
    )


def _placed(
    error: QueryError, connection: duckdb.DuckDBPyConnection, wrapped: str, parameters: Mapping[str, Any]
) -> QueryError:
    """The error with its position. DuckDB reports the position of an unknown name only from execute(), so run the statement again that way."""
    if isinstance(error.__cause__, (duckdb.BinderException, duckdb.CatalogException)):
        try:
            with refusals():
                connection.execute(wrapped, dict(parameters))
        except QueryError as placed:
            return placed
    return error


def frame_of_statement(path: Path, statement: str, limit: int) -> tuple[pl.DataFrame, bool]:
    """Up to `limit` rows of a statement that reads, and whether there are more. QueryError and StoreError as `read_only_rows`."""
    with open_read_only(path) as connection:
        add_temporary_views(connection)
        answer = limited_frame(connection, statement, {}, limit)
        return answer.frame, answer.more


def frame_of_query(path: Path, query: Query, values: Mapping[str, Any], limit: int) -> tuple[pl.DataFrame, bool]:
    """Up to `limit` rows of a named query with a value for each of its parameters, and whether there are more.

    QueryError if a value does not fit its parameter's type. StoreError if the file cannot be opened.
    """
    with open_read_only(path) as connection, refusals():
        frame = frame_of(connection.sql(query.text, params=dict(values)))
        return frame.head(limit), frame.height > limit


FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"  # noqa: RUF001 - some take the wide forms, too
"""The beginnings of a text that a spreadsheet would take for a formula."""
_NOT_IN_FRAMES = re.compile(r"\b(INTERVAL|UNION|BIT|VARIANT|GEOMETRY|BIGNUM|UHUGEINT|TIME WITH TIME ZONE|TIME_NS|LAMBDA)\b")
_WITHOUT_ZONE = re.compile(r"\bTIMESTAMP\b(?! WITH)")
_JSON = msgspec.json.Encoder(decimal_format="number")
Encode: TypeAlias = "Callable[[pl.DataFrame], bytes]"


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """A format: its media type, its file suffix, and the function that writes it."""

    media_type: str
    extension: str
    encode: Encode


def frame_of(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """The rows of a relation as a frame: column names made distinct, times in UTC.

    Types that frames do not support, such as intervals and unions, become text.
    """
    names = _distinct(relation.columns)
    columns = (
        f"{_cast(number, str(kind))} AS {quote(name)}"
        for number, (name, kind) in enumerate(zip(names, relation.types, strict=True), 1)
    )
    frame = pl.DataFrame(relation.project(", ".join(columns)))
    return frame.with_columns(
        pl.selectors.datetime(time_zone=None).dt.replace_time_zone("UTC"),
        pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC"),  # DuckDB says Etc/UTC, everything else UTC
    )


def _distinct(names: list[str]) -> list[str]:
    """The names, with numbers added to repeated ones: `n`, `n_1`."""
    taken: set[str] = set()
    found = []
    for name in names:
        number, tried = 0, name
        while tried in taken:
            number += 1
            tried = f"{name}_{number}"
        taken.add(tried)
        found.append(tried)
    return found


def _cast(number: int, kind: str) -> str:
    if _NOT_IN_FRAMES.search(kind):
        return f"CAST(#{number} AS VARCHAR)"
    if _WITHOUT_ZONE.search(kind) and "ENUM(" not in kind:
        return f"CAST(#{number} AS {_WITHOUT_ZONE.sub('TIMESTAMP WITH TIME ZONE', kind)})"
    return f"#{number}"


def json_of(frame: pl.DataFrame) -> bytes:
    """A JSON list with one object per row. Numbers stay numbers, NaN and infinities become null, bytes become Base64."""
    return _JSON.encode(frame.to_dicts())


def csv_of(frame: pl.DataFrame) -> bytes:
    """CSV with a header. Lists and structs become JSON; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    cells = frame.with_columns(*(_as_text(frame[name]) for name in frame.columns if _is_no_cell(frame.schema[name])))
    guarded = cells.with_columns(
        pl.when(pl.selectors.string().str.contains(FORMULA))
        .then("'" + pl.selectors.string())
        .otherwise(pl.selectors.string())
        .name.keep()
    )
    header = {name: f"'{name}" for name in guarded.columns if re.match(FORMULA, name)}
    return guarded.rename(header).write_csv(datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ").encode()


def _is_no_cell(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind in (pl.Binary, pl.Categorical, pl.Enum, pl.Null)


def _as_text(column: pl.Series) -> pl.Series:
    texts = (
        None if value is None else value if isinstance(value, str) else _JSON.encode(value).decode()
        for value in column.to_list()
    )
    return pl.Series(column.name, list(texts), dtype=pl.String)


def arrow_of(frame: pl.DataFrame) -> bytes:
    """An Arrow file (IPC, also called Feather version 2)."""
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    return buffer.getvalue()


def parquet_of(frame: pl.DataFrame) -> bytes:
    """A Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


FORMATS = {
    "json": ResultFormat("application/json", "json", json_of),
    "csv": ResultFormat("text/csv; charset=utf-8", "csv", csv_of),
    "arrow": ResultFormat("application/vnd.apache.arrow.file", "arrow", arrow_of),
    "parquet": ResultFormat("application/vnd.apache.parquet", "parquet", parquet_of),
}
"""Every format by name."""
