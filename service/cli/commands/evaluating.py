"""`driftline evaluate`: evaluate finished sessions against test cases, here or on a server, after showing the cost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from audit.diagnosis.diagnosis import LOWEST_TRUST
from audit.evaluation.cases import Case, LoadedProfile, Plan, TrustAtLeast, load_case_file, load_profile, plans
from audit.evaluation.dimensions import HIGHEST, LOWEST
from audit.evaluation.report import Evaluated, Report, report_of
from schemas.errors import InputError, SettingsError
from service.cli.commands.finished_runs import describe_useless_gate
from service.cli.commands.options import (
    AsJson,
    Database,
    DryRun,
    Limit,
    Output,
    OutputFormat,
    PolicyFile,
    Project,
    Since,
    Yes,
    print_json,
    settings_of,
    since_of,
    wants_json,
)
from service.cli.commands.rejudging import report_judge
from service.cli.evaluation_client import EvaluationClient, EvaluationTerms, token_of_environment
from service.cli.evaluation_files import make_folder, readable_json, write_files
from service.cli.evaluation_tables import evaluation_view
from service.cli.exit_codes import agree, fails_when, leave, leave_interrupted
from service.cli.progress import counting
from service.cli.terminal import err, out, print_text, warn
from service.read.known_projects import require_known
from service.setup.judge_setup import LIVE, check_judges_configured, describe_judge
from service.setup.settings import Settings
from service.setup.workspace import open_workspace
from service.text.answers import document
from service.text.formats import counted
from service.write.evaluating import Progress, catch_up, evaluation_estimate
from service.write.evaluating import evaluate as make_evaluations
from service.write.input_files import find_files_below
from streams.evaluations import Estimate, Prepared, prepare
from streams.finished_sessions import MAX_SESSIONS, SessionSelection
from streams.judging.call_budget import StoppedError

Sessions = Annotated[
    list[str] | None, typer.Option("--session", metavar="ID", help="Evaluate this finished session; may be repeated.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only sessions with this tag; may be repeated.")]
OfConnection = Annotated[str | None, typer.Option("--connection", metavar="NAME", help="Connection of the named sessions.")]
Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="Evaluate on this server. The token is read from DRIFTLINE_TOKEN."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow sending the token unencrypted over http:// to another machine.")
]


USE_SERVER_HINT = "A server has the database: use --server with its address, or stop it."


@dataclass(frozen=True, slots=True)
class CostConsent:
    """Shows the cost of evaluations, and asks for consent unless it was given with --yes."""

    dry_run: bool
    yes: bool
    as_json: bool
    is_capped: bool
    """Whether each evaluation has a cap."""

    def obtain(self, prepared: Prepared) -> bool:
        """Show the estimate, ask for consent if the evaluations cost anything, and return whether to go on.

        Raises SettingsError if there is no terminal to ask on.
        """
        if self.dry_run and self.as_json:
            print_json({"sessions": prepared.sessions, **document(evaluation_estimate(prepared.estimate))})
            return False
        err.say(describe_estimate(prepared, is_capped=self.is_capped))
        if self.dry_run:
            return False
        if prepared.estimate.calls and not self.yes:
            if not sys.stdin.isatty():
                raise SettingsError(
                    "cannot confirm the cost: there is no terminal",
                    hint="Use --yes to accept the cost, or --dry-run to see it only.",
                )
            agree("Call the judge?", yes=False)
        return True


@fails_when("an evaluation has no score or a score below --fail-under, or you decline")
def evaluate(
    case: Annotated[
        list[Path], typer.Option("--case", metavar="FILE", help="Case file, or a folder of case files; may be repeated.")
    ],
    profile: Annotated[
        Path, typer.Option("--profile", metavar="FILE", help="Profile file with judges, repetitions and thresholds.")
    ],
    session: Sessions = None,
    connection: OfConnection = None,
    tag: Tags = None,
    project: Project = None,
    since: Since = None,
    limit: Limit = 100,
    judge_run: Annotated[
        list[str] | None, typer.Option("--judge-run", metavar="ID", help="Only this judge run of the profile; may be repeated.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Write the results to this folder.")] = None,
    output: OutputFormat = Output.TABLE,
    fail_under: Annotated[
        float | None,
        typer.Option("--fail-under", metavar="SCORE", min=LOWEST, max=HIGHEST, help="Fail if a score is below this."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Also retry failed judge calls.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    server: Server = None,
    insecure: Insecure = False,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate finished sessions against test cases, with deterministic checks and a judge that scores six dimensions.

    Sessions that ended last are evaluated first. Existing evaluations are reused.
    """
    as_json = wants_json(output, as_json=as_json)
    if server is not None and (database is not None or policy is not None):
        raise SettingsError("--server cannot be used with --db or --policy", hint="The server has its own database and policy.")
    if insecure and server is None:
        raise SettingsError("--insecure needs --server", hint="Without a server no token is sent.")
    cases = load_cases(case)
    loaded_profile = load_profile(profile)
    warn(warnings_of(cases))
    session_filter = _session_filter(session, connection, tag, project, since, limit)
    plans = select_plans(loaded_profile, judge_run, profile)
    terms = EvaluationTerms(cases, loaded_profile, plans, session_filter, retry_failed)
    if folder is not None and not dry_run:
        make_folder(folder)  # a wrong folder is reported before anything is paid
    consent = CostConsent(dry_run, yes, as_json, is_capped=all(plan.cost_cap_usd is not None for plan in plans))
    if server is None:
        evaluated = _evaluate_locally(settings_of(database, policy), terms, consent)
    else:
        evaluated = _evaluate_on_server(terms, consent, server, insecure=insecure)
    if evaluated is None:
        return
    report = report_of(evaluated, fail_under)
    _print_report(report, as_json=as_json)
    if folder is not None:
        err.say(f"{counted(len(write_files(folder, evaluated)), 'result')} written to {folder}")
    leave(failed=bool(report.failed or report.below))


