"""Options shared by several commands, the settings built from them, and the output of lists."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import typer
from rich.console import RenderableType

from service.cli.completion import completed, failure_types, project_names
from service.cli.terminal import err, out, print_text
from service.setup.settings import Settings, load_settings
from service.setup.workspace import Clock, utc_now
from service.text.formats import rounded
from service.text.window import age_start, moment_of

Row = Mapping[str, Any]
Item = TypeVar("Item")
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
"""Number of rows that a list shows without `--limit`."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts: one document, or one per line.")]
Full = Annotated[bool, typer.Option("--full", help="Print JSON with all fields, not only those of the table.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent; - for records without a name.")]
Failure = Annotated[
    str | None,
    typer.Option(
        "--failure", metavar="TYPE", help="Only runs with this primary failure; - for none.", autocompletion=failure_types
    ),
]
Tool = Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only those that called this tool.")]
ToolErrors = Annotated[
    bool, typer.Option("--tool-errors", help="Only those with a failed tool call; with --tool, a failed call to that tool.")
]
Anomalies = Annotated[
    bool, typer.Option("--anomalies", help="Only exchanges with an anomaly, or sessions with such an exchange.")
]
AgentVersion = Annotated[str | None, typer.Option("--version", metavar="NAME", help="Only this version of the agent.")]
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
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on [DRIFTLINE_HOST, 127.0.0.1].")
]
Port = Annotated[
    int | None, typer.Option("--port", metavar="PORT", help="Port to listen on; 0 chooses a free one [DRIFTLINE_PORT, 8377].")
]
HostNames = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="HOST", help="Host name under which the server accepts requests; may be repeated."),
]
Expose = Annotated[bool, typer.Option("--expose", help="Allow an address for --host that other machines can reach.")]
FromLake = Annotated[
    str | None,
    typer.Option("--lake", metavar="LAKE", help="With Kafka: the lake to read first, then the topics [DRIFTLINE_LAKE]."),
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
    """Return whether to print JSON: with `--json`, or with `--output json` of earlier versions."""
    return as_json or output is Output.JSON


def since_of(since: str | None, now: datetime | None = None) -> datetime | None:
    """Return the time of `--since`. An age counts back from `now`, by default the present, to the start of an hour or UTC day.

    Raises SettingsError if the text is not a time.
    """
    return None if since is None else moment_of(since, "--since", now or utc_now(), age_start)


def until_of(until: str | None, now: datetime | None = None) -> datetime | None:
    """Return the time of `--until`, as `since_of` does."""
    return None if until is None else moment_of(until, "--until", now or utc_now(), age_start)


@dataclass(frozen=True)
class ListOptions:
    """Options of a list: its period, its length, and the form of the result."""

    since: Since = None
    until: Until = None
    limit: Limit = SHOWN
    database: Database = None
    as_json: AsJson = False

    @functools.cached_property
    def start(self) -> datetime | None:
        """The time of `--since`. Raises SettingsError if the text is not a time."""
        return since_of(self.since)

    @functools.cached_property
    def end(self) -> datetime | None:
        """The time of `--until`. Raises SettingsError if the text is not a time."""
        return until_of(self.until)


@dataclass(frozen=True)
class ViewOptions(ListOptions):
    """Options of a list whose JSON leaves out fields, unless all are requested."""

    full: Full = False

    @property
    def is_json(self) -> bool:
        """Whether the rows are printed as JSON."""
        return self.as_json or self.full


def newest(rows: Sequence[Item], since: datetime | None, time_of: Callable[[Item], datetime | None]) -> list[Item]:
    """Return the rows since a time. The rows are sorted newest first, and `time_of` returns a row's time.

    If all rows are older, print the day of the newest row and how to see the last rows to standard error.
    """
    if since is None:
        return list(rows)
    times = [time_of(row) for row in rows]
    selected = [row for row, time in zip(rows, times, strict=True) if time is not None and time >= since]
    if not selected:
        offer_older(since, next((time.date() for time in times if time is not None), None))
    return selected


def offer_older(since: datetime, newest: date | None) -> None:
    """Print to standard error how to see the last period with data of the same length; nothing without data."""
    if newest is None:
        return
    length = utc_now().date() - since.date()
    days = f"{length.days + 1} days" if length else "day"
    err.say(f"The newest is of {newest}. --since {newest - length} shows the last {days} with data.")


def show_rows(
    rows: Sequence[Item],
    as_table: Callable[[Sequence[Item]], RenderableType],
    *,
    as_json: bool,
    none: str,
    limit: int | None = None,
    document: Callable[[Item], Any] = lambda row: row,
) -> None:
    """Print rows as JSON lines or as a table. Without rows, print the message `none` to standard error.

    `document` converts a row for JSON. With a `limit`, pass one row more than the limit if there are more: it is not printed, and a note
    on standard error says how to see more.
    """
    shown = rows if limit is None else rows[:limit]
    if as_json:
        for row in shown:
            print_json(document(row))
    elif shown:
        # A table of a list is as wide as the terminal, or in a pipe as wide as its texts.
        out.print(as_table(shown), soft_wrap=True)
    else:
        err.say(none)
    if len(shown) < len(rows):
        err.say(f"note: there are more than {limit}; --limit N shows N", style="yellow")


def print_json(value: Any, *, exact: bool = False) -> None:
    """Print the value as JSON on one line. Numbers are rounded unless they are to be exact."""
    print_text(json_line(value if exact else rounded(value)) + "\n")


def json_line(value: Any) -> str:
    """Return the value as JSON on one line, with times in ISO 8601, UTC."""
    return msgspec.json.encode(value, enc_hook=str).decode()


Command = TypeVar("Command", bound=Callable[..., Any])


def with_option_group(command: Command) -> Command:
    """Replace each parameter of a command that is a dataclass by one option per field.

    Typer reads a command's signature, so each field becomes a parameter, in order, with its annotation and default.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        annotation = hints[parameter.name]
        if isinstance(annotation, type) and is_dataclass(annotation):
            groups[parameter.name] = annotation
            parameters += _parameters_of(annotation)
        else:
            parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call_with_groups(**arguments: Any) -> Any:
        for name, group in groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        return command(**arguments)

    call_with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call_with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call_with_groups  # type: ignore[return-value]


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=types[field.name],
        )
        for field in fields(group)
    ]
