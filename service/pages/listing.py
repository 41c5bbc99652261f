"""Lists as tables with columns and filters: parse the address, run the query, link the pages, and stream all rows as a file."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.datastructures import QueryParams

from analytics.adhoc import FORMULA_START
from analytics.queries import queries, query_rows
from analytics.sums.daily import query_days
from audit.times import iso_time
from schemas.bounds import EARLIEST, LATEST
from schemas.lazy import duckdb
from service.read.sessions import session_questions
from service.text.answers import MAX_CURSOR, NO_CURSOR
from service.text.formats import grouped, grouped_count
from service.web.context import ApiContext
from service.web.errors import ApiError

Row = dict[str, Any]
Bounds = tuple[datetime | None, datetime | None]
"""The start of a list's period (inclusive) and its end (exclusive); None for no bound."""
ROWS_PER_PAGE = 50
MAX_FILTER_LENGTH = 512
_PREFIX_FACTOR = 4
"""Length of the first prefix of a long list, as a multiple of the page."""
_WIDENING_FACTOR = 64
"""Factor by which the prefix is widened until the page is full."""
_FIRST_BLOCKS = 2
"""Number of blocks that a search for words reads first."""
_MAX_GAP = timedelta(hours=1)
"""Longest time without exchanges between blocks that are read together."""
_SEARCH_SECONDS = 0.25
"""A search for words for a page reads no further blocks after this time. The page then links to older exchanges."""
_MAX_MATCHES = 500
"""Exchanges with the words whose sessions are listed: the newest."""
_MAX_WORDS = 16
BY_TIME = "at"
"""Name of the sort order by time, which every list has."""
_MAX_LINK_PARAMS = 40
"""Maximum number of parameters that links take over from an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a list, on pages and in files."""

    key: str
    """The column's name in the query and in files."""
    title: str
    heading: str = ""
    """The title above the column in a table, if it is shorter."""
    cell: str = ""
    """The macro in `list_cells.html` that renders the cell; empty if the page renders it itself."""
    sort: str | None = None
    """The value of `$sort` that sorts by this column; None if it is not sortable."""
    down: bool = True
    """Whether the first click sorts in descending order."""
    is_number: bool = False
    is_shown: bool = True
    """Whether pages show the column. Files have every column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter of a list: a parameter of the address and of the query."""

    name: str
    label: str
    choices: Mapping[str, str] | None = None
    """Allowed values with their labels; None allows any text."""
    parse: Callable[[str], Any] = str
    """Converts the text to the query's value. Raises ValueError with a description of the problem."""
    hint: str = ""
    """Placeholder of the form field."""
    list_param: str = ""
    """The query's parameter for a list of values, if the filter can be repeated."""
    suggestions: str = ""
    """The kind of names that the field suggests: agent, version or tool."""
    is_quick: bool = False
    """Whether it stands above the list: as a field, or as a link with its first choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDefinition:
    """A list of a project's records, or the list of projects."""

    name: str
    """Also the name of exported files."""
    query: str
    prefix_query: str | None = None
    """For a long list: the query that returns where a prefix of the sort order ends. The list's query then reads only that prefix."""
    columns: Sequence[Column]
    filters: Sequence[Filter]
    sort: str
    """The default sort order, descending."""
    fixed_params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the query that do not depend on the address."""
    noun: str
    """What a row is, in the singular."""
    notable: str = ""
    """What the notable rows have in common, for the total."""
    is_notable: Callable[[Row], bool] = lambda _: False
    total_query: str = ""
    """The query of the total of all pages: `listed` and `notable` rows. Its parameters are the filters that it knows."""
    total_of: str = ""
    """What the rows have in common that the query counts, if it does not count all."""
    has_comparison: bool = False
    """Whether its page compares figures with the preceding period."""
    has_all: bool = False
    """Whether the list can show all time."""
    derive_params: Callable[[Mapping[str, str]], Mapping[str, Any]] = lambda _: {}
    """Derives more parameters of the query from the filters in the address."""

    @property
    def shown(self) -> list[Column]:
        """The columns of a page."""
        return [column for column in self.columns if column.is_shown]

    @property
    def sorts(self) -> dict[str, Column]:
        """The sortable columns by their names in the address."""
        return {column.sort: column for column in self.columns if column.sort is not None}

    def showing(self, **is_shown: bool) -> ListDefinition:
        """Return the list with some columns shown or not, by their keys."""
        columns = [replace(column, is_shown=is_shown.get(column.key, column.is_shown)) for column in self.columns]
        return replace(self, columns=columns)


class RowPosition(msgspec.Struct, frozen=True, array_like=True):
    """The position of a row in a sort order, as encoded in a cursor."""

    sort: str
    down: bool
    number: float | None
    text: str | None
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """A request for a list, parsed from an address."""

    definition: ListDefinition
    params: Sequence[tuple[str, str]]
    """Parameters of the address. Links keep those that they do not change."""
    path: str
    """The path of the address."""
    sort: str
    down: bool
    values: Mapping[str, Any]
    """Parameters of the query."""
    texts: Mapping[str, str]
    """Texts of the filters in the address."""
    after: RowPosition | None
    """The page begins after this row; None for the first page."""

    @property
    def is_fleet(self) -> bool:
        """Whether the list is over all projects."""
        return any(column.key == "project" for column in self.definition.columns)

    @property
    def is_search(self) -> bool:
        """Whether the list is searched for words, newest first."""
        return bool(self.values.get("text"))

    @property
    def words(self) -> str:
        """The words that an exchange of each listed session has; empty for any."""
        return "" if "text" in self.values else self.texts.get("text", "")

    def address(self, **changed: str | None) -> str:
        """Return the address of the first page with changed parameters. None removes a parameter."""
        return self.path + self.query(**changed)

    def query(self, **changed: str | None) -> str:
        """Return the query string with changed parameters."""
        changes = {"cursor": None, **changed}
        kept = [(name, value) for name, value in self.params if name not in changes]
        changed_params = [*kept, *((name, value) for name, value in changes.items() if value is not None)]
        return f"?{urlencode(changed_params, quote_via=quote)}" if changed_params else ""

    def sorted_by(self, column: Column) -> str:
        """Return the address sorted by a column, in reverse if the list is already sorted by it."""
        down = (not self.down) if column.sort == self.sort else column.down
        return self.address(sort=column.sort, down="true" if down else "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of a list."""

    request: ListRequest
    rows: Sequence[Row]
    following: str | None
    """Address of the next page; None on the last page."""
    first: str | None
    """Address of the first page; None on the first page."""
    searched_to: datetime | None = None
    """The time down to which a search for words came; None if it ended."""
    total: str = ""
    """The number of rows on all pages in words; empty if it is unknown."""
    previous: str | None = None
    """Address of the previous page, if known and not the first one."""

    @property
    def quick_filters(self) -> list[tuple[str, bool, str]]:
        """The filters above the list: label, whether it is on, and the address that switches it."""
        quick = []
        for filter_ in self.request.definition.filters:
            if filter_.is_quick and filter_.choices:
                value, label = next(iter(filter_.choices.items()))
                is_on = self.request.texts.get(filter_.name) == value
                quick.append((label, is_on, self.request.address(**{filter_.name: None if is_on else value})))
        return quick

    @property
    def unfiltered(self) -> str:
        """The address without filters."""
        return self.request.address(**dict.fromkeys(filter_.name for filter_ in self.request.definition.filters))