def _session_filter(
    sessions: Sequence[str] | None,
    connection: str | None,
    tags: Sequence[str] | None,
    project: str | None,
    since: str | None,
    limit: int,
) -> SessionSelection:
    if limit > MAX_SESSIONS:
        raise SettingsError(
            f"--limit {limit}: the maximum is {MAX_SESSIONS} sessions", hint="Select fewer sessions with --since."
        )
    if connection is not None and not sessions:
        raise SettingsError(
            "--connection needs --session", hint="Name the sessions, or select them by --tag, --project or --since."
        )
    prefix = "" if connection is None else f"{connection}/"
    return SessionSelection(
        sessions=[f"{prefix}{session_id}" for session_id in sessions or ()],
        tags=list(tags or ()),
        project=project,
        since=since_of(since),
        limit=limit,
    )


def _evaluate_locally(settings: Settings, terms: EvaluationTerms, consent: CostConsent) -> Sequence[Evaluated] | None:
    """Evaluate in this process, over the database in the settings. Return None if the cost was not accepted."""
    with open_workspace(settings, writes=True, exclusive_hint=USE_SERVER_HINT) as workspace:
        require_known(workspace, terms.selection.project)
        catch_up(workspace)
        names = [plan.judge.model for plan in terms.plans if plan.judge.type != "recorded"]
        judge = describe_judge(settings, workspace.policy, names)
        prepared = prepare(
            workspace.store,
            workspace.policy,
            terms.cases,
            terms.plans,
            terms.profile.system_prompt,
            terms.selection,
            workspace.now(),
            retry_failed=terms.retry_failed,
            takes_simulated=judge.name != LIVE,
        )
        if not prepared.sessions:
            raise InputError("no finished session matches", hint="`driftline runs` lists the finished sessions.")
        if prepared.estimate.calls or prepared.estimate.not_asked:
            check_judges_configured(terms.plans, workspace.policy, judge.address)
        if prepared.estimate.calls:
            report_judge(judge, dry_run=consent.dry_run)
        if not consent.obtain(prepared):
            return None
        try:
            with show_progress() as tell:
                return make_evaluations(workspace, settings, prepared, tell)
        except (KeyboardInterrupt, StoppedError):
            err.say("stopped; run the same command to continue")
            leave_interrupted()


