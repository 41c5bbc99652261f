"""`driftline sql`: read-only statements of the user, and the named queries that come with the program."""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from analytics.adhoc import FORMATS, fetch_query, fetch_rows, fetch_statement
from analytics.lake import Lake, require_lake
from analytics.lake_sql import LakeQueryLimits, fetch_from_lake
from analytics.queries import Query, queries
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from schemas.errors import QueryError, SettingsError, StoreError
from schemas.lazy import pl
from service.cli.commands.options import AsJson, Database, Limit, Project, json_line, print_json, settings_of
from service.cli.progress import working
from service.cli.terminal import err, leave_quietly, out, table
from service.read.known_projects import require_known
from service.setup.settings import Settings
from service.setup.workspace import open_workspace, readable_file, require_database, utc_now
from service.text.formats import MISSING, counted, plain
from service.text.window import moment_of

QUERY_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Matches the name of a query. A statement has more than one word."""
DEFAULT_DAYS = 14
"""The default of a query's parameter `days`."""
NUMERIC_PARAMETERS = frozenset(
    {
        "after_place",
        "after_turn",
        "before",
        "count",
        "days",
        "expected",
        "gap_seconds",
        "history_seconds",
        "limit",
        "most_agents",
        "newest",
    }
)
BOOLEANS = {"true": True, "false": False}
LIST_HINT = "`driftline sql --list` shows every query with its parameters."


class OutputFormat(StrEnum):
    """Formats of the rows."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


BINARY_FORMATS = frozenset({OutputFormat.ARROW, OutputFormat.PARQUET})
ROW_FORMATS = frozenset({OutputFormat.TABLE, OutputFormat.JSONL})
"""Formats that are printed row by row, with the values as the database returns them."""


@dataclass(frozen=True, slots=True)
class _QueryOptions:
    """The options of the command line that set the parameters of a named query."""

    project: str | None
    as_of: str | None
    values: Sequence[str]
    limit: int


@dataclass(frozen=True, slots=True)
class _Result:
    """The rows of a statement or query."""

    frame: pl.DataFrame
    has_more: bool
    """Whether the limit cut rows off."""


def sql(
    statement: Annotated[
        str | None, typer.Argument(metavar="'SELECT …' | NAME", help="A read-only statement, or the name of a query.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the named queries and their parameters.")] = False,
    project: Project = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Value of a query's parameter as_of; the present by default.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value of another parameter of a query; null for no value. May be repeated."
        ),
    ] = None,
    limit: Limit = 1000,
    form: Annotated[OutputFormat, typer.Option("--format", help="Format of the output.")] = OutputFormat.TABLE,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the rows to a file.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="LAKE", help="Query a lake of Delta tables instead of the database.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0.1, max=3600, help="With --lake: time limit of the statement.")
    ] = 10.0,
    memory: Annotated[
        int,
        typer.Option("--memory", metavar="MIB", min=64, max=1_000_000, help="With --lake: memory of the statement, in MiB."),
    ] = 1024,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Run a SQL statement or a named query over the database, and show the rows.

    The database is opened read-only, without access to other files or the network. --list shows the named queries. With --lake, the
    statement runs over the tables that `driftline lake sink` writes, under their names in the database; any number of processes may do that.
    """
    if listed:
        _list_queries(as_json=as_json)
        return
    if statement is None:
        raise SettingsError("sql: no statement given", hint=f"Give a statement or the name of a query. {LIST_HINT}")
    if as_json:
        form = OutputFormat.JSONL
    elif as_csv:
        form = OutputFormat.CSV
    _check_format(form, output)
    if lake is not None:
        require_lake()
        if QUERY_NAME.fullmatch(statement):
            raise SettingsError("sql: --lake takes a statement, not the name of a query", hint="Named queries need a database.")
        limits = LakeQueryLimits(seconds, memory * 1024 * 1024)
        fetched = fetch_from_lake(Lake(lake), statement, limit, limits)
        _write_result(_Result(fetched.frame, fetched.has_more), form, output, limit)
        return
    settings = settings_of(database)
    require_database(settings.database)
    options = _QueryOptions(project, as_of, values or (), limit)
    if QUERY_NAME.fullmatch(statement):
        _write_result(_run_named_query(settings, statement, options), form, output, limit)
        return
    if options.project is not None or options.as_of is not None or options.values:
        raise SettingsError("sql: --project, --as-of and --set need a named query", hint="Write the values into the statement.")
    if output is None and form in ROW_FORMATS:
        with readable_file(settings) as file:
            columns, rows, has_more = fetch_rows(file, statement, limit)
        _print_rows(columns, rows, form, _describe_cut(limit, has_more=has_more))
        return
    with readable_file(settings) as file:
        result = _Result(*fetch_statement(file, statement, limit))
    _write_result(result, form, output, limit)


def _list_queries(*, as_json: bool) -> None:
    for query in queries().values():
        if as_json:
            print_json({"name": query.name, "purpose": query.purpose, "grain": query.grain, "parameters": query.explained})
        else:
            out.print(query.name, style="bold", markup=False)
            out.say(f"  {query.purpose}")
            out.say(f"  grain: {query.grain}")
            out.say(f"  parameters: {query.explained}")