def parse_list_request(definition: ListDefinition, params: QueryParams, path: str = "") -> ListRequest:
    """Parse the request for a list from an address. Raises ApiError 400 with the name of an invalid parameter."""
    link_params = [(name, value) for name, value in params.multi_items() if value][:_MAX_LINK_PARAMS]
    last_values = dict(link_params)
    sort = last_values.get("sort", definition.sort)
    if sort not in definition.sorts:
        raise ApiError(400, "invalid", f"sort: must be one of {', '.join(definition.sorts)}")
    down = _parse_flag("down", last_values["down"]) if "down" in last_values else definition.sorts[sort].down
    texts: dict[str, str] = {}
    values = {}
    for filter_ in definition.filters:
        filter_texts = [text for name, text in link_params if name == filter_.name]
        values[filter_.list_param or filter_.name] = _parse_filter(filter_, filter_texts)
        if filter_texts:
            texts[filter_.name] = ", ".join(filter_texts)
    if values.get("text") and not (sort == BY_TIME and down):
        raise ApiError(400, "invalid", "sort: must be at, descending, in a search for words")
    return ListRequest(
        definition=definition,
        params=link_params,
        path=path,
        sort=sort,
        down=down,
        values={**values, **definition.derive_params(texts), **definition.fixed_params},
        texts=texts,
        after=_decode_position(last_values.get("cursor"), sort, down=down),
    )


