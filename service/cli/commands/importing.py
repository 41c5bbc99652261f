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
from functools import partial
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
    describe_estimate,
    describe_outcome,
    find_judge,
    judge_unscored,
    report_judge,
)
from service.cli.exit_codes import agree, fails_when, leave
from service.cli.import_findings import Drift, drift_lines, format_commands, import_findings, incident_steps, program_name
from service.cli.progress import counting, measuring, working
from service.cli.terminal import err, out, print_text, table, warn_skipped
from service.setup.judge_setup import paid_note
from service.setup.server_link import RejudgeResult
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import Clock, Workspace, open_workspace
from service.text.formats import MISSING, counted, plain
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
from service.write.input_files import (
    ProfiledFiles,
    check_input_files,
    exchange_source,
    find_input_files,
    profile_files,
    read_exchanges,
    read_preview,
)
from streams.judging.rejudging import estimate_bulk
from streams.process import handled
from streams.sources.copies import SessionFiles
from streams.sources.event_files import EVENT_FILES
from streams.sources.exchange_files.mapping import load_mapping, mapping_text, parse_columns
from streams.sources.exchange_files.profiling import FileProfile, Layout
from streams.sources.exchange_files.reading import Labels
from streams.sources.source import PendingAnswer, ReadingContext
from streams.sources.transcript_sources import SOURCES, TranscriptSource
from streams.watch.history import EVERY_PROJECT

