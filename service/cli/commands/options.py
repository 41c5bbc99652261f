"""Options shared by several commands, the settings built from them, and what lists print."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import typer
from rich.console import RenderableType

from service.cli.completion import completed, project_names
from service.cli.terminal import err, out, print_text
from service.setup.settings import Settings, load_settings
from service.setup.workspace import Clock, utc_now
from service.text.formats import rounded
from service.text.window import age_start, moment_of

Row = Mapping[str, Any]
Found = TypeVar("Found")
Database = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="The DuckDB file [DRIFTLINE_DATABASE, driftline.duckdb].")
]
PolicyFile = Annotated[Path | None, typer.Option("--policy", metavar="FILE", help="The policy file [DRIFTLINE_POLICY].")]
Project = Annotated[
    str | None,
    typer.Option("--project", metavar="NAME", help="Only this project.", autocompletion=project_names),
]
OfProject = Annotated[str, typer.Option("--project", metavar="NAME", help="The project.", autocompletion=project_names)]
IntoProject = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="NAME",
        help="Project under which to store records [DRIFTLINE_PROJECT, default].",
        autocompletion=project_names,
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only from this time on: an age (24h, 7d), a date, or a time (UTC)."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Only before this time: an age (24h, 7d), a date, or a time (UTC)."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000_000, help="Maximum number of entries.")]
SHOWN = 50
"""Rows that a list shows without `--limit`."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts: one document, or one per line.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Use this time as the present. Sessions that are idle for longer than the session gap count as ended.",
    ),
]


class Output(StrEnum):
    """Formats of the output."""

    TABLE = "table"
    JSON = "json"


OutputFormat = Annotated[Output, typer.Option("--output", hidden=True, help="The name of --json in earlier versions.")]
Kafka = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Addresses of the Kafka cluster [DRIFTLINE_KAFKA].")
]
ChosenJudge = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="JUDGE",
        help="live, none, or auto, which is live if there is an API key [DRIFTLINE_JUDGE, auto].",
        autocompletion=completed(("auto", "live", "none")),
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation of costs and of irreversible actions.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the actions and their cost, and do nothing.")]


def settings_of(database: Path | None = None, policy: Path | None = None, **given: Any) -> Settings:
    """Return the settings, overridden by a command's options."""
    return load_settings(database=database, policy=policy, **given)


def for_database(command: str, database: Path) -> str:
    """Return a command to paste, with `--db` if it would use another database otherwise."""
    return command if database == load_settings().database else f"{command} --db {shlex.quote(str(database))}"


def clock_of(as_of: str | None) -> Clock:
    """Return the clock of a command: the real one, or one that shows the given time."""
    if as_of is None:
        return utc_now
    moment = moment_of(as_of, "--as-of", utc_now())
    return lambda: moment


def wants_json(output: Output, *, as_json: bool) -> bool:
    """Tell whether to print JSON, by `--json` or by `--output json` as in earlier versions."""
    return as_json or output is Output.JSON


def since_of(since: str | None, now: datetime | None = None) -> datetime | None:
    """Return the time of `--since`: an age counts back from `now`, by default the present, in the whole hours or UTC days of the pages.

    SettingsError if it is not a time.
    """
    return None if since is None else moment_of(since, "--since", now or utc_now(), age_start)


def until_of(until: str | None, now: datetime | None = None) -> datetime | None:
    """Return the time of `--until`, as `since_of` does."""
    return None if until is None else moment_of(until, "--until", now or utc_now(), age_start)


def newest(rows: Sequence[Found], since: datetime | None, at: Callable[[Found], datetime | None]) -> list[Found]:
    """Return the rows from `since` on; rows are sorted newest first, and `at` returns a row's time.

    If all rows are older, print the time of the newest and how to see the last ones to the error output.
    """
    if since is None:
        return list(rows)
    times = [at(row) for row in rows]
    shown = [row for row, moment in zip(rows, times, strict=True) if moment is not None and moment >= since]
    if not shown:
        offer_older(since, next((moment.date() for moment in times if moment is not None), None))
    return shown


def offer_older(since: datetime, newest: date | None) -> None:
    """After an empty period, print to the error output how to see the last period of that length with data, if there is any."""
    if newest is None:
        return
    length = utc_now().date() - since.date()
    days = f"{length.days + 1} days" if length else "day"
    err.say(f"The newest is of {newest}. --since {newest - length} shows the last {days} with data.")


def show_rows(
    rows: Sequence[Found],
    as_table: Callable[[Sequence[Found]], RenderableType],
    *,
    as_json: bool,
    none: str,
    limit: int | None = None,
    document: Callable[[Found], Any] = lambda row: row,
) -> None:
    """Print rows as JSON lines or as a table; without rows, print a remark to the error output.

    `document` converts a row for JSON. With a `limit`, rows may contain one more than that: it is left out, and the error output says how
    to see more.
    """
    shown = rows if limit is None else rows[:limit]
    if as_json:
        for row in shown:
            print_json(document(row))
    elif shown:
        out.print(as_table(shown))
    else:
        err.say(none)
    if len(shown) < len(rows):
        err.say(f"note: there are more than {limit}; --limit N shows N", style="yellow")


def print_json(value: Any, *, exact: bool = False) -> None:
    """Print the value as JSON on one line. Numbers are rounded unless they are to be exact."""
    print_text(json_line(value if exact else rounded(value)) + "\n")


def json_line(value: Any) -> str:
    """Return the value as JSON on one line; times in ISO 8601, UTC."""
    return msgspec.json.encode(value, enc_hook=str).decode()


Command = TypeVar("Command", bound=Callable[..., Any])


def with_option_group(command: Command) -> Command:
    """Turn the last parameter of a command, a dataclass, into one option per field.

    Typer reads a command's signature, so each field becomes a parameter, in order, with its annotation and default.
    """
    hints = get_type_hints(command, include_extras=True)
    *own, last = inspect.signature(command).parameters.values()
    group: Any = hints[last.name]
    if not (isinstance(group, type) and is_dataclass(group)):
        raise TypeError(f"{command.__name__}: the last parameter must be a dataclass of options")
    types = get_type_hints(group, include_extras=True)
    names = [field.name for field in fields(group)]

    @functools.wraps(command)
    def called(**arguments: Any) -> Any:
        return command(**{last.name: group(**{name: arguments.pop(name) for name in names})}, **arguments)

    taken = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=types[field.name],
        )
        for field in fields(group)
    ]
    mine = [parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    called.__signature__ = inspect.Signature([*mine, *taken])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*mine, *taken)}
    return called  # type: ignore[return-value]
