"""`driftline import exchanges`: tables of exchanges, exports of other programs, and our own export."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from audit.policy import Policy
from audit.redaction import Redactor
from schemas.errors import InputError
from schemas.records import Exchange
from service.cli.commands.option_groups import with_option_group
from service.cli.commands.options import clock_of, print_json
from service.cli.commands.records.import_results import (
    REFUSED,
    Filing,
    confirm_paid,
    file_progress,
    find_drift,
    show,
    show_drift,
)
from service.cli.commands.records.rejudging import (
    expected_in_words,
    judge_of,
    judge_unscored,
    outcome_in_words,
    say_who_judges,
)
from service.cli.entry.exit_codes import fails_when, leave
from service.cli.exchange_views import exchange_document, exchange_view
from service.cli.progress import working
from service.cli.terminal import err, out, print_text, warn_skipped
from service.setup.server_link import Judged
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import Clock, Workspace
from service.text.plain import counted, plain
from service.write.import_files import Source, exchange_source, exchanges_in, first_exchanges, looked_at
from service.write.importing import Importer, begin_history
from streams.judging.rejudging import estimate_bulk
from streams.sources.exchange_files.mapping import load_mapping, mapping_text
from streams.sources.exchange_files.profiling import FileProfile, Layout
from streams.sources.exchange_files.reading import Labels
from streams.sources.source import ReadingContext
from streams.watch.history import EVERY_PROJECT

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
            workspace.server.call("rejudge", Judged, project, None, 0)  # returns when the judge has no work left
    if outcome is not None and not as_json:
        out.say(outcome_in_words(outcome))
    return {"judged": outcome}


def _save(path: Path, looked: Source, redactor: Redactor) -> None:
    """Write the proposed mapping of the first table. InputError if there is no table, or if the file exists."""
    table = next((one for one in looked.looks.values() if not (one.own_table or one.export)), None)
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
        told = [f"row {fault.line}: {context.redactor.redact(fault.detail)[0]}" for fault in faults]
        if as_json:
            print_json(_document(first, layout, exchanges, told))
            continue
        out.print(exchange_view(exchanges))
        for words in told[:_FAULTS]:
            err.say(f"{plain(path)}: {plain(words, 400)}: would be set aside")


def _say_format(first: FileProfile) -> None:
    known = first.export.name if first.export else "Driftline's export" if first.own_table else ""
    out.say(f"{plain(first.path)}: {first.form.value}{f', {known}: no mapping is needed' if known else ''}")
    if not known:
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


ESTIMATED = 10_000
"""Maximum number of exchanges whose cost is estimated before an import; more would keep people waiting."""
_FAULTS = 10
"""Faulty rows that a dry run names for each file."""
