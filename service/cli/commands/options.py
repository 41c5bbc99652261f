"""Options that several commands share, defined once, and the settings they make."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType

from audit.times import parse_timestamp
from schemas.errors import SettingsError
from service.cli.terminal import err, leave_quietly, out
from service.documents.rounding import rounded
from service.settings import Settings, load_settings
from service.workspace import Clock, utc_now

Row = Mapping[str, Any]
Database = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="The DuckDB file [DRIFTLINE_DATABASE, driftline.duckdb].")
]
PolicyFile = Annotated[Path | None, typer.Option("--policy", metavar="FILE", help="The policy file [DRIFTLINE_POLICY].")]
Project = Annotated[str | None, typer.Option("--project", metavar="NAME", help="Only this project.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts: one document, or one per line.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Take this time as the present; sessions idle for longer than the session gap have ended.",
    ),
]
GIVE_A_TIME = "Give an ISO time such as 2026-11-01T12:00:00Z."


def settings_of(database: Path | None = None, policy: Path | None = None, **given: Any) -> Settings:
    """Return the settings with a command's options on top."""
    return load_settings(database=database, policy=policy, **given)


def for_database(command: str, database: Path) -> str:
    """Return a command to paste, for a database; `--db` names it if the command would ask another one without it."""
    return command if database == load_settings().database else f"{command} --db {shlex.quote(str(database))}"


def clock_of(as_of: str | None) -> Clock:
    """Return the clock of a command: the present, or the given time."""
    if as_of is None:
        return utc_now
    moment = moment_of(as_of, "--as-of")
    return lambda: moment


def moment_of(given: str, option: str) -> datetime:
    """Return the time given with an option; SettingsError that names the option if it is not a time."""
    try:
        moment = parse_timestamp(given)
    except ValueError as error:
        raise SettingsError(f"{option}: {str(error).removeprefix('timestamp: ')}", hint=GIVE_A_TIME) from error
    if moment is None:
        raise SettingsError(f"{option}: no time given", hint=GIVE_A_TIME)
    return moment


def show_rows(rows: Sequence[Row], as_table: Callable[[Sequence[Row]], RenderableType], *, as_json: bool, none: str) -> None:
    """Print rows as JSON lines or as a table; if there are none, say so on the error output."""
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        out.print(as_table(rows))
    else:
        err.print(none)


def print_json(value: Any, *, exact: bool = False) -> None:
    """Print the value as JSON on one line. Numbers are rounded to what they mean, unless they are to be exact."""
    print_text(json_line(value if exact else rounded(value)) + "\n")


def print_text(text: str) -> None:
    """Print the text unchanged; end quietly if the reader of a pipe is gone."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        leave_quietly()


def json_line(value: Any) -> str:
    """Return the value as JSON on one line; times in ISO 8601, UTC."""
    return msgspec.json.encode(value, enc_hook=str).decode()
