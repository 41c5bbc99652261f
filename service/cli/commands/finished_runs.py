"""Commands on finished runs: `driftline run`, `export-runs`, `finalize`, `wrap-quality`, and `check`, which gates a build on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from analytics.store.store import Store
from audit.diagnosis.diagnosis import LOWEST_TRUST, READY_TRUST, SAFE_TRUST
from schemas.errors import InputError, SettingsError, StoreError
from service.cli.commands.diagnosing import FaultReport, diagnose_files
from service.cli.commands.listing import describe_filters, of_project
from service.cli.commands.options import (
    AsJson,
    AsOf,
    Database,
    PolicyFile,
    Project,
    ViewOptions,
    clock_of,
    print_json,
    settings_of,
    with_option_group,
)
from service.cli.completion import completed
from service.cli.exit_codes import fails_when, leave
from service.cli.list_views import ListView, open_for_display, printed
from service.cli.progress import counting
from service.cli.terminal import err, out, warn
from service.cli.views import WRAP_KEYS, diagnosis_view, findings_view, wrap_table
from service.read.known_projects import require_known
from service.read.run_diagnoses import diagnosed, export_runs, runs_named
from service.read.runs import Run, runs_of
from service.read.scores import WrapUp, expecting_projects, wrap_ups
from service.read.sessions import run_findings
from service.setup.workspace import CATCH_UP, Workspace, describe_lag, open_workspace
from service.text.answers import Document, document
from service.text.formats import counted, plain
from service.write.ending_sessions import finalize_session

UNSAFE = "unsafe_for_production"
READINESS = (UNSAFE, "review_recommended", "ready_for_runtime")
"""Readiness levels a gate can require, lowest first. A run without evidence has none of them."""
DEFAULT_READINESS = "review_recommended"
"""The level that passes by default: every run that is not unsafe for production."""
Verdict = dict[str, Any]


def run(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Id of the session, or of a run in --project, for example run_001.")
    ],
    project: Project = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: verdict, chain of causes, evidence, remedies, and the turns of each cause."""
    with open_for_display(database, project) as workspace:
        runs = list(runs_named(workspace.store, session, project))
        if not runs:
            raise InputError(f"session {plain(session)!r} has no run", hint="`driftline runs` lists the runs.")
        _show_runs(workspace.store, runs, as_json=as_json)


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if missing.")],
    project: Project = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Write every run as files: runs/run_001.json, runs/run_001/session.json and runs/run_001/diagnosis.json."""
    with open_for_display(database, project) as workspace, counting("exporting runs") as bar:
        written = export_runs(workspace.store, folder, project, bar)
    if not written:
        raise InputError("there are no runs to export", hint="`driftline runs` lists the runs.")
    if as_json:
        print_json({"folder": str(folder), "runs": written})
    else:
        out.say(f"{counted(written, 'run')} written to {folder}")


def finalize(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")],
    connection: Annotated[str | None, typer.Option("--connection", metavar="NAME", help="Only in this connection.")] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """End a session manually and diagnose it."""
    with open_workspace(settings_of(database, policy), now=clock_of(as_of), writes=True) as workspace:
        finalize_session(workspace, session, connection)
        _show_runs(workspace.store, runs_named(workspace.store, session), as_json=as_json)


@with_option_group
def list_wrap_ups(project: Project = None, policy: PolicyFile = None, *, options: ViewOptions) -> ListView[WrapUp]:
    """Show how well sessions were wrapped up, newest first: the steps of the wrap protocol that are missing at their ends."""

    def describe_none(workspace: Workspace) -> str:
        if expecting_projects(workspace.policy, project) == []:
            return (
                "the policy asks for none: set wrapQualityScoring for a project, or a methodology with wrapUp (--policy FILE)"
            )
        return ""

    return ListView(
        read=lambda workspace, first: wrap_ups(
            workspace.store.cursor(), workspace.policy, project, options.limit + 1, between=(first, options.end)
        ),
        table=wrap_table,
        keys=WRAP_KEYS,
        identify=lambda session: session.place,
        options=options,
        none=f"no wrap-ups{of_project(project)}{describe_filters(options)}",
        describe_none=describe_none,
        project=project,
        time_of=lambda session: session.last_timestamp,
        is_detailed=True,
        policy=policy,
    )


wrap_quality = printed(list_wrap_ups)


@fails_when("a run is below the required readiness or trust, or a file cannot be read completely")
def check(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Diagnose these files instead of stored runs.")
    ] = None,
    min_readiness: Annotated[
        str,
        typer.Option(
            metavar="LEVEL", help=f"Lowest readiness that passes: {', '.join(READINESS)}.", autocompletion=completed(READINESS)
        ),
    ] = DEFAULT_READINESS,
    min_trust: Annotated[
        int,
        typer.Option(
            metavar="SCORE",
            min=0,
            max=100,
            help=f"Lowest trust score that passes. The trust of a run is never below {LOWEST_TRUST}.",
        ),
    ] = 0,
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="ID", help="Only this session; may be repeated.")
    ] = None,
    project: Project = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Gate a build on the readiness or trust of runs.

    By default, a run fails if it is unsafe_for_production. One critical failure makes a run unsafe, even if its trust is 90.

    Runs without runtime events are skipped unless --session names them; then they fail for lack of evidence. If there is no run to
    check, the exit code is 2.
    """
    gate = Gate.of(min_trust, min_readiness)
    report = FaultReport()
    skipped = 0
    if files:
        if project is not None:
            raise SettingsError("--project cannot be used with files", hint="It selects runs of the database.")
        verdicts = list(gate.verdicts(diagnose_files(files, report), session))
    else:
        runs, skipped = _select_runs(database, project, session)
        verdicts = list(gate.verdicts(runs, session))
    if skipped:
        note = f"note: {counted(skipped, 'run')} skipped: only exchanges were received, no runtime events"
        err.say(note, style="yellow")
    if not verdicts:
        raise InputError(
            f"there are no runs{of_project(project)} to check",
            hint="Import runtime events first, or name files." if skipped else "Import sessions first, or name files.",
        )
    failed = failures(verdicts)
    if as_json:
        print_json(
            {
                "passed": not failed and not report.count,
                "checked": len(verdicts),
                "failed": failed,
                "requirement": gate.requirement,
            }
        )
    else:
        for verdict in failed:
            out.print(f"FAIL {plain(verdict['session_id'])}: {'; '.join(verdict['reasons'])}", markup=False)
        out.print(f"{len(verdicts) - len(failed)} of {len(verdicts)} runs pass")
        if failed:
            out.say(gate.requirement)
    warn(gate.warnings)
    leave(failed=bool(failed or report.count))


