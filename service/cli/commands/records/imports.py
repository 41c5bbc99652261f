"""`driftline import`: transcripts of each supported program, event files and files of exchanges."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import InputError
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    clock_of,
    settings_of,
)
from service.cli.commands.records.import_exchanges import import_exchanges
from service.cli.commands.records.import_results import Agent, Into, Via, confirm_paid, file_progress, show, show_findings
from service.cli.terminal import err
from service.imports.importing import Importer, Stamp, stamp_of
from service.imports.input_files import checked, input_files
from service.workspace import Workspace, open_workspace
from streams.sources.event_files import EVENT_FILES
from streams.sources.transcript_sources import SOURCES, TranscriptSource
from streams.stop_signals import handled

WHOLE_EVERY = timedelta(minutes=1)
log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Import transcripts of agents, their events, or tables of exchanges.")

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a server's judge is paid for the import.")]


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
        found = checked(files, paths, source, allow_empty=follow)
        found.report()
        with open_workspace(settings, now=clock, create=True, writes=True) as workspace:
            confirm_paid(workspace, yes=yes)
            with file_progress(found.files) as report:
                summary = Importer(workspace, agent=agent).transcripts(source, found.files, report)
            show(summary, workspace.settings.database, as_json=as_json)
            if not as_json:
                show_findings(workspace)
            if follow:
                _follow(workspace, source, paths, agent, interval, as_json=as_json)
        raise typer.Exit(1 if summary.faults or found.refused else 0)


for known in SOURCES.values():
    _add_command(known)
app.command("exchanges")(import_exchanges)


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
    clock, found = clock_of(as_of), input_files(paths, EVENT_FILES)
    found.report()
    with open_workspace(settings, now=clock, create=True, writes=True) as workspace:
        with file_progress(found.files) as report:
            summary = Importer(workspace, agent=agent).events(found.files, report)
        show(summary, workspace.settings.database, as_json=as_json)
    raise typer.Exit(1 if summary.faults or found.refused else 0)


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
