"""`driftline sql`: read-only statements of the user, and the named queries that come with the program."""

from __future__ import annotations

import contextlib
import csv
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from analytics.adhoc import FORMATS, fetch_query, fetch_rows, fetch_statement
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

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Matches a text that can only be a query's name: a statement has more than one word."""
DAYS = 14
"""Length of a window by default."""
NUMBERS = frozenset(
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
FLAGS = {"true": True, "false": False}
SEE_LIST = "`driftline sql --list` shows every query with its parameters."


class Form(StrEnum):
    """Formats of the answer."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


BINARY = frozenset({Form.ARROW, Form.PARQUET})


@dataclass(frozen=True, slots=True)
class _Given:
    """The parameters of a query from the command line."""

    project: str | None
    as_of: datetime
    limit: int
    values: Mapping[str, str]


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
    form: Annotated[Form, typer.Option("--format", help="Format of the output.")] = Form.TABLE,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the rows to a file.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Run a SQL statement or a named query over the database, and show the rows.

    The database is opened read-only, without access to other files or the network. --list shows the named queries.
    """
    if listed:
        _list(as_json=as_json)
        return
    if statement is None:
        raise SettingsError("sql: no statement given", hint=f"Give a statement or the name of a query. {SEE_LIST}")
    form = Form.JSONL if as_json else Form.CSV if as_csv else form
    _check(form, output)
    settings = settings_of(database)
    path = settings.database
    require_database(path)
    if NAME.fullmatch(statement):
        moment = utc_now() if as_of is None else moment_of(as_of, "--as-of", utc_now())
        query = _named(statement)
        parameters = _parameters(query, _Given(project, moment, limit, _pairs(values or ())))
        _require_known(settings, parameters.get("project"))
        with readable_file(settings) as file:
            _add_up(file)
            frame_and_rest = fetch_query(file, query, parameters, limit)
        _show(*frame_and_rest, form, output, limit)
        return
    if project is not None or as_of is not None or values:
        raise SettingsError("sql: --project, --as-of and --set need a named query", hint="Write the values into the statement.")
    if output is None and form in {Form.TABLE, Form.JSONL, Form.CSV}:
        with readable_file(settings) as file:
            rows = fetch_rows(file, statement, limit)
        _print_rows(*rows, form, limit)
        return
    with readable_file(settings) as file:
        frame_and_rest = fetch_statement(file, statement, limit)
    _show(*frame_and_rest, form, output, limit)


def _list(*, as_json: bool) -> None:
    for query in queries().values():
        if as_json:
            print_json({"name": query.name, "purpose": query.purpose, "grain": query.grain, "parameters": query.explained})
        else:
            out.print(query.name, style="bold", markup=False)
            for what, text in (("", query.purpose), ("grain: ", query.grain), ("parameters: ", query.explained)):
                out.say(f"  {what}{text}")


def _check(form: Form, output: Path | None) -> None:
    if form in BINARY and output is None and sys.stdout.isatty():
        raise SettingsError(f"--format {form} cannot be shown on a terminal", hint="Write it to a file with -o FILE.")
    if form is Form.TABLE and output is not None:
        raise SettingsError(
            "-o: a file needs a format other than table", hint=f"Choose --format {', '.join(FORMATS)} or jsonl."
        )


def _named(name: str) -> Query:
    query = queries().get(name)
    if query is None:
        near = difflib.get_close_matches(name, queries(), n=3)
        raise QueryError(f"there is no query {name}", hint=(f"Did you mean {' or '.join(near)}? " if near else "") + SEE_LIST)
    return query


def _pairs(assignments: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: no value", hint="Write NAME=VALUE, such as --set days=7.")
        pairs[name] = value
    return pairs


def _parameters(query: Query, typed: _Given) -> dict[str, Any]:
    """Return a value for each parameter; QueryError if one is missing, unknown, or not a number where one is needed."""
    values: dict[str, Any] = {name: _value(name, value) for name, value in typed.values.items()}
    if typed.project is not None:
        values["project"] = typed.project
    unknown = sorted(set(values) - set(query.parameters))
    takes = f"It takes {query.explained}."
    if unknown:
        raise QueryError(f"query {query.name} has no parameter {', '.join(unknown)}", hint=takes)
    defaults = {"as_of": typed.as_of, "days": DAYS, "limit": typed.limit, "anomalies": False}
    defaults |= dict.fromkeys(query.optional)
    missing = [name for name in query.parameters if name not in defaults | values]
    if missing:
        raise QueryError(
            f"query {query.name} needs {', '.join(missing)}", hint=f"{takes} Give it with --project or --set NAME=VALUE."
        )
    return {name: values[name] if name in values else defaults[name] for name in query.parameters}


def _value(name: str, text: str) -> Any:
    if text == "null":
        return None
    try:
        if name in NUMBERS:
            return float(text) if name == "expected" else int(text)
        return msgspec.json.decode(text) if text.startswith("[") else FLAGS.get(text, text)
    except ValueError as error:
        kind = "a number" if name in NUMBERS else "a list in JSON"
        raise QueryError(f"--set {name}={text}: must be {kind}", hint=SEE_LIST) from error


def _require_known(settings: Settings, project: str | None) -> None:
    """Raise an InputError for an unknown project. If another process has the database, leave that error to the query."""
    if project is None:
        return
    with contextlib.suppress(StoreError), open_workspace(settings) as workspace:
        require_known(workspace, project)


def _add_up(path: Path) -> None:
    """Recompute the sums of days with new scores. Queries give the same answers without it, only more slowly."""
    try:
        with Store(path) as store, working("summing days"):
            refresh_daily(store)
    except StoreError as error:
        err.say(f"note: the daily sums are not up to date, so the answer may take a while: {error}", style="yellow")


def _show(frame: pl.DataFrame, more: bool, form: Form, output: Path | None, limit: int) -> None:
    if form is Form.TABLE:
        _print_rows(frame.columns, frame.rows(), more, form, limit)
        return
    if form is Form.JSONL:
        content = "".join(json_line(row) + "\n" for row in frame.iter_rows(named=True)).encode()
    else:
        content = FORMATS[form].encode(frame)
    if output is None:
        try:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            leave_quietly()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{output}: {error.strerror}", hint="Name a file in an existing, writable folder.") from error
    err.say(f"wrote {counted(frame.height, 'row')}{_cut(more, limit)} to {plain(output)}")


def _print_rows(columns: Sequence[str], rows: Sequence[tuple[Any, ...]], more: bool, form: Form, limit: int) -> None:
    if form is Form.JSONL:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)), exact=True)
    elif form is Form.CSV:
        try:
            csv.writer(sys.stdout).writerows([columns, *([_cell(value) for value in row] for row in rows)])
        except BrokenPipeError:
            leave_quietly()
    else:
        out.print(table([plain(column) for column in columns], ([_shown(value) for value in row] for row in rows)))
        out.print(counted(len(rows), "row") + _cut(more, limit), style="dim")


def _cut(more: bool, limit: int) -> str:
    return f", cut at --limit {limit}" if more else ""


def _shown(value: object) -> str:
    return MISSING if value is None else plain(value)


def _cell(value: object) -> object:
    """Return the value for CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