def _check_format(form: OutputFormat, output: Path | None) -> None:
    """Raise a SettingsError if the output cannot take the format."""
    if form in BINARY_FORMATS and output is None and sys.stdout.isatty():
        raise SettingsError(f"--format {form} cannot be shown on a terminal", hint="Write it to a file with -o FILE.")
    if form is OutputFormat.TABLE and output is not None:
        raise SettingsError(
            "-o: a file needs a format other than table", hint=f"Choose --format {', '.join(FORMATS)} or jsonl."
        )


def _run_named_query(settings: Settings, name: str, options: _QueryOptions) -> _Result:
    """Return the rows of a named query."""
    query = _find_query(name)
    parameters = _bind_parameters(query, options)
    _require_known(settings, parameters.get("project"))
    with readable_file(settings) as file:
        _refresh_daily_sums(file)
        return _Result(*fetch_query(file, query, parameters, options.limit))


def _find_query(name: str) -> Query:
    """Return the query; QueryError with similar names if there is none."""
    query = queries().get(name)
    if query is None:
        similar = difflib.get_close_matches(name, queries(), n=3)
        suggestion = f"Did you mean {' or '.join(similar)}? " if similar else ""
        raise QueryError(f"there is no query {name}", hint=suggestion + LIST_HINT)
    return query


def _bind_parameters(query: Query, options: _QueryOptions) -> dict[str, Any]:
    """Return a value for each parameter; QueryError if one is missing, unknown, or not a number where one is needed."""
    values = {name: _parse_value(name, text) for name, text in _parse_assignments(options.values).items()}
    if options.project is not None:
        values["project"] = options.project
    unknown = sorted(set(values) - set(query.parameters))
    parameters_hint = f"It takes {query.explained}."
    if unknown:
        raise QueryError(f"query {query.name} has no parameter {', '.join(unknown)}", hint=parameters_hint)
    as_of = utc_now() if options.as_of is None else moment_of(options.as_of, "--as-of", utc_now())
    bound = {"as_of": as_of, "days": DEFAULT_DAYS, "limit": options.limit, "anomalies": False}
    bound |= dict.fromkeys(query.optional)
    bound |= values
    missing = [name for name in query.parameters if name not in bound]
    if missing:
        raise QueryError(
            f"query {query.name} needs {', '.join(missing)}",
            hint=f"{parameters_hint} Give it with --project or --set NAME=VALUE.",
        )
    return {name: bound[name] for name in query.parameters}


def _parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    texts = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: no value", hint="Write NAME=VALUE, such as --set days=7.")
        texts[name] = text
    return texts


def _parse_value(name: str, text: str) -> Any:
    if text == "null":
        return None
    try:
        if name == "expected":
            return float(text)
        if name in NUMERIC_PARAMETERS:
            return int(text)
        return msgspec.json.decode(text) if text.startswith("[") else BOOLEANS.get(text, text)
    except ValueError as error:
        kind = "a number" if name in NUMERIC_PARAMETERS else "a list in JSON"
        raise QueryError(f"--set {name}={text}: must be {kind}", hint=LIST_HINT) from error


def _require_known(settings: Settings, project: str | None) -> None:
    """Raise an InputError for an unknown project. If another process has the database, leave that error to the query."""
    if project is None:
        return
    with contextlib.suppress(StoreError), open_workspace(settings) as workspace:
        require_known(workspace, project)


def _refresh_daily_sums(path: Path) -> None:
    """Recompute the sums of days with new scores. Queries give the same answers without it, only more slowly."""
    try:
        with Store(path) as store, working("summing days"):
            refresh_daily(store)
    except StoreError as error:
        err.say(f"note: the daily sums are not up to date, so the answer may take a while: {error}", style="yellow")


def _write_result(result: _Result, form: OutputFormat, output: Path | None, limit: int) -> None:
    """Print the rows, or write them to the file."""
    cut = _describe_cut(limit, has_more=result.has_more)
    if form is OutputFormat.TABLE:
        _print_rows(result.frame.columns, result.frame.rows(), form, cut)
        return
    content = _encode_rows(result.frame, form)
    if output is None:
        _write_to_terminal(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{output}: {error.strerror}", hint="Name a file in an existing, writable folder.") from error
    err.say(f"wrote {counted(result.frame.height, 'row')}{cut} to {plain(output)}")


def _encode_rows(frame: pl.DataFrame, form: OutputFormat) -> bytes:
    if form is OutputFormat.JSONL:
        return "".join(json_line(row) + "\n" for row in frame.iter_rows(named=True)).encode()
    return FORMATS[form].encode(frame)


def _write_to_terminal(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        leave_quietly()


def _print_rows(columns: Sequence[str], rows: Sequence[tuple[Any, ...]], form: OutputFormat, cut: str) -> None:
    """Print rows as a table, or as lines of JSON."""
    if form is OutputFormat.JSONL:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)), exact=True)
        return
    out.print(table([plain(column) for column in columns], ([_format_cell(value) for value in row] for row in rows)))
    out.print(counted(len(rows), "row") + cut, style="dim")


def _describe_cut(limit: int, *, has_more: bool) -> str:
    return f", cut at --limit {limit}" if has_more else ""


def _format_cell(value: object) -> str:
    return MISSING if value is None else plain(value)
