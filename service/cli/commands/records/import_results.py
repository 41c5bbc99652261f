"""Parts of every import command: its options, the question before a server's judge is paid, the bar, and the result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from service.cli.commands.drift.watching import check_projects
from service.cli.commands.options import for_database, print_json
from service.cli.import_findings import drift_lines, import_findings
from service.cli.next_steps import program_name
from service.cli.terminal import counted, err, out
from service.imports.importing import ImportSummary, Report, stamp_of
from service.judge_setup import paid_note
from service.workspace import Workspace

SEE_LETTERS = "driftline dead-letters list"
Into = Annotated[
    str | None, typer.Option("--project", metavar="NAME", help="Project to file under [DRIFTLINE_PROJECT, default].")
]
Via = Annotated[
    str | None, typer.Option("--connection", metavar="NAME", help="Connection to file under [DRIFTLINE_CONNECTION, local].")
]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Name of the agent; overrides the files.")]


def confirm_paid(workspace: Workspace, *, yes: bool) -> None:
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


def show(summary: ImportSummary, database: Path, *, as_json: bool, more: dict[str, Any] | None = None) -> None:
    """Print the result of an import at once, for the reader of a follower's pipe. `database` is what it filled."""
    if as_json:
        print_json(summary.as_json() | (more or {}))
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


def show_drift(workspace: Workspace) -> None:
    """Print what a check for drift finds in the project that was filled."""
    project = workspace.settings.project
    for line in drift_lines(project, check_projects(workspace, [project])):
        out.say(line)


def show_findings(workspace: Workspace) -> None:
    """Print the findings in the project that was filled, after a check for drift."""
    for part in import_findings(workspace, check_projects(workspace, [workspace.settings.project]), program_name()):
        # A line that is cut in two cannot be copied.
        out.print(part, markup=False, soft_wrap=isinstance(part, str))