@dataclass(frozen=True)
class Gate:
    """The requirements for a run: a readiness level, and a trust score from 0 to 100."""

    min_trust: int
    min_readiness: str

    @classmethod
    def of(cls, min_trust: int, min_readiness: str) -> Gate:
        """Return a gate. Raises SettingsError for an unknown level."""
        if min_readiness not in READINESS:
            raise SettingsError(
                f"--min-readiness: {min_readiness!r} is not a level", hint=f"Use one of {', '.join(READINESS)}."
            )
        return cls(min_trust, min_readiness)

    @property
    def warnings(self) -> list[str]:
        """Return a sentence for each requirement that can never fail a run."""
        warnings = []
        if 0 < self.min_trust <= LOWEST_TRUST:
            warnings.append(describe_useless_gate("--min-trust", self.min_trust))
        if self.min_readiness == UNSAFE and self.min_trust <= LOWEST_TRUST:
            warnings.append(
                f"--min-readiness {UNSAFE} fails no run with runtime events. Require {DEFAULT_READINESS}, the default, or more."
            )
        return warnings

    @property
    def requirement(self) -> str:
        """Describe the requirements that a run must meet."""
        levels = {
            UNSAFE: "runtime events",
            DEFAULT_READINESS: f"no critical failure and a trust of {max(SAFE_TRUST, self.min_trust)} or more",
            READINESS[-1]: f"no critical or high failure and a trust of {max(READY_TRUST, self.min_trust)} or more",
        }
        trust = f" and a trust of {self.min_trust} or more" if self.min_readiness == UNSAFE and self.min_trust else ""
        return f"A run passes with readiness {self.min_readiness} or better: {levels[self.min_readiness]}{trust}."

    def judge(self, run: Mapping[str, Any]) -> Verdict:
        """Return the run's session, level and trust, and every reason why it fails."""
        trust = run["trust_score"]
        level = run["readiness_level"]
        reasons = []
        if trust is None or level not in READINESS:
            reasons.append("no evidence: the session has no runtime events")
        else:
            if READINESS.index(level) < READINESS.index(self.min_readiness):
                reasons.append(f"{level} is below {self.min_readiness}{_critical_note(run)}")
            if trust < self.min_trust:
                reasons.append(f"trust {trust} is below {self.min_trust}")
        return {"session_id": run["session_id"], "readiness_level": level, "trust_score": trust, "reasons": reasons}

    def verdicts(self, runs: Iterable[Mapping[str, Any]], sessions: Sequence[str] | None) -> Iterator[Verdict]:
        """Yield a verdict for each run, or for each run of the named sessions.

        Raises InputError if a named session has no run.
        """
        missing = set(sessions or ())
        for run in runs:
            if not sessions or run["session_id"] in sessions:
                missing.discard(run["session_id"])
                yield self.judge(run)
        if missing:
            raise InputError(f"no runs of session {', '.join(sorted(missing))}", hint="`driftline runs` lists the runs.")