imports_app = typer.Typer(no_args_is_help=True, help="Import transcripts of agents, their events, or tables of exchanges.")
FAILURE_CONDITION = "a file or a record is rejected, or you decline"
"""When an import ends with `FAILED`."""
SKIP_REASONS = {
    "evaluation": "runs of Langfuse's evaluators or experiments, not of agents",
    "not_understood": "spans of a kind that Driftline does not know",
    "no_content": "requests without texts",
    "helper": "only guardrails, evaluators, embeddings and other helpers",
    "no_model": "no request to a model",
}
"""The reason why a trace gave no exchange, by the state of its assembly."""
MAX_REASONS = 8
"""Maximum number of reasons shown."""
MAX_OPEN_ANSWERS = 5
"""Maximum number of open answers listed; the others are counted."""
MAX_SESSION_LENGTH = 100
"""Maximum characters shown of a session's id."""
LIST_DEAD_LETTERS = "driftline dead-letters list"
FULL_SCAN_INTERVAL = timedelta(minutes=1)
MAX_ESTIMATED_EXCHANGES = 10_000
"""Maximum number of exchanges whose cost is estimated before an import; more would keep people waiting."""
MAX_FAULTS = 10
"""Maximum number of faulty rows that a dry run lists per file."""
MAX_CELL_LENGTH = 60
"""Maximum characters of a text in the table."""
MAX_COLUMNS_LENGTH = 2000
"""Maximum characters of the column names in the title of a mapping file."""
MAX_DETAIL_LENGTH = 400
"""Maximum characters of a fault's description."""
INTERNAL_FIELDS = ("ingested_at", "content_digest")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of every import command: the destination of the records, and the form of the result."""

    project: IntoProject = None
    connection: Annotated[
        str | None,
        typer.Option(
            "--connection", metavar="NAME", help="Connection under which to store records [DRIFTLINE_CONNECTION, local]."
        ),
    ] = None
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Name of the agent; overrides the name in the files.")
    ] = None
    yes: Yes = False
    database: Database = None
    policy: PolicyFile = None
    as_of: AsOf = None
    as_json: AsJson = False

    @property
    def settings(self) -> Settings:
        """The settings, overridden by these options."""
        return settings_of(self.database, self.policy, project=self.project, connection=self.connection)

    def open_workspace(self) -> AbstractContextManager[Workspace]:
        """Open the database, creating it if needed."""
        return open_workspace(self.settings, now=clock_of(self.as_of), create=True, writes=True)


def _add_command(source: TranscriptSource) -> None:
    """Add the command that imports a source."""

    def import_transcripts(
        paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Transcripts, or folders of them.")],
        follow: Annotated[bool, typer.Option("--follow", help="Keep running and import new data, until interrupted.")] = False,
        interval: Annotated[
            float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Seconds between checks when following.")
        ] = 2.0,
        *,
        options: ImportOptions,
    ) -> None:
        files = source.files_in(paths)
        if not files and not follow:
            raise InputError(f"no transcript under {', '.join(map(str, paths))}", hint=source.hint)
        inputs = check_input_files(files, paths, source, allow_empty=follow)
        warn_skipped(inputs.rejected)
        with options.open_workspace() as workspace:
            confirm_paid(workspace, yes=options.yes)
            begin_history(workspace, workspace.settings.project)
            with file_progress(inputs.files) as report:
                summary = Importer(workspace, agent=options.agent).import_transcripts(source, inputs.files, report)
            _present(workspace, summary, workspace.settings.project, show_findings, as_json=options.as_json)
            if follow:
                _follow(workspace, source, paths, options, interval)
        leave(failed=bool(summary.faults or inputs.rejected))

    import_transcripts.__doc__ = (
        f"Import {source.label} transcripts, for example {source.folder}. Importing a file again changes nothing."
    )
    imports_app.command(source.name)(fails_when(FAILURE_CONDITION)(with_option_group(import_transcripts)))


for transcript_source in SOURCES.values():
    _add_command(transcript_source)


Map = Annotated[
    Path | None,
    typer.Option(
        "--map", metavar="FILE", help="File that maps columns to fields. By default, fields are found by column name."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=COLUMN",
        help="Column of a field, for example occurred_at=asked_at; overrides the mapping. May be repeated.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show the format, the mapping and the first ten exchanges of each file; store nothing."),
]
SaveMap = Annotated[
    Path | None, typer.Option("--save-map", metavar="FILE", help="Write the proposed mapping to a file; store nothing.")
]
Judge = Annotated[bool, typer.Option("--judge", help="After the import, judge unscored exchanges. The cost is shown first.")]


@imports_app.command("exchanges")
@fails_when(FAILURE_CONDITION)
@with_option_group
def import_exchanges(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="JSON lines, CSV or Parquet files (also .gz or .zst), or folders of them."),
    ],
    mapping: Map = None,
    columns: Columns = None,
    dry_run: DryRun = False,
    save_map: SaveMap = None,
    judge: Judge = False,
    *,
    options: ImportOptions,
) -> None:
    """Import exchanges from tables, or from exports of Langfuse, Phoenix or Driftline. Importing a file again changes nothing."""
    settings = options.settings
    fields = None if mapping is None else load_mapping(mapping)
    policy = policy_of(settings)
    redactor = redactor_of(settings, policy)
    columns_by_field = parse_columns(columns or ())
    profiled = profile_files(
        paths, fields, redactor, columns_by_field=columns_by_field, require_columns=not (dry_run or save_map is not None)
    )
    warn_skipped(profiled.rejected)
    if profiled.other_tables:
        err.say(f"{counted(profiled.other_tables, 'file')} of the export skipped: other tables than exchanges")
    if save_map is not None:
        _save_mapping(save_map, profiled, redactor)
    if dry_run:
        context = _reading_context(settings, policy, redactor, clock_of(options.as_of), options.agent)
        _show_preview(profiled, context, policy, as_json=options.as_json)
    if dry_run or save_map is not None:
        leave(failed=bool(profiled.rejected))
    layouts = profiled.layouts(redactor)
    with options.open_workspace() as workspace:
        faults = _import(workspace, layouts, options, judge=judge)
    leave(failed=bool(faults or profiled.rejected))


@imports_app.command("events")
@fails_when(FAILURE_CONDITION)
@with_option_group
def import_events(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Files of event JSON lines, session.json files, or folders of them.")
    ],
    options: ImportOptions,
) -> None:
    """Import files of runtime events. Importing a file again changes nothing."""
    inputs = find_input_files(paths, EVENT_FILES)
    warn_skipped(inputs.rejected)
    with options.open_workspace() as workspace:
        begin_history(workspace, workspace.settings.project)
        with file_progress(inputs.files) as report:
            summary = Importer(workspace, agent=options.agent).import_events(inputs.files, report)
        _present(workspace, summary, workspace.settings.project, show_drift, as_json=options.as_json)
    leave(failed=bool(summary.faults or inputs.rejected))


def _follow(workspace: Workspace, source: TranscriptSource, paths: list[Path], options: ImportOptions, interval: float) -> None:
    """Import new data until a stop signal; a round in progress is finished first.

    Each round reads changed files. Once a minute it reads all incomplete files, because a session may have become idle.
    """
    stop = threading.Event()
    with handled(lambda _: stop.set()):
        err.say("following; press Ctrl-C to stop")
        last_stamps: dict[SessionFiles, Stamp | None] = {}
        last_full_scan = workspace.now()
        while not stop.wait(interval):
            try:
                stamps = {
                    session_files: stamp_of_session(session_files)
                    for session_files in source.session_files_in(source.files_in(paths))
                }
            except InputError as error:  # the folder may reappear
                log.warning("%s", error)
                continue
            is_full_scan = workspace.now() - last_full_scan >= FULL_SCAN_INTERVAL
            changed: list[Path] = []
            for session_files, stamp in stamps.items():
                if is_full_scan or last_stamps.get(session_files) != stamp:
                    changed += [session_files.path, *session_files.copies]
            if is_full_scan:
                last_full_scan = workspace.now()
            last_stamps = stamps
            if changed:
                begin_history(workspace, workspace.settings.project)
                summary = Importer(workspace, agent=options.agent).import_transcripts(source, changed)
                histories = check_history(workspace, workspace.settings.project)
                if summary.exchanges or summary.events or summary.faults or summary.sessions_closed:
                    show(summary, workspace.settings.database, as_json=options.as_json)
                if histories and not options.as_json:
                    show_drift(workspace, Drift(histories, ()))


def _import(workspace: Workspace, layouts: dict[Path, Layout], options: ImportOptions, *, judge: bool) -> int:
    """Import the files, have them judged on request, and show the result; return the number of faults."""
    if judge:
        report_judge(find_judge(workspace), dry_run=False)
    labels = workspace.policy.for_project(workspace.settings.project).settings.traces.labels
    confirm_paid(workspace, yes=options.yes, describe_cost=lambda: _describe_cost(workspace, layouts, labels, options))
    # An export of Driftline names the project of each exchange.
    project = None if any(layout.is_own_export for layout in layouts.values()) else workspace.settings.project
    target = EVERY_PROJECT if project is None else project
    begin_history(workspace, target)
    importer = Importer(workspace, agent=options.agent, layouts={path: layout.key for path, layout in layouts.items()})
    with file_progress(list(layouts)) as report:
        summary = importer.import_exchanges(exchange_source(layouts, labels), layouts, report)
    judge_imported = partial(_judge, workspace, project, yes=options.yes) if judge else None
    _present(workspace, summary, target, show_drift, as_json=options.as_json, judge=judge_imported)
    return summary.faults


def _describe_cost(workspace: Workspace, layouts: dict[Path, Layout], labels: Labels, options: ImportOptions) -> str:
    """Describe the cost of having the files' exchanges judged."""
    context = _reading_context(workspace.settings, workspace.policy, workspace.redactor, workspace.now, options.agent)
    with working("estimating the cost"):
        exchanges = islice(read_exchanges(layouts, context, labels), MAX_ESTIMATED_EXCHANGES)
        bulk = estimate_bulk(exchanges, workspace.policy)
    return describe_estimate(bulk, MAX_ESTIMATED_EXCHANGES)