def read_list(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    request: ListRequest,
    bounds: Bounds,
    *,
    limit: int,
    after: RowPosition | None,
) -> list[Row]:
    """Return rows of a list of a project, or of all, within a period, after a position."""
    return _read_list(cursor, project, request, bounds, limit=limit, after=after, seconds=None)[0]


def _read_list(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    request: ListRequest,
    bounds: Bounds,
    *,
    limit: int,
    after: RowPosition | None,
    seconds: float | None,
) -> tuple[list[Row], datetime | None]:
    """Return the rows and, of a search for words, the time down to which it came within the seconds; None if it ended."""
    query_params = _build_params(project, request, bounds, limit=limit, after=after)
    definition = request.definition
    searched_to = None
    if request.words:
        query_params["ids"], searched_to = _find_sessions(cursor, project, request.words, bounds, seconds)
    if request.is_search:
        return _read_matches(cursor, definition.query, query_params, seconds)
    if definition.prefix_query is None:
        return query_days(cursor, definition.query, query_params), searched_to
    return _read_prefix(cursor, definition.query, definition.prefix_query, query_params), None


def _find_sessions(
    cursor: duckdb.DuckDBPyConnection, project: str | None, words: str, bounds: Bounds, seconds: float | None
) -> tuple[list[str], datetime | None]:
    """Return the sessions of the newest exchanges with these words, and the time down to which was searched; None if that is everything."""
    any_exchange: dict[str, Any] = dict.fromkeys(queries()["list_exchanges"].parameters)
    params = any_exchange | {
        "project": project,
        "since": bounds[0],
        "until": bounds[1],
        "text": words,
        "tier": "tier2",
        "sort": BY_TIME,
        "down": True,
        "limit": _MAX_MATCHES,
    }
    rows, searched_to = _read_matches(cursor, "list_exchanges", params, seconds)
    if len(rows) == _MAX_MATCHES:
        searched_to = rows[-1]["exchange_at"]
    return sorted({f"{row['connection']}/{row['session_id']}" for row in rows}), searched_to


def _build_params(
    project: str | None, request: ListRequest, bounds: Bounds, *, limit: int, after: RowPosition | None
) -> dict[str, Any]:
    since, until = bounds
    after_params = {f"last_{name}": getattr(after, name) if after else None for name in ("number", "text", "id")}
    return {
        **request.values,
        "project": project,
        "since": since,
        "until": until,
        "sort": request.sort,
        "down": request.down,
        **after_params,
        "limit": limit,
    }


def _read_prefix(
    cursor: duckdb.DuckDBPyConnection, query: str, prefix_query: str, query_params: Mapping[str, Any]
) -> list[Row]:
    """Return the first rows of a long list: read a bounded prefix of the sort order, and widen it until the page is full."""
    prefix_length = _PREFIX_FACTOR * query_params["limit"]
    while True:
        params = {**query_params, "skip": prefix_length}
        prefix_params = {name: value for name, value in params.items() if name in queries()[prefix_query].parameters}
        end = next(iter(query_rows(cursor, prefix_query, prefix_params)), None)
        bound = {"reach_number": None, "reach_text": None}
        if end is not None:
            bound = {"reach_number": end["number"], "reach_text": end["text"]}
        rows = query_rows(cursor, query, {**params, **bound})
        if len(rows) >= query_params["limit"] or end is None:
            return rows
        prefix_length *= _WIDENING_FACTOR


def _read_matches(
    cursor: duckdb.DuckDBPyConnection, query: str, params: Mapping[str, Any], seconds: float | None
) -> tuple[list[Row], datetime | None]:
    """Return the first rows with the words of a text, and the time down to which was searched; None if that is everything.

    Blocks of exchanges that may have the words are read from the latest one on, in growing numbers, until the page is full or the
    seconds have passed.
    """
    since, end = params["since"] or EARLIEST, params["until"] or LATEST
    if params["last_number"] is not None:
        end = min(end, datetime.fromtimestamp(params["last_number"] / 1e6, UTC) + timedelta(microseconds=1))
    blocks = query_rows(cursor, "search_blocks", {"text": params["text"], "since": since, "until": end})
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    limit = params["limit"]
    rows: list[Row] = []
    count, step = 0, _FIRST_BLOCKS
    while count < len(blocks) and len(rows) < limit:
        if count and time.monotonic() > deadline:
            return rows, end
        # Blocks that are far apart are read alone, because a query reads all scores of its period.
        last, low = count + step, blocks[count]["earliest"]
        while count < min(last, len(blocks)) and blocks[count]["latest"] >= low - _MAX_GAP:
            low = min(low, blocks[count]["earliest"])
            count += 1
        step *= 2
        # Later blocks have nothing after this time.
        start = max(since, blocks[count]["latest"] + timedelta(microseconds=1)) if count < len(blocks) else since
        inside = [block for block in blocks if block["latest"] >= start and block["earliest"] < end]
        if inside:
            bound = {
                "since": max(start, min(block["earliest"] for block in inside)),
                "until": min(end, max(block["latest"] for block in inside) + timedelta(microseconds=1)),
                "blocks": [block["block"] for block in inside],
                "limit": limit - len(rows),
            }
            rows += query_rows(cursor, query, {**params, **bound, "reach_number": None, "reach_text": None, "skip": None})
        end = min(end, start)
    return rows, None


