"""Lists: rows read from the database and printed once, or watched.

A command that lists is a function that returns a `ListView`; `printed` and `watched` make commands of it, with the same options.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from schemas.errors import StoreError
from service.cli.commands.options import ListOptions, ViewOptions, json_line, offer_older, settings_of, show_rows
from service.cli.terminal import Layout, ListTable, err, out, print_text
from service.read.cold_days import cold_days
from service.read.known_projects import require_known
from service.setup.settings import Settings
from service.setup.workspace import CATCH_UP, Workspace, describe_lag, open_workspace
from service.text.answers import Answer, document
from service.text.formats import MISSING, rounded

Item = TypeVar("Item", bound=Answer)
Command = TypeVar("Command", bound=Callable[..., Any])
POLL_SECONDS = 2.0
"""Seconds between two readings of a watched list."""
REST_FACTOR = 10
"""A list that takes long to read is read less often: the pause is at least this many times the reading."""


@dataclass(frozen=True, kw_only=True)
class ListView(Generic[Item]):
    """A list of answers with its filters."""

    read: Callable[[Workspace, datetime | None], Sequence[Item]]
    """Reads the rows since a time (None: any), in the order of the table: one more than the limit if there are more."""
    table: Callable[[Sequence[Item]], ListTable]
    keys: Sequence[str]
    """Names of the fields in JSON, unless all are to be printed: those of the table, and the ids."""
    identify: Callable[[Item], Hashable]
    options: ViewOptions
    none: str
    """Printed if there are no rows."""
    describe_none: Callable[[Workspace], str] = lambda _: ""
    """Explains why there are no rows."""
    project: str | None = None
    time_of: Callable[[Item], datetime] | None = None
    """Returns the time that `--since` applies to."""
    note: Callable[[Sequence[Item]], str] = lambda _: ""
    """Returns a note on the rows, for standard error."""
    is_detailed: bool = False
    """Whether rows or filters come from single exchanges, which a server over a lake keeps for its hot days only."""
    policy: Path | None = None

    def document(self, row: Item) -> dict[str, Any]:
        """Return a row as JSON has it."""
        return document(row) if self.options.full else short_document(self.keys, row)

    @property
    def settings(self) -> Settings:
        """The settings, overridden by the options of the command."""
        return settings_of(self.options.database, self.policy)


def short_document(keys: Sequence[str], row: Answer) -> dict[str, Any]:
    """Return the chosen fields of a row, as `--json` prints them without `--full`."""
    fields = document(row)
    return {key: fields[key] for key in keys}


def printed(build: Callable[..., ListView[Any]]) -> Callable[..., None]:
    """Return the command that prints a list."""

    @functools.wraps(build)
    def command(*arguments: Any, **options: Any) -> None:
        view = build(*arguments, **options)
        is_json, limit, start = view.options.is_json, view.options.limit, view.options.start
        with open_for_display(view.options.database, view.project, view.policy) as workspace:
            rows = view.read(workspace, start)
            if view.is_detailed:
                note_cold_days(workspace, view.project, start, view.options.end)
            none = ". ".join(filter(None, [view.none, "" if rows else view.describe_none(workspace)]))
            if not rows and start is not None and view.time_of is not None:
                offer_older(start, next((view.time_of(row).date() for row in view.read(workspace, None)), None))
        show_rows(rows, view.table, as_json=is_json, none=none, limit=limit, document=view.document)
        if not is_json and (note := view.note(rows[:limit])):
            err.say(note, style="yellow")

    return command


def note_cold_days(workspace: Workspace, project: str | None, start: datetime | None, end: datetime | None) -> None:
    """Print a note on standard error if details of a part of the period are in the lake only."""
    if cold := cold_days(workspace.store.cursor(), project, start, end):
        err.say(f"note: {cold.summary}", style="yellow")


def print_of_project(
    project: str,
    options: ListOptions,
    read: Callable[..., Sequence[Answer]],
    names: Sequence[str],
    *,
    whole: Collection[str],
    optional: Sequence[str],
    none: str,
) -> None:
    """Print a list of a known project, with a column for each named field. `read` gets a cursor, the project, the period and the limit."""

    def tabulate(rows: Sequence[Answer]) -> ListTable:
        cells = [[fields[name] or MISSING for name in names] for fields in map(document, rows)]
        return ListTable(names, cells, whole=whole, optional=optional)

    with open_workspace(settings_of(options.database)) as workspace, closing(workspace.store.cursor()) as cursor:
        require_known(workspace, project)
        rows = read(cursor, project, options.start, options.end, limit=options.limit + 1)
    show_rows(rows, tabulate, as_json=options.as_json, none=none, limit=options.limit, document=document)


def watched(build: Callable[..., ListView[Any]]) -> Callable[..., None]:
    """Return the command that watches a list."""

    @functools.wraps(build)
    def command(*arguments: Any, **options: Any) -> None:
        watch(build(*arguments, **options))

    return command


def watch(view: ListView[Any]) -> None:
    """Print the rows of a list, and then each new or changed row as it comes, until interrupted.

    Raises StoreError if the database cannot be opened at first. Later, an import may have it for a while.
    """
    limit = view.options.limit
    shown: dict[Hashable, str] | None = None
    layout: Layout | None = None
    for rows in _read_repeatedly(view):
        listed = rows[:limit]
        lines = {view.identify(row): json_line(rounded(view.document(row))) for row in listed}
        changed = [
            row for row in reversed(listed) if shown is None or shown.get(view.identify(row)) != lines[view.identify(row)]
        ]
        if shown and len(rows) > limit and not lines.keys() & shown.keys():
            err.say(f"note: more than {limit} rows came at once; --limit N shows N of them", style="yellow")
        if shown is None and not rows:
            err.say(f"{view.none}. Waiting for the first.")
        layout = _print_rows(view, changed, lines, layout)
        shown = lines


def _read_repeatedly(view: ListView[Item]) -> Iterator[Sequence[Item]]:
    """Yield the rows of a list again and again. The database is open during a reading only, so that other processes can open it."""
    is_first, is_busy = True, False
    while True:
        start = monotonic()
        open_database = (
            open_for_display(view.options.database, view.project, view.policy) if is_first else open_workspace(view.settings)
        )
        try:
            with open_database as workspace:
                rows = view.read(workspace, view.options.start)
        except StoreError as error:
            if is_first:
                raise
            if not is_busy:
                err.say(f"note: {error}. Waiting for it.", style="yellow")
            is_busy = True
        else:
            is_busy = False
            yield rows
        is_first = False
        sleep(max(POLL_SECONDS, REST_FACTOR * (monotonic() - start)))


def _print_rows(view: ListView[Any], rows: Sequence[Any], lines: dict[Hashable, str], layout: Layout | None) -> Layout | None:
    """Print rows below those of earlier calls, as JSON or in the columns of the first rows; return the layout of these."""
    if view.options.is_json:
        print_text("".join(f"{lines[view.identify(row)]}\n" for row in rows))
        sys.stdout.flush()
        return None
    if rows:
        table = view.table(rows)
        is_first = layout is None
        layout = layout or table.lay_out(out.width if out.is_terminal else None)
        for line in table.lines(layout, with_header=is_first):
            out.say(line)
    return layout


@contextmanager
def open_for_display(database: Path | None, project: str | None = None, policy: Path | None = None) -> Iterator[Workspace]:
    """Open the workspace of a database for reading, with a note if its stages lag. Raises InputError for an unknown project."""
    with open_workspace(settings_of(database, policy)) as workspace:
        require_known(workspace, project)
        lag = describe_lag(workspace.store)
        if lag:
            err.say(f"note: {lag}. {CATCH_UP}", style="yellow")
        yield workspace
