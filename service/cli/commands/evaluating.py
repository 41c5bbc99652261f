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
from audit.evaluation.cases import Case, LoadedProfile, Plan, TrustAtLeast, load_case, load_profile, plans
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
from service.cli.evaluation_client import EvaluationClient, Terms, token_of_environment
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
from streams.finished_sessions import MOST, Wanted
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
"""The advice if a server has the database: have the server evaluate with its own judge."""


@dataclass(frozen=True, slots=True)
class CostConsent:
    """The consent to the cost: asked for, given with --yes, or not needed."""

    dry_run: bool
    yes: bool
    as_json: bool
    is_capped: bool
    """Each evaluation has a cap."""

    def given(self, prepared: Prepared) -> bool:
        """Show the estimate and, if it may cost anything, ask for consent. SettingsError if nobody can be asked."""
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
        float | None, typer.Option("--fail-under", min=LOWEST, max=HIGHEST, help="Fail if a score is below this.")
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
    cases, loaded = load_cases(case), load_profile(profile)
    warn(warnings_of(cases))
    wanted = _session_filter(session, connection, tag, project, since, limit)
    plans = select_plans(loaded, judge_run, profile)
    settings, terms = settings_of(database, policy), Terms(cases, loaded, plans, wanted, retry_failed)
    if folder is not None and not dry_run:
        make_folder(folder)  # check this before anything is paid
    agreement = CostConsent(dry_run, yes, as_json, is_capped=all(plan.cost_cap_usd is not None for plan in plans))
    if server is None:
        evaluated = _evaluate_locally(settings, terms, agreement)
    else:
        evaluated = _evaluate_on_server(terms, agreement, server, insecure=insecure)
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
) -> Wanted:
    if limit > MOST:
        raise SettingsError(f"--limit {limit}: at most {MOST} sessions are evaluated at once", hint="Choose fewer by --since.")
    if connection is not None and not sessions:
        raise SettingsError(
            "--connection needs --session", hint="Name the sessions, or choose them by --tag, --project or --since."
        )
    prefix = "" if connection is None else f"{connection}/"
    return Wanted(
        sessions=[f"{prefix}{session_id}" for session_id in sessions or ()],
        tags=list(tags or ()),
        project=project,
        since=since_of(since),
        limit=limit,
    )


def _evaluate_locally(settings: Settings, terms: Terms, agreement: CostConsent) -> Sequence[Evaluated] | None:
    """Evaluate in this process, over the database that the settings name; None if the cost was declined."""
    with open_workspace(settings, writes=True, exclusive_hint=USE_SERVER_HINT) as workspace:
        require_known(workspace, terms.wanted.project)
        catch_up(workspace)
        judge = describe_judge(settings, workspace.policy)
        prepared = prepare(
            workspace.store,
            workspace.policy,
            terms.cases,
            terms.plans,
            terms.profile.system_prompt,
            terms.wanted,
            workspace.now(),
            retry_failed=terms.retry_failed,
            takes_simulated=judge.name != LIVE,
        )
        if not prepared.sessions:
            raise InputError("no finished session matches", hint="`driftline runs` lists those that have ended.")
        if prepared.estimate.calls or prepared.estimate.not_asked:
            check_judges_configured(terms.plans, workspace.policy, judge.address)
        if prepared.estimate.calls:
            report_judge(judge, dry_run=agreement.dry_run)
        if not agreement.given(prepared):
            return None
        try:
            with show_progress() as tell:
                return make_evaluations(workspace, settings, prepared, tell)
        except (KeyboardInterrupt, StoppedError):
            err.say("stopped; run the same command to continue")
            leave_interrupted()


def _evaluate_on_server(terms: Terms, agreement: CostConsent, server: str, *, insecure: bool) -> Sequence[Evaluated] | None:
    """Have a server evaluate over its own database; None if the cost was declined."""
    with closing(EvaluationClient(server, token_of_environment(), insecure=insecure)) as client:
        if not agreement.given(client.estimate(terms)):
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
    """Load cases from files and folders in the order of names; InputError if two have one id or there is none."""
    files = [file for path in paths for file in (find_files_below(path, CASE_FILES) if path.is_dir() else [path])]
    files_by_id: dict[str, Path] = {}
    cases = []
    for file in dict.fromkeys(files):
        case = load_case(file)
        if case.case_id in files_by_id:
            raise InputError(
                f"{file}: case_id: {case.case_id} is the id of {files_by_id[case.case_id]}, too",
                hint="Give each case its own id.",
            )
        files_by_id[case.case_id] = file
        cases.append(case)
    return cases


def warnings_of(cases: Sequence[Case]) -> list[str]:
    """Return a sentence for each check of the cases that no run can fail."""
    return [
        f"case {case.case_id}: {describe_useless_gate('trust_at_least', check.trust)}"
        for case in cases
        for check in case.deterministic_checks
        if isinstance(check, TrustAtLeast) and check.trust <= LOWEST_TRUST
    ]


def select_plans(loaded: LoadedProfile, judge_runs: Sequence[str] | None, profile: Path) -> list[Plan]:
    """Return the requested judge runs; SettingsError names the ones in the profile."""
    every = {plan.judge_run_id: plan for plan in plans(loaded.profile)}
    for name in judge_runs or ():
        if name not in every:
            raise SettingsError(f"--judge-run {name}: {profile} has no such judge run", hint=f"It has {', '.join(every)}.")
    return [every[name] for name in dict.fromkeys(judge_runs or every)]


def describe_estimate(prepared: Prepared, *, is_capped: bool) -> str:
    """Return an estimate for people; `is_capped`: each evaluation has a cap."""
    estimate = prepared.estimate
    parts = [
        f"{counted(prepared.sessions, 'session')}: {counted(estimate.evaluations, 'evaluation')} to make, {estimate.reused} reused"
    ]
    if estimate.taken_up:
        parts.append(f"{estimate.taken_up} of them asked for before, by a command that did not come to its end")
    if estimate.calls:
        known_cost = f"and {estimate.expected_usd:.4f} USD, {estimate.at_most_usd:.4f} USD at most"
        parts.append(
            f"about {counted(estimate.calls, 'call')} {known_cost if _is_priced(estimate) else 'at a cost that is not known'}"
        )
        parts.append("the cap of each evaluation holds" if is_capped else "cost_cap_usd is null: nothing bounds the cost")
    else:
        parts.append("no judge is asked")
    if estimate.left_over and estimate.evaluations:
        left = counted(estimate.left_over, "evaluation")
        parts.append(
            f"{left} that an earlier command asked for and did not see made will be made, too, each within the cap that it was asked for with"
        )
    if estimate.answered:
        parts.append(f"{counted(estimate.answered, 'question')} answered before")
    if 0 < estimate.unpriced < estimate.calls:
        parts.append(f"the cost of {estimate.unpriced} is not known and not among that")
    if estimate.not_asked:
        parts.append(
            f"{counted(estimate.not_asked, 'question')} will not be asked: only recorded answers count, no price is known, "
            "or the cap leaves no room"
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