def _judge(workspace: Workspace, project: str | None, *, yes: bool) -> dict[str, Any] | None:
    """Have the unscored exchanges judged if the user accepts the cost; return the outcome, or None if nothing was judged."""
    outcome = judge_unscored(workspace, project, None, yes=yes)
    if workspace.server is not None:
        with working("the server's judge scores them"):
            workspace.server.call("rejudge", RejudgeResult, project, None, 0)  # returns when the judge has no work left
    return outcome


def _save_mapping(path: Path, profiled: ProfiledFiles, redactor: Redactor) -> None:
    """Write the proposed mapping of the first table that needs one. Raises InputError if none does, or if the file exists."""
    unmapped = [profile for profile in profiled.profiles.values() if not (profile.own_table or profile.export)]
    if not unmapped:
        raise InputError("no mapping is needed: the files are known exports", hint="Import them without --save-map.")
    profile = unmapped[0]
    columns = redactor.redact(", ".join(profile.columns))[0]
    title = f"Fields of an exchange from the columns of {profile.path.name}: {plain(columns, MAX_COLUMNS_LENGTH)}"
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(mapping_text(profile.sources, title))
    except FileExistsError:
        raise InputError(f"{path}: exists already", hint="Name another file, or remove this one.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}", hint="Choose a writable folder.") from error
    next_step = f"name columns for {', '.join(profile.missing)} in it, then" if profile.missing else "then"
    err.say(f"mapping written to {path}; {next_step} import with --map {path}")


def _reading_context(settings: Settings, policy: Policy, redactor: Redactor, now: Clock, agent: str | None) -> ReadingContext:
    gap = timedelta(minutes=policy.session_gap_minutes)
    return ReadingContext(settings.connection, settings.project, agent, now(), gap, redactor)