def _evaluate_on_server(
    terms: EvaluationTerms, consent: CostConsent, server: str, *, insecure: bool
) -> Sequence[Evaluated] | None:
    """Have a server evaluate over its own database. Return None if the cost was not accepted."""
    with closing(EvaluationClient(server, token_of_environment(), insecure=insecure)) as client:
        if not consent.obtain(client.estimate(terms)):
            return None
        try:
            with show_progress() as tell:
                return client.evaluate(terms, tell)
        except KeyboardInterrupt:
            err.say("stopped waiting; the server continues, and the same command shows its results")
            leave_interrupted()


def _print_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_text(readable_json(report))
    else:
        out.print(evaluation_view(report, out.width))


CASE_FILES = ("*.yaml", "*.yml")
"""File names of cases in a folder."""


def load_cases(paths: Sequence[Path]) -> list[Case]:
    """Load cases from files and folders, in the order of the paths. Raises InputError if there is none, or if two have the same id."""
    files: dict[Path, None] = {}
    for path in paths:
        files |= dict.fromkeys(find_files_below(path, CASE_FILES) if path.is_dir() else [path])
    files_by_id: dict[str, Path] = {}
    cases = []
    for file in files:
        for case in load_case_file(file):
            if case.case_id in files_by_id:
                raise InputError(
                    f"{file}: case_id: {case.case_id} is also the id of {files_by_id[case.case_id]}",
                    hint="Give each case its own id.",
                )
            files_by_id[case.case_id] = file
            cases.append(case)
    return cases


def warnings_of(cases: Sequence[Case]) -> list[str]:
    """Return a warning for each check that no run can fail."""
    return [
        f"case {case.case_id}: {describe_useless_gate('trust_at_least', check.trust)}"
        for case in cases
        for check in case.deterministic_checks
        if isinstance(check, TrustAtLeast) and check.trust <= LOWEST_TRUST
    ]


def select_plans(loaded: LoadedProfile, judge_runs: Sequence[str] | None, profile: Path) -> list[Plan]:
    """Return the requested judge runs, by default all. Raises SettingsError for an unknown one."""
    plans_by_id = {plan.judge_run_id: plan for plan in plans(loaded.profile)}
    for name in judge_runs or ():
        if name not in plans_by_id:
            raise SettingsError(
                f"--judge-run {name}: {profile} does not define this judge run", hint=f"It defines {', '.join(plans_by_id)}."
            )
    return [plans_by_id[name] for name in dict.fromkeys(judge_runs or plans_by_id)]


def describe_estimate(prepared: Prepared, *, is_capped: bool) -> str:
    """Return an estimate for people. `is_capped` tells whether each evaluation has a cap."""
    estimate = prepared.estimate
    parts = [
        f"{counted(prepared.sessions, 'session')}: {counted(estimate.evaluations, 'evaluation')} to make, {estimate.reused} reused"
    ]
    if estimate.taken_up:
        parts.append(f"{estimate.taken_up} of them were requested by an earlier command that was interrupted")
    if estimate.calls:
        cost = "at an unknown cost"
        if _is_priced(estimate):
            cost = f"and {estimate.expected_usd:.4f} USD, {estimate.at_most_usd:.4f} USD at most"
        parts.append(f"about {counted(estimate.calls, 'call')} {cost}")
        parts.append("the cap of each evaluation applies" if is_capped else "cost_cap_usd is null, so the cost has no limit")
    else:
        parts.append("no judge is called")
    if estimate.left_over and estimate.evaluations:
        left_over = counted(estimate.left_over, "more evaluation")
        parts.append(f"{left_over} that an interrupted command requested will be made as well, within the caps of that request")
    if estimate.answered:
        parts.append(f"{counted(estimate.answered, 'question')} already answered")
    if 0 < estimate.unpriced < estimate.calls:
        parts.append(f"the cost of {estimate.unpriced} is unknown and not included")
    if estimate.not_asked:
        parts.append(
            f"{counted(estimate.not_asked, 'question')} will not be asked: only recorded answers count, no price is known, "
            "or the cap is used up"
        )
    return "; ".join(parts)


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[Progress], None]]:
    """Show the progress of evaluations while the context is open."""
    with counting("evaluating") as bar:
        yield lambda now: bar(now.done, now.total, _describe_calls(now))


def _describe_calls(progress: Progress) -> str:
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{counted(progress.answered, 'answer')}{failed}, {progress.spent_usd:.4f} USD"


def _is_priced(estimate: Estimate) -> bool:
    return not estimate.calls or estimate.unpriced < estimate.calls
