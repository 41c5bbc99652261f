"""`driftline import`: transcripts of each supported program, event files, and tables of exchanges.

Every import prints its result first and then checks the imported days for drift, which may take a while.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType

from audit.exchanges.labels import labels_json
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.errors import InputError
from schemas.records import Exchange
from service.cli.commands.incidents import check_projects
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
    with_option_group,
)
from service.cli.commands.rejudging import (
    expected_in_words,
    judge_of,
    judge_unscored,
    outcome_in_words,
    say_who_judges,
)
from service.cli.exit_codes import agree, fails_when, leave
from service.cli.import_findings import Drift, drift_lines, import_findings, incident_steps, program_name, typed
from service.cli.progress import counting, measuring, working
from service.cli.terminal import err, out, print_text, table, warn_skipped
from service.setup.judge_setup import paid_note
from service.setup.server_link import RejudgeResult
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import Clock, Workspace, open_workspace
from service.text.formats import MISSING, counted, plain
from service.write.import_files import Source, checked, exchange_source, exchanges_in, first_exchanges, input_files, looked_at
from service.write.importing import (
    Importer,
    ImportSummary,
    Report,
    Stamp,
    begin_history,
    check_history,
    stamp_of,
    stamp_of_session,
)
from streams.judging.rejudging import estimate_bulk
from streams.process import handled
from streams.sources.copies import SessionFiles
from streams.sources.event_files import EVENT_FILES
from streams.sources.exchange_files.mapping import load_mapping, mapping_text
from streams.sources.exchange_files.profiling import FileProfile, Layout
from streams.sources.exchange_files.reading import Labels
from streams.sources.source import ReadingContext
from streams.sources.transcript_sources import SOURCES, TranscriptSource
from streams.watch.history import EVERY_PROJECT

imports_app = typer.Typer(no_args_is_help=True, help="Import transcripts of agents, their events, or tables of exchanges.")
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
REASONS_SHOWN = 8
"""Reasons that are shown."""
OPEN_SHOWN = 5
"""Open answers that are named; the rest are counted."""
OPEN_NAME = 100
"""Characters that are shown of a session's id."""
SEE_LETTERS = "driftline dead-letters list"
WHOLE_EVERY = timedelta(minutes=1)
ESTIMATED = 10_000
"""Maximum number of exchanges whose cost is estimated before an import; more would keep people waiting."""
FAULTS_SHOWN = 10
"""Faulty rows that a dry run names for each file."""
SHOWN_LENGTH = 60
"""Characters of a text that the table shows."""
INTERNAL_FIELDS = ("ingested_at", "content_digest")
log = logging.getLogger(__name__)


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
        inputs = checked(files, paths, source, allow_empty=follow)
        warn_skipped(inputs.refused)
        with filing.opened() as workspace:
            confirm_paid(workspace, yes=filing.yes)
            begin_history(workspace, workspace.settings.project)
            with file_progress(inputs.files) as report:
                summary = Importer(workspace, agent=filing.agent).transcripts(source, inputs.files, report)
            _show_with_drift(workspace, summary, show_findings, as_json=filing.as_json)
            if follow:
                _follow(workspace, source, paths, filing, interval)
        leave(failed=bool(summary.faults or inputs.refused))

    import_transcripts.__doc__ = f"Import {source.label} transcripts, as in {source.folder}; importing twice changes nothing."
    imports_app.command(source.name)(fails_when(REFUSED)(with_option_group(import_transcripts)))


for known in SOURCES.values():
    _add_command(known)


Map = Annotated[
    Path | None,
    typer.Option("--map", metavar="FILE", help="Mapping of columns to fields; without one it is proposed by their names."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show format, mapping and the first ten exchanges of each file; store nothing.")
]
SaveMap = Annotated[Path | None, typer.Option("--save-map", metavar="FILE", help="Write the proposed mapping; store nothing.")]
Judge = Annotated[
    bool, typer.Option("--judge", help="Then judge what is unscored, after showing the cost, and check for drift.")
]


@imports_app.command("exchanges")
@fails_when(REFUSED)
@with_option_group
def import_exchanges(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="JSON lines, CSV or Parquet, also .gz or .zst, or folders of them.")
    ],
    mapping: Map = None,
    dry_run: DryRun = False,
    save_map: SaveMap = None,
    judge: Judge = False,
    *,
    filing: Filing,
) -> None:
    """Import exchanges from tables, from exports of Langfuse and Phoenix, or from Driftline's own; twice changes nothing."""
    settings = filing.settings
    fields = None if mapping is None else load_mapping(mapping)
    rules = policy_of(settings)
    redactor = redactor_of(settings, rules)
    looked = looked_at(paths, fields, redactor, whole=not (dry_run or save_map is not None))
    warn_skipped(looked.found().refused)
    if looked.other_tables:
        err.say(f"{counted(looked.other_tables, 'file')} of the export left out: other tables than exchanges")
    if save_map is not None:
        _save(save_map, looked, redactor)
    if dry_run:
        context = _context(settings, rules, redactor, clock_of(filing.as_of), filing.agent)
        _show_first(looked, context, rules, as_json=filing.as_json)
    if dry_run or save_map is not None:
        leave(failed=bool(looked.refused))
    layouts = looked.layouts(redactor)
    with filing.opened() as workspace:
        faults = _import(workspace, layouts, filing, judge=judge)
    leave(failed=bool(faults or looked.refused))


