"""A list as a file: every row that matches the address's filters, in its order, streamed in pieces."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from analytics.sandbox.result_formats import FORMULA
from audit.times import iso_time
from schemas.lazy import duckdb
from service.pages.lists.listing import Asked, Bounds, Column, Row, place_of, read_list
from service.web.context import ApiContext

MOST_ROWS, AT_ONCE = 50_000, 1_000
"""Maximum rows of a file, and rows per read."""
_FORMULA = re.compile(FORMULA)
_JSON = msgspec.json.Encoder()


async def pieces(
    services: ApiContext, asked: Asked, *, project: str, bounds: Bounds, kind: str, first: Sequence[Row]
) -> AsyncIterator[bytes]:
    """Yield the file of a list: its first rows, which are already read, then the remaining ones."""
    write = WRITERS[kind]
    rows, count = list(first), 0
    yield write.head(asked.of.columns)
    while rows:
        yield write.body(asked.of.columns, rows, count == 0)
        count += len(rows)
        last = place_of(rows[-1], asked)
        limit = min(AT_ONCE, MOST_ROWS - count)
        if len(rows) < AT_ONCE or limit <= 0:
            break
        rows = await services.ask(_after(project, asked, bounds, last, limit))
    yield write.foot


def _after(
    project: str, asked: Asked, bounds: Bounds, last: Any, limit: int
) -> Callable[[duckdb.DuckDBPyConnection], list[Row]]:
    return lambda cursor: read_list(cursor, project, asked, bounds, limit=limit, last=last)


def keys_of(columns: Sequence[Column]) -> list[str]:
    """Return the names of the columns of a file."""
    return [column.key for column in columns]


def cell(value: Any) -> Any:
    """Format a value for CSV: lists as words, and texts so that no spreadsheet runs them as formulas."""
    if isinstance(value, datetime):
        return iso_time(value)
    text = "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return f"'{text}" if isinstance(text, str) and _FORMULA.search(text) else text


class _Csv:
    media_type, foot = "text/csv; charset=utf-8", b""

    @staticmethod
    def head(columns: Sequence[Column]) -> bytes:
        return _lines([keys_of(columns)])

    @staticmethod
    def body(columns: Sequence[Column], rows: Sequence[Row], _is_first: bool) -> bytes:
        return _lines([[cell(row[key]) for key in keys_of(columns)] for row in rows])


class _Json:
    media_type, foot = "application/json", b"]\n"

    @staticmethod
    def head(_columns: Sequence[Column]) -> bytes:
        return b"["

    @staticmethod
    def body(columns: Sequence[Column], rows: Sequence[Row], is_first: bool) -> bytes:
        told = (_JSON.encode({key: row[key] for key in keys_of(columns)}) for row in rows)
        return (b"\n" if is_first else b",\n") + b",\n".join(told)


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


WRITERS: dict[str, type[_Csv | _Json]] = {"csv": _Csv, "json": _Json}
"""The kinds of files."""