def read_page(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    request: ListRequest,
    bounds: Bounds,
    *,
    page_size: int | None = None,
) -> Listing:
    """Return the requested page; it has ROWS_PER_PAGE rows by default."""
    limit = page_size or ROWS_PER_PAGE
    rows, searched_to = _read_list(
        cursor, project, request, bounds, limit=limit + 1, after=request.after, seconds=_SEARCH_SECONDS
    )
    shown = rows[:limit]
    _name_sessions(cursor, project, request, shown)
    following = None
    if len(rows) > limit:
        following = request.address(cursor=encode_position(position_of(shown[-1], request)))
        searched_to = searched_to if request.words else None
    elif searched_to is not None and request.is_search:
        # Half a microsecond before this time: the page begins with exchanges before it.
        position = RowPosition(request.sort, request.down, searched_to.timestamp() * 1e6 - 0.5, None, "")
        following = request.address(cursor=encode_position(position))
    first = request.address() if request.after else None
    return Listing(request=request, rows=shown, following=following, first=first, searched_to=searched_to)


def _name_sessions(cursor: duckdb.DuckDBPyConnection, project: str | None, request: ListRequest, rows: list[Row]) -> None:
    """Add the first question of each row's session, by which lists name it, unless the query of the list has it."""
    has_name = any(column.cell == "session_name" for column in request.definition.columns)
    if project is None or not has_name or not rows or "question" in rows[0]:
        return
    questions = session_questions(cursor, project, {(row["connection"], row["session_id"]) for row in rows})
    for row in rows:
        row["question"] = questions.get((row["connection"], row["session_id"]))


def describe_total(cursor: duckdb.DuckDBPyConnection, project: str | None, listing: Listing, bounds: Bounds) -> str:
    """Return the number of rows on all pages in words, such as `119 exchanges, 23 with an anomaly`; empty if it is unknown.

    A list of one page is counted itself. A longer one has a total if its filters are those of its query for totals.
    """
    request, definition = listing.request, listing.request.definition
    listed, notable, total_of = len(listing.rows), sum(map(definition.is_notable, listing.rows)), ""
    if listing.first or listing.following:
        parameters = queries()[definition.total_query].parameters if definition.total_query else ()
        if not parameters or not request.texts.keys() <= set(parameters):
            return ""
        since, until = bounds
        filters = {name: request.values[name] for name in parameters if name in request.values}
        params = {**filters, "project": project, "since": since or EARLIEST, "until": until or LATEST}
        for total in query_days(cursor, definition.total_query, params):
            listed, notable = total["listed"], total["notable"]
        total_of = definition.total_of and f" {definition.total_of}"
    text = grouped_count(listed, definition.noun) + total_of
    return f"{text}, {grouped(notable)} {definition.notable}" if notable and definition.notable else text


def position_of(row: Row, request: ListRequest) -> RowPosition:
    """Return the position of a row in the requested sort order."""
    return RowPosition(request.sort, request.down, row["sort_number"], row["sort_text"], row["sort_id"])


def encode_position(position: RowPosition) -> str:
    """Encode a position as a cursor that is safe in an address."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def _decode_position(cursor: str | None, sort: str, *, down: bool) -> RowPosition | None:
    if cursor is None:
        return None
    try:
        body = base64.b64decode(cursor[: 4 * MAX_CURSOR] + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(body, type=RowPosition)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise ApiError(400, "invalid", f"cursor: {NO_CURSOR}") from None
    if (position.sort, position.down) != (sort, down):
        raise ApiError(400, "invalid", "cursor: belongs to another sort order; start at the first page")
    return position


def _parse_filter(filter_: Filter, texts: Sequence[str]) -> Any:
    """Return the query's value of a filter: None without a text, a list if the filter can be repeated, otherwise the last value."""
    values = [_parse_filter_value(filter_, text) for text in texts[:_MAX_LINK_PARAMS]]
    return (values if filter_.list_param else values[-1]) if values else None