def _show_preview(profiled: ProfiledFiles, context: ReadingContext, policy: Policy, *, as_json: bool) -> None:
    """Show the format of each file, and its first exchanges as they would be stored.

    Raises InputError for a field without a column.
    """
    labels = policy.for_project(context.project).settings.traces.labels
    for path, profile in profiled.profiles.items():
        if not as_json:
            _print_format(profile)
        layout = profile.layout(context.redactor)
        exchanges, faults = read_preview(path, context, layout, labels)
        problems = [f"row {fault.line}: {context.redactor.redact(fault.detail)[0]}" for fault in faults]
        if as_json:
            print_json(_preview_document(profile, layout, exchanges, problems))
            continue
        out.print(exchange_view(exchanges))
        for problem in problems[:MAX_FAULTS]:
            err.say(f"{plain(path)}: {plain(problem, MAX_DETAIL_LENGTH)}: would become a dead letter")


def _print_format(profile: FileProfile) -> None:
    path = plain(profile.path)
    file_format = profile.file_format.value
    if profile.export:
        out.say(f"{path}: {file_format}, {profile.export.name}: no mapping is needed")
    elif profile.own_table:
        out.say(f"{path}: {file_format}, Driftline's export: no mapping is needed")
    else:
        out.say(f"{path}: {file_format}")
        print_text(mapping_text(profile.sources))


def _preview_document(
    profile: FileProfile, layout: Layout, exchanges: Sequence[Exchange], faults: Sequence[str]
) -> dict[str, Any]:
    fields = None if layout.fields is None else layout.fields.model_dump(exclude_none=True)
    return {
        "file": str(profile.path),
        "format": profile.file_format.value,
        "layout": layout.name,
        "fields": fields,
        "exchanges": list(map(exchange_document, exchanges)),
        "faults": list(faults),
    }


def exchange_view(exchanges: Sequence[Exchange]) -> RenderableType:
    """Return a table with one exchange per row."""
    headers = ["at", "session", "agent", "model", "tokens", "question", "answer"]
    cells = [
        [
            f"{exchange.occurred_at:%Y-%m-%d %H:%M:%S}",
            plain(exchange.session_id, MAX_CELL_LENGTH),
            plain(exchange.agent, MAX_CELL_LENGTH) or MISSING,
            plain(exchange.agent_model, MAX_CELL_LENGTH) or MISSING,
            _format_tokens(exchange),
            plain(exchange.user_message, MAX_CELL_LENGTH),
            plain(exchange.agent_response, MAX_CELL_LENGTH) or exchange.outcome,
        ]
        for exchange in exchanges
    ]
    return table(headers, cells, right=["tokens"])