def failures(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that have a reason to fail."""
    return [verdict for verdict in verdicts if verdict["reasons"]]


def describe_useless_gate(name: str, min_trust: int) -> str:
    """Return a warning that the trust gate `name` can never fail a run, because every run reaches `min_trust`."""
    return (
        f"{name} {min_trust} never fails a run: the trust of a run is never below {LOWEST_TRUST}. "
        f"Require more than {LOWEST_TRUST}, or gate on readiness."
    )


def _show_runs(store: Store, runs: Iterable[Run], *, as_json: bool) -> None:
    for run in runs:
        findings = run_findings(store.cursor(), run)
        diagnosed_run = diagnosed(store.cursor(), run, findings)
        if as_json:
            print_json(document(diagnosed_run), exact=True)
        else:
            views = [diagnosis_view(diagnosed_run.diagnosis, run)]
            if findings.findings:
                views.append(findings_view(findings))
            out.print(*views)


def _select_runs(database: Path | None, project: str | None, sessions: list[str] | None) -> tuple[list[Document], int]:
    """Return the runs to check, and the number of runs skipped for lack of events. Runs of named sessions are never skipped."""
    with open_workspace(settings_of(database)) as workspace:
        require_known(workspace, project)
        lag = describe_lag(workspace.store)
        if lag:
            raise StoreError(lag, hint=CATCH_UP)
        runs = runs_of(workspace.store, project)
    # A run of exchanges only has no evidence, regardless of what the build changed.
    checked = runs if sessions else [run for run in runs if not run.exchanges_only]
    return [msgspec.structs.asdict(run) for run in checked], len(runs) - len(checked)


def _critical_note(run: Mapping[str, Any]) -> str:
    """List the critical failures of a run, stored or diagnosed; empty without any."""
    causes = run.get("failure_causes") or [{"type": run.get("primary_failure_type"), "severity": run.get("primary_severity")}]
    types = [cause["type"] for cause in causes if cause["severity"] == "critical"]
    return f" (critical: {', '.join(types)})" if types else ""