@imports_app.command("events")
@fails_when(REFUSED)
@with_option_group
def import_events(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Event JSON lines, a session.json, or folders of them.")],
    filing: Filing,
) -> None:
    """Import files of runtime events; importing twice changes nothing."""
    inputs = input_files(paths, EVENT_FILES)
    warn_skipped(inputs.refused)
    with filing.opened() as workspace:
        begin_history(workspace, workspace.settings.project)
        with file_progress(inputs.files) as report:
            summary = Importer(workspace, agent=filing.agent).events(inputs.files, report)
        _show_with_drift(workspace, summary, show_drift, as_json=filing.as_json)
    leave(failed=bool(summary.faults or inputs.refused))


def _follow(workspace: Workspace, source: TranscriptSource, paths: list[Path], filing: Filing, interval: float) -> None:
    """Import new data until a stop signal; a round in progress is finished first.

    Each round reads changed files. Once a minute it reads all incomplete ones, because a session may have become idle.
    """
    stop = threading.Event()
    with handled(lambda _: stop.set()):
        err.say("following; Ctrl-C stops it")
        seen: dict[SessionFiles, Stamp | None] = {}
        whole = workspace.now()
        while not stop.wait(interval):
            try:
                stamps = {
                    session_files: stamp_of_session(session_files)
                    for session_files in source.session_files_in(source.files_in(paths))
                }
            except InputError as error:  # the folder is missing for now; it may come back
                log.warning("%s", error)
                continue
            is_whole = workspace.now() - whole >= WHOLE_EVERY
            changed = [
                file
                for session_files, stamp in stamps.items()
                if is_whole or seen.get(session_files) != stamp
                for file in (session_files.path, *session_files.copies)
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


def _import(workspace: Workspace, layouts: dict[Path, Layout], filing: Filing, *, judge: bool) -> int:
    """Import the files, have them judged on request, and show the result; return the number of faults."""
    if judge:
        say_who_judges(judge_of(workspace), dry_run=False)
    labels = workspace.policy.for_project(workspace.settings.project).settings.traces.labels
    confirm_paid(workspace, yes=filing.yes, expected=lambda: _expected(workspace, layouts, labels, filing))
    # Our own export contains its projects.
    project = None if any(layout.own for layout in layouts.values()) else workspace.settings.project
    target = EVERY_PROJECT if project is None else project
    begin_history(workspace, target)
    importer = Importer(workspace, agent=filing.agent, layouts={path: layout.key for path, layout in layouts.items()})
    with file_progress(list(layouts)) as report:
        summary = importer.exchanges(exchange_source(layouts, labels), layouts, report)
    if not filing.as_json:
        show(summary, workspace.settings.database, as_json=False)  # first, because judging and checking may take a while
    more = _judge(workspace, project, yes=filing.yes, as_json=filing.as_json) if judge else {}
    drift = find_drift(workspace, target)
    if filing.as_json:
        show(summary, workspace.settings.database, as_json=True, more=more | {"history": drift.as_json()})
    else:
        show_drift(workspace, drift)
    return summary.faults


def _expected(workspace: Workspace, layouts: dict[Path, Layout], labels: Labels, filing: Filing) -> str:
    """Describe the cost of having the files' exchanges judged."""
    context = _context(workspace.settings, workspace.policy, workspace.redactor, workspace.now, filing.agent)
    with working("estimating the cost"):
        bulk = estimate_bulk(islice(exchanges_in(layouts, context, labels), ESTIMATED), workspace.policy)
    return expected_in_words(bulk, ESTIMATED)


def _judge(workspace: Workspace, project: str | None, *, yes: bool, as_json: bool) -> dict[str, Any]:
    """Have the unscored exchanges judged after the cost was agreed to; return the outcome for scripts."""
    outcome = judge_unscored(workspace, project, None, yes=yes)
    if workspace.server is not None:
        with working("the server's judge scores them"):
            workspace.server.call("rejudge", RejudgeResult, project, None, 0)  # returns when the judge has no work left
    if outcome is not None and not as_json:
        out.say(outcome_in_words(outcome))
    return {"judged": outcome}


def _save(path: Path, looked: Source, redactor: Redactor) -> None:
    """Write the proposed mapping of the first table. InputError if there is no table, or if the file exists."""
    table = next((look for look in looked.looks.values() if not (look.own_table or look.export)), None)
    if table is None:
        raise InputError("no mapping is needed: the files are known exports", hint="Import them without --save-map.")
    columns = redactor.redact(", ".join(table.columns))[0]
    text = mapping_text(table.sources, f"Fields of an exchange from the columns of {table.path.name}: {plain(columns, 2000)}")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InputError(f"{path}: exists already", hint="Name another file, or remove this one.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}", hint="Choose a writable folder.") from error
    todo = f"name columns for {', '.join(table.missing)} in it, then" if table.missing else "then"
    err.say(f"mapping written to {path}; {todo} import with --map {path}")


def _context(settings: Settings, rules: Policy, redactor: Redactor, now: Clock, agent: str | None) -> ReadingContext:
    gap = timedelta(minutes=rules.session_gap_minutes)
    return ReadingContext(settings.connection, settings.project, agent, now(), gap, redactor)


def _show_first(looked: Source, context: ReadingContext, rules: Policy, *, as_json: bool) -> None:
    """Show the kind of each file, and its first exchanges as they would be stored. InputError for a field without a column."""
    labels = rules.for_project(context.project).settings.traces.labels
    for path, first in looked.looks.items():
        if not as_json:
            _say_format(first)
        layout = first.layout(context.redactor)
        exchanges, faults = first_exchanges(path, context, layout, labels)
        problems = [f"row {fault.line}: {context.redactor.redact(fault.detail)[0]}" for fault in faults]
        if as_json:
            print_json(_document(first, layout, exchanges, problems))
            continue
        out.print(exchange_view(exchanges))
        for problem in problems[:FAULTS_SHOWN]:
            err.say(f"{plain(path)}: {plain(problem, 400)}: would be set aside")


def _say_format(first: FileProfile) -> None:
    export_name = first.export.name if first.export else "Driftline's export" if first.own_table else ""
    out.say(f"{plain(first.path)}: {first.form.value}{f', {export_name}: no mapping is needed' if export_name else ''}")
    if not export_name:
        print_text(mapping_text(first.sources))


def _document(first: FileProfile, layout: Layout, exchanges: Sequence[Exchange], faults: Sequence[str]) -> dict[str, Any]:
    fields = None if layout.fields is None else layout.fields.model_dump(exclude_none=True)
    return {
        "file": str(first.path),
        "format": first.form.value,
        "layout": layout.name,
        "fields": fields,
        "exchanges": list(map(exchange_document, exchanges)),
        "faults": list(faults),
    }


def exchange_view(exchanges: Sequence[Exchange]) -> RenderableType:
    """Show each exchange on a line."""
    headers = ["at", "session", "agent", "model", "tokens", "question", "answer"]
    cells = [
        [
            f"{exchange.occurred_at:%Y-%m-%d %H:%M:%S}",
            plain(exchange.session_id, SHOWN_LENGTH),
            plain(exchange.agent, SHOWN_LENGTH) or MISSING,
            plain(exchange.agent_model, SHOWN_LENGTH) or MISSING,
            _tokens(exchange),
            plain(exchange.user_message, SHOWN_LENGTH),
            plain(exchange.agent_response, SHOWN_LENGTH) or exchange.outcome,
        ]
        for exchange in exchanges
    ]
    return table(headers, cells, right=["tokens"])


def exchange_document(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange for scripts, with its labels as they are sent."""
    fields = msgspec.structs.asdict(exchange)
    return {name: value for name, value in fields.items() if name not in INTERNAL_FIELDS} | {
        "labels": labels_json(exchange.labels)
    }


def _tokens(exchange: Exchange) -> str:
    if exchange.input_tokens is None and exchange.output_tokens is None:
        return MISSING
    return " → ".join(MISSING if count is None else str(count) for count in (exchange.input_tokens, exchange.output_tokens))


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
    for (state, example), traces in summary.left_out.most_common(REASONS_SHOWN):
        example_note = f" ({plain(example, 100)})" if example else ""
        out.say(f"{counted(traces, 'trace')} gave no exchange: {LEFT_OUT[state]}{example_note}")
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