def exchange_document(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange for scripts, with its labels in the form in which they are sent."""
    document = {name: value for name, value in msgspec.structs.asdict(exchange).items() if name not in INTERNAL_FIELDS}
    document["labels"] = labels_json(exchange.labels)
    return document


def _format_tokens(exchange: Exchange) -> str:
    if exchange.input_tokens is None and exchange.output_tokens is None:
        return MISSING
    return " → ".join(MISSING if count is None else str(count) for count in (exchange.input_tokens, exchange.output_tokens))


def confirm_paid(workspace: Workspace, *, yes: bool, describe_cost: Callable[[], str] | None = None) -> None:
    """Ask for confirmation if the server that has the database will pay its judge for the import.

    Without a server, no judge is called. `describe_cost` is None if the cost cannot be estimated before the import.
    """
    note = paid_note(workspace.server)
    if not note:
        return
    err.say(f"note: {note}", style="yellow")
    if describe_cost is not None:
        err.say(describe_cost())
    agree("Import, and let the server's judge score the exchanges?", yes=yes)


@contextmanager
def file_progress(files: Sequence[Path]) -> Iterator[Report]:
    """Show a progress bar over the bytes read."""
    stamps = filter(None, map(stamp_of, files))
    read = 0
    with measuring("reading", sum(stamp.size for stamp in stamps)) as bar:

        def report(size: int) -> None:
            nonlocal read
            read += size
            bar(read)

        yield report


def show(summary: ImportSummary, database: Path, *, as_json: bool) -> None:
    """Print the result of an import."""
    if as_json:
        _print_document(summary.as_json())
    else:
        _print_summary(summary, database)


def _print_document(document: dict[str, Any]) -> None:
    """Print a JSON document and flush it, because a script may read a pipe under `--follow`."""
    print_json(document)
    sys.stdout.flush()


def _print_summary(summary: ImportSummary, database: Path) -> None:
    _print_totals(summary)
    for (state, example), traces in summary.left_out.most_common(MAX_REASONS):
        example_note = f" ({plain(example, 100)})" if example else ""
        out.say(f"{counted(traces, 'trace')} gave no exchange: {SKIP_REASONS[state]}{example_note}")
    if summary.revised:
        revised = counted(summary.revised, "exchange")
        out.say(f"{revised} {'was' if summary.revised == 1 else 'were'} revised: the session continued after the answer")
    _print_open_answers(summary.open)
    if summary.copies:
        copies = counted(summary.copies, "file")
        out.say(
            f"{copies} {'is a copy' if summary.copies == 1 else 'are copies'} of a session in another file: read as one session"
        )
    if summary.lines_in_copies:
        lines = counted(summary.lines_in_copies, "line")
        out.say(f"{lines} of copies not read: the most complete file of the session lacks them", style="yellow")
    if summary.faults:
        faults = counted(summary.faults, "record")
        out.say(
            f"{faults} {'was' if summary.faults == 1 else 'were'} rejected and stored as dead letters: "
            f"{for_database(LIST_DEAD_LETTERS, database)}",
            style="yellow",
        )


def _print_totals(summary: ImportSummary) -> None:
    unchanged = f" ({summary.unchanged} unchanged)" if summary.unchanged else ""
    out.say(
        f"{counted(summary.files + summary.unchanged, 'file')}{unchanged}, {counted(len(summary.sessions), 'session')}: "
        f"{counted(summary.exchanges, 'exchange')} and {counted(summary.events, 'event')} imported, "
        f"{summary.known} already known; {counted(summary.sessions_closed, 'session')} ended",
    )


def _print_open_answers(answers: Sequence[PendingAnswer]) -> None:
    """Print the answers that are not complete yet, and when each will be counted."""
    if not answers:
        return
    out.say(f"{counted(len(answers), 'answer')} {'is' if len(answers) == 1 else 'are'} still open:")
    for answer in sorted(answers, key=lambda answer: answer.counts_at)[:MAX_OPEN_ANSWERS]:
        session = plain(answer.session_id, MAX_SESSION_LENGTH)
        out.say(
            f"  session {session}, asked at {answer.asked_at:%Y-%m-%d %H:%M} UTC: {answer.reason}. "
            f"It counts when it ends, at the latest at {answer.counts_at:%Y-%m-%d %H:%M} UTC (session idle limit), "
            "with the next import."
        )
    if len(answers) > MAX_OPEN_ANSWERS:
        out.say(f"  … and {len(answers) - MAX_OPEN_ANSWERS} more")


def _present(
    workspace: Workspace,
    summary: ImportSummary,
    target: str,
    show_checks: Callable[[Workspace, Drift], None],
    *,
    as_json: bool,
    judge: Callable[[], dict[str, Any] | None] | None = None,
) -> None:
    """Print the result of an import, the outcome of `judge` and the findings in the imported days, or all of it as one JSON document."""
    if as_json:
        document = summary.as_json()
        if judge is not None:
            document["judged"] = judge()
        document["history"] = find_drift(workspace, target).as_json()
        _print_document(document)
        return
    _print_summary(summary, workspace.settings.database)  # first, because judging and checking may take a while
    outcome = None if judge is None else judge()
    if outcome is not None:
        out.say(describe_outcome(outcome))
    show_checks(workspace, find_drift(workspace, target))


def find_drift(workspace: Workspace, target: str) -> Drift:
    """Check the imported days of a project, or of `EVERY_PROJECT`, oldest first, and then as of now."""
    with counting("checking days") as bar:
        histories = check_history(workspace, target, bar)
    return Drift(histories, check_projects(workspace, [target] if target else [history.project for history in histories]))


def show_drift(workspace: Workspace, drift: Drift) -> None:
    """Print the drift that the checks found in the projects of the import."""
    for line in (*drift_lines(drift), *format_commands(program_name(), incident_steps(drift, workspace.settings.database))):
        out.say(line)


def show_findings(workspace: Workspace, drift: Drift) -> None:
    """Print the findings in the project of the import, including drift."""
    for part in import_findings(workspace, drift, program_name()):
        # A wrapped line cannot be copied.
        out.print(part, markup=False, soft_wrap=isinstance(part, str))
