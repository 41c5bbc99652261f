"""Commands on finished runs: show one, export them, gate a build on them, end a session manually."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from audit.diagnosis.diagnosis import LOWEST_TRUST
from schemas.errors import InputError, SettingsError, StoreError
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    Project,
    clock_of,
    print_json,
    settings_of,
    show_rows,
)
from service.cli.commands.runs.listing import of_project, opened_to_show
from service.cli.terminal import counted, out, plain, warn
from service.cli.views import diagnosis_view, wrap_table
from service.documents.run_rows import runs_of
from service.documents.runs import export_runs, run_documents, wrap_rows
from service.evaluations.gate import READINESS, Gate, failures
from service.imports.session_files import FaultReport, diagnose_files
from service.known_projects import require_known
from service.sessions import finalize_session
from service.workspace import CATCH_UP, open_workspace, stages_behind


def finalize(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")],
    connection: Annotated[str | None, typer.Option("--connection", metavar="NAME", help="Only in this connection.")] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
) -> None:
    """End a session manually and diagnose it."""
    with open_workspace(settings_of(database, policy), now=clock_of(as_of), writes=True) as workspace:
        finalize_session(workspace, session, connection)
        for run, document in run_documents(workspace.store, session):
            out.print(diagnosis_view(document, run))


def run(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session, or of the run (run_001) in --project.")],
    project: Project = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: verdict, chain of causes, evidence, remedies."""
    with opened_to_show(database, project) as workspace:
        found = list(run_documents(workspace.store, session, project))
    if not found:
        raise InputError(f"session {plain(session)!r} has no run", hint="`driftline runs` lists them.")
    for row, document in found:
        if as_json:
            print_json({"run_id": row["run_id"], "project": row["project"], **document}, exact=True)
        else:
            out.print(diagnosis_view(document, row))


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write into.")],
    project: Project = None,
    database: Database = None,
) -> None:
    """Write every run as files: runs/run_001.json, runs/run_001/session.json and runs/run_001/diagnosis.json."""
    with opened_to_show(database, project) as workspace:
        written = export_runs(workspace.store, folder, project)
    if not written:
        raise InputError("there are no runs to export", hint="`driftline runs` lists them.")
    out.print(f"{counted(written, 'run')} written to {folder}", markup=False)


def check(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE…]", help="Diagnose these files instead of stored runs.")
    ] = None,
    min_readiness: Annotated[
        str, typer.Option(metavar="LEVEL", help=f"Lowest readiness that passes: {', '.join(READINESS)}.")
    ] = READINESS[0],
    min_trust: Annotated[
        int,
        typer.Option(
            min=0,
            max=100,
            help=f"Lowest trust score that passes. No run has less than {LOWEST_TRUST}, so a lower value fails none.",
        ),
    ] = 0,
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="ID", help="Only this session; may be repeated.")
    ] = None,
    project: Project = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Gate a build: exit 1 if a run is below the given readiness or trust, 0 if none is.

    Gate on readiness: a critical failure makes a run unsafe_for_production while its trust may still be 90. A run without evidence passes no gate. Nothing to check is an error (exit 2).
    """
    gate, report = Gate.of(min_trust, min_readiness), FaultReport()
    if files:
        if project is not None:
            raise SettingsError("--project cannot be used with files", hint="It chooses runs of the database.")
        verdicts = list(gate.verdicts(diagnose_files(files, report), session))
    else:
        with open_workspace(settings_of(database)) as workspace:
            require_known(workspace, project)
            if lag := stages_behind(workspace.store):
                raise StoreError(lag, hint=CATCH_UP)
            verdicts = list(gate.verdicts(runs_of(workspace.store, project), session))
    if not verdicts:
        raise InputError(f"there are no runs{of_project(project)} to check", hint="Import sessions first, or name files.")
    failed = failures(verdicts)
    if as_json:
        print_json({"passed": not failed and not report.count, "checked": len(verdicts), "failed": failed})
    else:
        for verdict in failed:
            out.print(f"FAIL {plain(verdict['session_id'])}: {'; '.join(verdict['reasons'])}", markup=False)
        out.print(f"{len(verdicts) - len(failed)} of {len(verdicts)} runs pass")
    warn(gate.warnings)
    raise typer.Exit(1 if failed or report.count else 0)


def wrap_quality(
    project: Project = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of sessions, newest first.")] = 50,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how well sessions were wrapped up: version, changelog, learnings, next session, commit."""
    with open_workspace(settings_of(database, policy)) as workspace:
        require_known(workspace, project)
        rows = wrap_rows(workspace, project, limit)
    show_rows(rows, wrap_table, as_json=as_json, none="no exchanges yet")
