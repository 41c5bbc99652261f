"""`driftline import`: transcripts of each supported program, event files and files of exchanges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import InputError
from service.cli.commands.option_groups import with_option_group
from service.cli.commands.records.import_exchanges import import_exchanges
from service.cli.commands.records.import_results import (
    REFUSED,
    Filing,
    confirm_paid,
    file_progress,
    find_drift,
    show,
    show_drift,
    show_findings,
)
from service.cli.entry.exit_codes import fails_when, leave
from service.cli.import_findings import Drift
from service.cli.terminal import err, warn_skipped
from service.setup.workspace import Workspace
from service.write.import_files import checked, input_files
from service.write.importing import Importer, ImportSummary, Stamp, begin_history, check_history, stamp_of_account
from streams.process import handled
from streams.sources.copies import Account
from streams.sources.event_files import EVENT_FILES
from streams.sources.transcript_sources import SOURCES, TranscriptSource

WHOLE_EVERY = timedelta(minutes=1)
log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Import transcripts of agents, their events, or tables of exchanges.")


def _add_command(source: TranscriptSource) -> None:
    """Add the command that imports a source."""

    def import_transcripts(
        paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Transcripts, or folders of them.")],
        follow: Annotated[
            bool, typer.Option("--follow", help="Keep running and import what is added, until interrupted.")
        ] = False,
        interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between checks when following.")] = 2.0,
        *,
        filing: Filing,
    ) -> None:
        files = source.files_in(paths)
        if not files and not follow:
            raise InputError(f"no transcript under {', '.join(map(str, paths))}", hint=source.hint)
        found = checked(files, paths, source, allow_empty=follow)
        warn_skipped(found.refused)
        with filing.opened() as workspace:
            confirm_paid(workspace, yes=filing.yes)
            begin_history(workspace, workspace.settings.project)
            with file_progress(found.files) as report:
                summary = Importer(workspace, agent=filing.agent).transcripts(source, found.files, report)
            _show_with_drift(workspace, summary, show_findings, as_json=filing.as_json)
            if follow:
                _follow(workspace, source, paths, filing, interval)
        leave(failed=bool(summary.faults or found.refused))

    import_transcripts.__doc__ = f"Import {source.label} transcripts, as in {source.folder}; importing twice changes nothing."
    app.command(source.name)(fails_when(REFUSED)(with_option_group(import_transcripts)))


for known in SOURCES.values():
    _add_command(known)
app.command("exchanges")(import_exchanges)


@app.command("events")
@fails_when(REFUSED)
@with_option_group
def import_events(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Event JSON lines, a session.json, or folders of them.")],
    filing: Filing,
) -> None:
    """Import files of runtime events; importing twice changes nothing."""
    found = input_files(paths, EVENT_FILES)
    warn_skipped(found.refused)
    with filing.opened() as workspace:
        begin_history(workspace, workspace.settings.project)
        with file_progress(found.files) as report:
            summary = Importer(workspace, agent=filing.agent).events(found.files, report)
        _show_with_drift(workspace, summary, show_drift, as_json=filing.as_json)
    leave(failed=bool(summary.faults or found.refused))


def _show_with_drift(
    workspace: Workspace, summary: ImportSummary, show_found: Callable[[Workspace, Drift], None], *, as_json: bool
) -> None:
    """Print the result of an import and then the findings of the checks of its days, or both in one document."""
    database, project = workspace.settings.database, workspace.settings.project
    if as_json:
        show(summary, database, as_json=True, more={"history": find_drift(workspace, project).as_json()})
        return
    show(summary, database, as_json=False)  # first, because the checks may take a while
    show_found(workspace, find_drift(workspace, project))


def _follow(workspace: Workspace, source: TranscriptSource, paths: list[Path], filing: Filing, interval: float) -> None:
    """Import new data until a stop signal; a round in progress is finished first.

    Each round reads changed files. Once a minute it reads all incomplete ones, because a session may have become idle.
    """
    stop = threading.Event()
    with handled(lambda _: stop.set()):
        err.say("following; Ctrl-C stops it")
        seen: dict[Account, Stamp | None] = {}
        whole = workspace.now()
        while not stop.wait(interval):
            try:
                stamps = {account: stamp_of_account(account) for account in source.accounts_in(source.files_in(paths))}
            except InputError as error:  # the folder is missing for now; it may come back
                log.warning("%s", error)
                continue
            is_whole = workspace.now() - whole >= WHOLE_EVERY
            changed = [
                file
                for account, stamp in stamps.items()
                if is_whole or seen.get(account) != stamp
                for file in (account.path, *account.copies)
            ]
            if is_whole:
                whole = workspace.now()
            seen = stamps
            if changed:
                begin_history(workspace, workspace.settings.project)
                summary = Importer(workspace, agent=filing.agent).transcripts(source, changed)
                histories = check_history(workspace, workspace.settings.project)
                if summary.exchanges or summary.events or summary.faults or summary.sessions_closed:
                    show(summary, workspace.settings.database, as_json=filing.as_json)
                if histories and not filing.as_json:
                    show_drift(workspace, Drift(histories, ()))
