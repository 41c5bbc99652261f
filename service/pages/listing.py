"""Lists, each a table of columns and filters: reads the address, runs the query, links the next page, and streams all rows as a file."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup, escape
from starlette.datastructures import QueryParams

from analytics.adhoc import FORMULA
from analytics.queries import queries, query_rows
from analytics.sums.daily import query_days
from audit.prompt_quoting import hidden_parts
from audit.times import iso_time
from schemas.lazy import duckdb
from service.text.answers import MAX_CURSOR, NO_CURSOR
from service.web.context import ApiContext
from service.web.errors import ApiError

Row = dict[str, Any]
Bounds = tuple[datetime | None, datetime | None]
"""The first moment of the time that a list shows, and the first one after it; None for no bound."""
SHOWN = 50
"""Rows per page."""
MAX_FILTER = 512
"""Characters of a filter's value."""
_AHEAD, _FARTHER = 4, 64
"""The prefix to read, as a multiple of the page, and the factor by which it is widened."""
BY_TIME = "at"
"""The name of the order by time, which every list has."""
_KEPT = 40
"""Maximum number of parameters that links keep from an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading, its cell, its sort key and its name in exports."""

    key: str
    """The column of the query that is exported."""
    title: str
    cell: str = ""
    """The macro in `list_cells.html` that renders the cell; empty if the page renders it itself."""
    sort: str | None = None
    """The column's name in `$sort`; None if it is not sortable."""
    down: bool = True
    """Whether the first click sorts in descending order."""
    is_number: bool = False
    is_shown: bool = True
    """Whether pages show the column; files have every column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter: a parameter of the address and of the query."""

    name: str
    label: str
    choices: Mapping[str, str] | None = None
    """Values and their words; None: any text."""
    read: Callable[[str], Any] = str
    """Converts the text to the query's value; raises ValueError with a description of the problem."""
    hint: str = ""
    """A hint about valid values."""
    many: str = ""
    """The query's parameter for all values of a filter that can be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list of a project, or the list of projects."""

    name: str
    """The name of exported files."""
    query: str
    reach: str | None = None
    """For a list too long to read whole: the query that returns the end of a prefix of the sort order, which the list's query then takes."""
    columns: Sequence[Column]
    filters: Sequence[Filter]
    sort: str
    """The default order, descending."""
    constant: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the query that the address does not change."""
    has_comparison: bool = False
    """Whether its page compares figures with the preceding period."""
    has_all: bool = False
    """Whether it can show all time."""
    prepare: Callable[[Mapping[str, str]], Mapping[str, Any]] = lambda _: {}
    """Derives further parameters of the query from the texts in the address."""

    @property
    def shown(self) -> list[Column]:
        """The columns of a page."""
        return [column for column in self.columns if column.is_shown]

    @property
    def sorts(self) -> dict[str, Column]:
        """The sortable columns by their names in the address."""
        return {column.sort: column for column in self.columns if column.sort is not None}


class Last(msgspec.Struct, frozen=True, array_like=True):
    """The place of a row in one order."""

    sort: str
    down: bool
    number: float | None
    text: str | None
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """A request for a list, parsed from an address."""

    of: ListOf
    params: Sequence[tuple[str, str]]
    """The parameters of the address, which links keep unless they change them."""
    path: str
    """The path of the address."""
    sort: str
    down: bool
    values: Mapping[str, Any]
    """Parameters of the query."""
    texts: Mapping[str, str]
    """The filters set in the address, as texts."""
    last: Last | None

    def address(self, **changed: str | None) -> str:
        """Return the same address with changed parameters, None to drop one, starting at the first page."""
        return self.path + self.query(**changed)

    def query(self, **changed: str | None) -> str:
        """Return the query string with changed parameters."""
        changes = {"cursor": None, **changed}
        kept = [(name, value) for name, value in self.params if name not in changes]
        changed_params = [*kept, *((name, value) for name, value in changes.items() if value is not None)]
        return f"?{urlencode(changed_params, quote_via=quote)}" if changed_params else ""

    def field(self, name: str) -> Markup:
        """Return the text of a filter for a form field, with invisible and direction characters as references."""
        parts = hidden_parts(self.texts.get(name, ""))
        return Markup("").join(escape(seen) + Markup(f"&#{ord(hidden)};" if hidden else "") for seen, hidden in parts)  # noqa: S704

    def sorted_by(self, column: Column) -> str:
        """Return the address sorted by a column, reversed if it is already sorted by it."""
        down = (not self.down) if column.sort == self.sort else column.down
        return self.address(sort=column.sort, down="true" if down else "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of a list."""

    asked: ListRequest
    rows: Sequence[Row]
    following: str | None
    """The address of the next page; None on the last one."""
    first: str | None
    """The address of the first page; None on the first page."""
    previous: str | None = None
    """The address of the previous page, if it is known and not the first one."""

    @property
    def bare(self) -> str:
        """The address without any filter."""
        return self.asked.address(**dict.fromkeys(one.name for one in self.asked.of.filters))