def _parse_filter_value(filter_: Filter, text: str) -> Any:
    if len(text) > MAX_FILTER_LENGTH:
        raise ApiError(400, "invalid", f"{filter_.name}: must have at most {MAX_FILTER_LENGTH} characters")
    if filter_.choices is not None and text not in filter_.choices:
        raise ApiError(400, "invalid", f"{filter_.name}: must be one of {', '.join(filter_.choices)}")
    try:
        return filter_.parse(text)
    except ValueError as error:
        raise ApiError(400, "invalid", f"{filter_.name}: {error}") from None


def _parse_flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ApiError(400, "invalid", f"{name}: must be true or false")
    return text == "true"


def parse_yes_no(text: str) -> bool:
    """Parse yes or no."""
    return text == "yes"


def parse_decimal(text: str) -> float:
    """Parse a number. Raises ValueError for anything else."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a number")
    return number


def parse_words(text: str) -> str:
    """Parse words to search for. Raises ValueError for a text without any, or with too many."""
    words = re.findall(r"[^\W_]+", text)
    if not words:
        raise ValueError("must have a letter or a digit")
    if len(words) > _MAX_WORDS:
        raise ValueError(f"must have at most {_MAX_WORDS} words")
    return text


def parse_name(text: str) -> str:
    """Parse a name. A hyphen matches records without a name."""
    return "" if text == "-" else text


MAX_EXPORT_ROWS = 50_000
"""Maximum number of rows of a file."""
READ_BATCH_SIZE = 1_000
"""Rows per query of a file."""
_FORMULA = re.compile(FORMULA_START)
_JSON = msgspec.json.Encoder()


async def stream_file(
    services: ApiContext, request: ListRequest, *, project: str | None, bounds: Bounds, kind: str, first: Sequence[Row]
) -> AsyncIterator[bytes]:
    """Yield the parts of a file. `first` are the first rows, which were already read."""
    writer = WRITERS[kind]
    columns = request.definition.columns
    rows = list(first)
    count = 0
    yield writer.head(columns)
    while rows:
        yield writer.body(columns, rows, count == 0)
        count += len(rows)
        position = position_of(rows[-1], request)
        limit = min(READ_BATCH_SIZE, MAX_EXPORT_ROWS - count)
        if len(rows) < READ_BATCH_SIZE or limit <= 0:
            break
        rows = await services.ask(_read_after(project, request, bounds, position, limit))
    yield writer.foot


def _read_after(
    project: str | None, request: ListRequest, bounds: Bounds, position: RowPosition, limit: int
) -> Callable[[duckdb.DuckDBPyConnection], list[Row]]:
    return lambda cursor: read_list(cursor, project, request, bounds, limit=limit, after=position)


def list_keys(columns: Sequence[Column]) -> list[str]:
    """Return the column names of a file."""
    return [column.key for column in columns]


def format_cell(value: Any) -> Any:
    """Format a value for CSV. Texts that a spreadsheet would run as a formula get an apostrophe."""
    if isinstance(value, datetime):
        return iso_time(value)
    text = "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return f"'{text}" if isinstance(text, str) and _FORMULA.search(text) else text


class _CsvWriter:
    media_type, foot = "text/csv; charset=utf-8", b""

    @staticmethod
    def head(columns: Sequence[Column]) -> bytes:
        return _encode_csv([list_keys(columns)])

    @staticmethod
    def body(columns: Sequence[Column], rows: Sequence[Row], _is_first: bool) -> bytes:
        return _encode_csv([[format_cell(row[key]) for key in list_keys(columns)] for row in rows])


class _JsonWriter:
    media_type, foot = "application/json", b"]\n"

    @staticmethod
    def head(_columns: Sequence[Column]) -> bytes:
        return b"["

    @staticmethod
    def body(columns: Sequence[Column], rows: Sequence[Row], is_first: bool) -> bytes:
        lines = (_JSON.encode({key: row[key] for key in list_keys(columns)}) for row in rows)
        return (b"\n" if is_first else b",\n") + b",\n".join(lines)


def _encode_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


WRITERS: dict[str, type[_CsvWriter | _JsonWriter]] = {"csv": _CsvWriter, "json": _JsonWriter}
"""Writers of files by their extension."""
