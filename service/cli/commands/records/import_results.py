"""Parts shared by the import commands: options, the confirmation of a server's judging costs, the progress bar, and the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.commands.drift.watching import check_projects
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    IntoProject,
    PolicyFile,
    Yes,
    clock_of,
    for_database,
    print_json,
    settings_of,
)
from service.cli.entry.exit_codes import agree
from service.cli.import_findings import Drift, drift_lines, import_findings, incident_steps
from service.cli.next_steps import program_name, typed
from service.cli.progress import counting, measuring
from service.cli.terminal import err, out
from service.setup.judge_setup import paid_note
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from service.text.plain import counted, plain
from service.write.importing import ImportSummary, Report, check_history, stamp_of

REFUSED = "a file or a record is refused, or you decline"
"""When an import ends with `FAILED`."""
LEFT_OUT = {
    "evaluation": "runs of Langfuse's evaluators or experiments, which are no agents",
    "not_understood": "spans that say what they are in words that Driftline does not know",
    "no_content": "requests without texts",
    "helper": "guardrails, evaluators, embeddings and the like only",
    "no_model": "nothing that asks a model",
}
"""The reason why a trace gave no exchange, by the state of its assembly."""
_REASONS = 8
"""Reasons that are shown."""
OPEN_SHOWN = 5
"""Open answers that are named; the rest are counted."""
OPEN_NAME = 100
"""Characters that are shown of a session's id."""
SEE_LETTERS = "driftline dead-letters list"


@dataclass(frozen=True, slots=True)
class Filing:
    """Options of every import command: the destination of the records, and the form of the result."""

    project: IntoProject = None
    connection: Annotated[
        str | None, typer.Option("--connection", metavar="NAME", help="Connection to file under [DRIFTLINE_CONNECTION, local].")
    ] = None
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Name of the agent; overrides the files.")] = None
    yes: Yes = False
    database: Database = None
    policy: PolicyFile = None
    as_of: AsOf = None
    as_json: AsJson = False

    @property
    def settings(self) -> Settings:
        """The settings, overridden by these options."""
        return settings_of(self.database, self.policy, project=self.project, connection=self.connection)

    def opened(self) -> AbstractContextManager[Workspace]:
        """Open the database, creating it if needed."""
        return open_workspace(self.settings, now=clock_of(self.as_of), create=True, writes=True)


def confirm_paid(workspace: Workspace, *, yes: bool, expected: Callable[[], str] | None = None) -> None:
    """Ask for confirmation if the server that has the database will pay its judge for the import. Without a server, no judge is asked.

    `expected` describes the cost, if it can be known before.
    """
    if note := paid_note(workspace.server):
        err.say(f"note: {note}", style="yellow")
        if expected is not None:
            err.say(expected())
        agree("Import, and let the server's judge score it?", yes=yes)


@contextmanager
def file_progress(files: Sequence[Path]) -> Iterator[Report]:
    """Show a progress bar over the bytes read."""
    total = sum(stamp.size for path in files if (stamp := stamp_of(path)))
    read = 0
    with measuring("reading", total) as bar:

        def report(size: int) -> None:
            nonlocal read
            read += size
            bar(read)

        yield report


def show(summary: ImportSummary, database: Path, *, as_json: bool, more: dict[str, Any] | None = None) -> None:
    """Print the result of an import and flush it, for readers of a pipe under `--follow`. `database` is the filled database."""
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
    for (state, example), traces in summary.left_out.most_common(_REASONS):
        said = f" ({plain(example, 100)})" if example else ""
        out.say(f"{counted(traces, 'trace')} gave no exchange: {LEFT_OUT[state]}{said}")
    if summary.revised:
        revised = counted(summary.revised, "exchange")
        out.say(f"{revised} {'was' if summary.revised == 1 else 'were'} revised: more was written after the answer")
    if summary.open:
        out.say(f"{counted(len(summary.open), 'answer')} still open:")
        for answer in sorted(summary.open, key=lambda answer: answer.counts_at)[:OPEN_SHOWN]:
            counts_at = f"{answer.counts_at:%Y-%m-%d %H:%M} UTC"
            session = plain(answer.session_id, OPEN_NAME)
            out.say(
                f"  session {session}, asked at {answer.asked_at:%Y-%m-%d %H:%M} UTC: {answer.reason}. "
                f"It counts as soon as it ends, or when it is read after {counts_at} with nothing added."
            )
        if len(summary.open) > OPEN_SHOWN:
            out.say(f"  … and {len(summary.open) - OPEN_SHOWN} more")
    if summary.copies:
        copies = counted(summary.copies, "file")
        out.say(
            f"{copies} {'is a copy' if summary.copies == 1 else 'are copies'} of a session in another file: read as one session"
        )
    if summary.lines_in_copies:
        lines = counted(summary.lines_in_copies, "line")
        out.say(f"{lines} of copies that the most complete file does not have: not read", style="yellow")
    if summary.faults:
        faults = counted(summary.faults, "record")
        out.say(
            f"{faults} {'was' if summary.faults == 1 else 'were'} refused and set aside: {for_database(SEE_LETTERS, database)}",
            style="yellow",
        )


def find_drift(workspace: Workspace, target: str) -> Drift:
    """Check the imported days of a project, or of `EVERY_PROJECT`, oldest first, and then as of now."""
    with counting("checking days") as bar:
        histories = check_history(workspace, target, bar)
    return Drift(histories, check_projects(workspace, [target] if target else [history.project for history in histories]))


def show_drift(workspace: Workspace, drift: Drift) -> None:
    """Print the drift that the checks found in the filled projects."""
    for line in (*drift_lines(drift), *typed(program_name(), incident_steps(drift, workspace.settings.database))):
        out.say(line)


def show_findings(workspace: Workspace, drift: Drift) -> None:
    """Print the findings in the filled project, including drift."""
    for part in import_findings(workspace, drift, program_name()):
        # A wrapped line cannot be copied.
        out.print(part, markup=False, soft_wrap=isinstance(part, str))