def asked_of(of: ListOf, params: QueryParams, path: str = "") -> ListRequest:
    """Parse the request for a list from an address; ApiError (400) names the invalid parameter."""
    params_given = [(name, value) for name, value in params.multi_items() if value][:_KEPT]
    values_by_name = dict(params_given)
    sort = values_by_name.get("sort", of.sort)
    if sort not in of.sorts:
        raise ApiError(400, "invalid", f"sort: must be one of {', '.join(of.sorts)}")
    down = _read_flag("down", values_by_name["down"]) if "down" in values_by_name else of.sorts[sort].down
    given_texts = {one.name: [text for name, text in params_given if name == one.name] for one in of.filters}
    texts = {name: ", ".join(found) for name, found in given_texts.items() if found}
    values = {one.many or one.name: _read_filter(one, given_texts[one.name]) for one in of.filters}
    return ListRequest(
        of=of,
        params=params_given,
        path=path,
        sort=sort,
        down=down,
        values={**values, **of.prepare(texts), **of.constant},
        texts=texts,
        last=_decode_last(values_by_name.get("cursor"), sort, down=down),
    )


def read_list(
    cursor: duckdb.DuckDBPyConnection, project: str, request: ListRequest, bounds: Bounds, *, limit: int, last: Last | None
) -> list[Row]:
    """Return rows of a list within a period, after a place."""
    since, until = bounds
    last_params = {f"last_{name}": getattr(last, name) if last else None for name in ("number", "text", "id")}
    query_params = {
        "project": project,
        **request.values,
        "since": since,
        "until": until,
        "sort": request.sort,
        "down": request.down,
        **last_params,
        "limit": limit,
    }
    return (
        query_days(cursor, request.of.query, query_params)
        if request.of.reach is None
        else _read_near(cursor, request.of, request.of.reach, query_params)
    )


def _read_near(cursor: duckdb.DuckDBPyConnection, of: ListOf, reach: str, query_params: Mapping[str, Any]) -> list[Row]:
    """Return the first rows of a long list: read a bounded prefix of the sort order, and widen it until the page is full."""
    skip = _AHEAD * query_params["limit"]
    while True:
        reach_params = {
            name: value for name, value in {**query_params, "skip": skip}.items() if name in queries()[reach].parameters
        }
        reached = query_rows(cursor, reach, reach_params)
        number, text = (reached[0]["number"], reached[0]["text"]) if reached else (None, None)
        rows = query_rows(cursor, of.query, {**query_params, "reach_number": number, "reach_text": text, "skip": skip})
        if len(rows) >= query_params["limit"] or not reached:
            return rows
        skip *= _FARTHER


def page_of_list(
    cursor: duckdb.DuckDBPyConnection, project: str, request: ListRequest, bounds: Bounds, *, most: int | None = None
) -> Listing:
    """Return the requested page, with at most `most` rows (None: the default)."""
    limit = most or SHOWN
    rows = read_list(cursor, project, request, bounds, limit=limit + 1, last=request.last)
    shown, more = rows[:limit], len(rows) > limit
    following = request.address(cursor=encoded(place_of(shown[-1], request))) if more else None
    return Listing(asked=request, rows=shown, following=following, first=request.address() if request.last else None)


