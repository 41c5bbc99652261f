"""`driftline import`: transcripts of each supported program, and event files."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from schemas.errors import InputError
from service.cli.commands.drift.watching import check_projects
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    clock_of,
    for_database,
    print_json,
    settings_of,
)
from service.cli.import_findings import import_findings
from service.cli.next_steps import program_name
from service.cli.terminal import counted, err, out
from service.imports.importing import Importer, ImportSummary, Report, Stamp, stamp_of
from service.imports.input_files import EVENTS, checked, input_files, transcripts_of
from service.judge_setup import paid_note
from service.workspace import Workspace, open_workspace
from streams.sources.transcript_sources import SOURCES, TranscriptSource
from streams.stop_signals import handled

SEE_LETTERS = "driftline dead-letters list"
WHOLE_EVERY = timedelta(minutes=1)
log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Import transcripts of agents, or their events.")

Into = Annotated[
    str | None, typer.Option("--project", metavar="NAME", help="Project to file under [DRIFTLINE_PROJECT, default].")
]
Via = Annotated[
    str | None, typer.Option("--connection", metavar="NAME", help="Connection to file under [DRIFTLINE_CONNECTION, local].")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a server's judge is paid for the import.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Name of the agent; overrides the files.")]


def _add_command(source: TranscriptSource) -> None:
    """Add the command that imports a source."""

    @app.command(
        source.name, help=f"Import {source.label} transcripts, as in {source.folder}; importing twice changes nothing."
    )
    def import_transcripts(
        paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Transcripts, or folders of them.")],
        follow: Annotated[
            bool, typer.Option("--follow", help="Keep running and import what is added, until interrupted.")
        ] = False,
        interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between checks when following.")] = 2.0,
        project: Into = None,
        connection: Via = None,
        agent: Agent = None,
        database: Database = None,
        policy: PolicyFile = None,
        as_of: AsOf = None,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        settings = settings_of(database, policy, project=project, connection=connection)
        clock, files = clock_of(as_of), source.files_in(paths)
        if not files and not follow:
            raise InputError(f"no transcript under {', '.join(map(str, paths))}", hint=source.hint)
        found = checked(files, paths, transcripts_of(source), allow_empty=follow)
        found.report()
        with open_workspace(settings, now=clock, create=True, writes=True) as workspace:
            _confirm_paid(workspace, yes=yes)
            with file_progress(found.files) as report:
                summary = Importer(workspace, agent=agent).transcripts(source, found.files, report)
            show(summary, workspace.settings.database, as_json=as_json)
            if not as_json:
                _show_findings(workspace)
            if follow:
                _follow(workspace, source, paths, agent, interval, as_json=as_json)
        raise typer.Exit(1 if summary.faults or found.refused else 0)


for known in SOURCES.values():
    _add_command(known)


@app.command("events")
def import_events(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Event JSON lines, a session.json, or folders of them.")],
    project: Into = None,
    connection: Via = None,
    agent: Agent = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Import files of runtime events; importing twice changes nothing."""
    settings = settings_of(database, policy, project=project, connection=connection)
    clock, found = clock_of(as_of), input_files(paths, EVENTS)
    found.report()
    with open_workspace(settings, now=clock, create=True, writes=True) as workspace:
        with file_progress(found.files) as report:
            summary = Importer(workspace, agent=agent).events(found.files, report)
        show(summary, workspace.settings.database, as_json=as_json)
    raise typer.Exit(1 if summary.faults or found.refused else 0)


def _confirm_paid(workspace: Workspace, *, yes: bool) -> None:
    """Ask before the server that has the database pays its judge for the import. Without a server, no judge is asked."""
    if note := paid_note(workspace.server):
        err.say(f"note: {note}", style="yellow")
        if not yes:
            typer.confirm("Import, and let the server's judge score it?", abort=True, err=True)


@contextmanager
def file_progress(files: Sequence[Path]) -> Iterator[Report]:
    """Show a bar over the bytes read if the error output is a terminal; nothing elsewhere."""
    total = sum(stamp.size for path in files if (stamp := stamp_of(path)))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("reading", total=total)

        def report(size: int) -> None:
            progress.update(task, advance=size)

        yield report


def show(summary: ImportSummary, database: Path, *, as_json: bool) -> None:
    """Print the result of an import at once, for the reader of a follower's pipe. `database` is what it filled."""
    if as_json:
        print_json(summary.as_json())
        sys.stdout.flush()
        return
    unchanged = f" ({summary.unchanged} unchanged)" if summary.unchanged else ""
    out.say(
        f"{counted(summary.files + summary.unchanged, 'file')}{unchanged}, {counted(len(summary.sessions), 'session')}: "
        f"{counted(summary.exchanges, 'exchange')} and {counted(summary.events, 'event')} taken in, "
        f"{summary.known} known already; {counted(summary.sessions_closed, 'session')} ended",
    )
    if summary.faults:
        faults = counted(summary.faults, "record")
        out.say(
            f"{faults} {'was' if summary.faults == 1 else 'were'} refused and set aside: {for_database(SEE_LETTERS, database)}",
            style="yellow",
        )


def _show_findings(workspace: Workspace) -> None:
    """Print the findings in the project that was filled, after a check for drift."""
    for part in import_findings(workspace, check_projects(workspace, [workspace.settings.project]), program_name()):
        # A line that is cut in two cannot be copied.
        out.print(part, markup=False, soft_wrap=isinstance(part, str))


def _follow(
    workspace: Workspace, source: TranscriptSource, paths: list[Path], agent: str | None, interval: float, *, as_json: bool
) -> None:
    """Look for more until a signal asks to stop; finish first what was begun.

    Only files that changed are read, and all that are not complete once a minute, when a session may have fallen idle.
    """
    stop = threading.Event()
    with handled(lambda _: stop.set()):
        err.print("following; Ctrl-C stops it")
        seen: dict[Path, Stamp | None] = {}
        whole = workspace.now()
        while not stop.wait(interval):
            try:
                stamps = {path: stamp_of(path) for path in source.files_in(paths)}
            except InputError as error:  # the folder is gone for now; it may come back
                log.warning("%s", error)
                continue
            is_whole = workspace.now() - whole >= WHOLE_EVERY
            changed = [path for path, stamp in stamps.items() if is_whole or seen.get(path) != stamp]
            if is_whole:
                whole = workspace.now()
            seen = stamps
            if changed:
                summary = Importer(workspace, agent=agent).transcripts(source, changed)
                if summary.exchanges or summary.events or summary.faults or summary.sessions_closed:
                    show(summary, workspace.settings.database, as_json=as_json)