def place_of(row: Row, request: ListRequest) -> Last:
    """Return the place of a row in the requested order."""
    return Last(request.sort, request.down, row["sort_number"], row["sort_text"], row["sort_id"])


def encoded(last: Last) -> str:
    """Encode a place as a cursor, a text that is safe in an address."""
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).rstrip(b"=").decode()


def _decode_last(cursor: str | None, sort: str, *, down: bool) -> Last | None:
    if cursor is None:
        return None
    try:
        body = base64.b64decode(cursor[: 4 * MAX_CURSOR] + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = msgspec.json.decode(body, type=Last)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise ApiError(400, "invalid", f"cursor: {NO_CURSOR}") from None
    if (last.sort, last.down) != (sort, down):
        raise ApiError(400, "invalid", "cursor: is of the list in another order; begin at its first page")
    return last


def _read_filter(of_filter: Filter, texts: Sequence[str]) -> Any:
    """Return the query's value of a filter: None without a value, a list if the filter can be repeated, otherwise the last value."""
    values = [_read_filter_value(of_filter, text) for text in texts[:_KEPT]]
    return (values if of_filter.many else values[-1]) if values else None


def _read_filter_value(of_filter: Filter, text: str) -> Any:
    if len(text) > MAX_FILTER:
        raise ApiError(400, "invalid", f"{of_filter.name}: must have at most {MAX_FILTER} characters")
    if of_filter.choices is not None and text not in of_filter.choices:
        raise ApiError(400, "invalid", f"{of_filter.name}: must be one of {', '.join(of_filter.choices)}")
    try:
        return of_filter.read(text)
    except ValueError as error:
        raise ApiError(400, "invalid", f"{of_filter.name}: {error}") from None


def _read_flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ApiError(400, "invalid", f"{name}: must be true or false")
    return text == "true"


def yes_no(text: str) -> bool:
    """Parse yes or no."""
    return text == "yes"


def decimal(text: str) -> float:
    """Parse a number. Raises ValueError for anything else."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a number")
    return number


def unnamed(text: str) -> str:
    """Parse a name; a hyphen stands for records without a name."""
    return "" if text == "-" else text


MOST_ROWS, READ_BATCH_SIZE = 50_000, 1_000
"""Maximum rows of a file, and rows per read."""
_FORMULA = re.compile(FORMULA)
_JSON = msgspec.json.Encoder()


async def pieces(
    services: ApiContext, request: ListRequest, *, project: str, bounds: Bounds, kind: str, first: Sequence[Row]
) -> AsyncIterator[bytes]:
    """Yield the file of a list: its first rows, which are already read, then the remaining ones."""
    write = WRITERS[kind]
    rows, count = list(first), 0
    yield write.head(request.of.columns)
    while rows:
        yield write.body(request.of.columns, rows, count == 0)
        count += len(rows)
        last = place_of(rows[-1], request)
        limit = min(READ_BATCH_SIZE, MOST_ROWS - count)
        if len(rows) < READ_BATCH_SIZE or limit <= 0:
            break
        rows = await services.ask(_read_after(project, request, bounds, last, limit))
    yield write.foot


def _read_after(
    project: str, request: ListRequest, bounds: Bounds, last: Any, limit: int
) -> Callable[[duckdb.DuckDBPyConnection], list[Row]]:
    return lambda cursor: read_list(cursor, project, request, bounds, limit=limit, last=last)


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
        return _write_lines([keys_of(columns)])

    @staticmethod
    def body(columns: Sequence[Column], rows: Sequence[Row], _is_first: bool) -> bytes:
        return _write_lines([[cell(row[key]) for key in keys_of(columns)] for row in rows])


class _Json:
    media_type, foot = "application/json", b"]\n"

    @staticmethod
    def head(_columns: Sequence[Column]) -> bytes:
        return b"["

    @staticmethod
    def body(columns: Sequence[Column], rows: Sequence[Row], is_first: bool) -> bytes:
        lines = (_JSON.encode({key: row[key] for key in keys_of(columns)}) for row in rows)
        return (b"\n" if is_first else b",\n") + b",\n".join(lines)


def _write_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


WRITERS: dict[str, type[_Csv | _Json]] = {"csv": _Csv, "json": _Json}
"""The kinds of files."""
