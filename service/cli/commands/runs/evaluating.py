"""`driftline evaluate`: finished sessions are held against test cases and judged, after a word on what that costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from audit.evaluation.cases.case_files import load_profile
from audit.evaluation.dimensions import HIGHEST, LOWEST
from audit.evaluation.results.report import Evaluated, Report, report_of
from schemas.errors import InputError, SettingsError
from service.cli.commands.options import Database, PolicyFile, moment_of, print_json, print_text, settings_of
from service.cli.terminal import counted, err, out, warn
from service.evaluations.chart import require_charts, write_chart
from service.evaluations.client import EvaluationClient, Terms, token_of_environment
from service.evaluations.evaluating import catch_up
from service.evaluations.evaluating import evaluate as make_evaluations
from service.evaluations.evaluation_files import readable_json, write_files
from service.evaluations.inputs import chosen_plans, load_cases, warnings_of
from service.evaluations.output_tables import evaluation_view
from service.evaluations.wording import estimate_document, estimate_in_words, telling
from service.judge_models import refuse_unconfigured
from service.judge_setup import LIVE, NAME_A_JUDGE, NONE, who_judges
from service.known_projects import require_known
from service.reports.result_files import make_folder
from service.settings import Settings
from service.workspace import open_workspace
from streams.evaluations.preparing import Prepared, prepare
from streams.evaluations.selecting import MOST, Wanted
from streams.judging.call_budget import StoppedError

Sessions = Annotated[list[str] | None, typer.Option("--session", metavar="ID", help="This finished session; may be repeated.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Sessions with this tag; may be repeated.")]
OfConnection = Annotated[
    str | None, typer.Option("--connection", metavar="NAME", help="The connection of the sessions that are named.")
]
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="Have a server do it; its token is in DRIFTLINE_TOKEN.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Send the token over http:// to another machine, where others could read it.")
]


class Output(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


ASK_IT = "A server has the database: evaluate with --server and its address, or stop it."
"""What to do where a server has the database: it makes the evaluations, by its own judge."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether to go on after what is known of the cost."""

    dry_run: bool
    yes: bool
    output: Output
    is_capped: bool
    """Each evaluation has a cap."""

    def given(self, prepared: Prepared) -> bool:
        """Say what the evaluations would take, and ask where that may cost anything. SettingsError where no question can be asked."""
        if self.dry_run and self.output is Output.JSON:
            print_json(estimate_document(prepared))
            return False
        err.say(estimate_in_words(prepared, is_capped=self.is_capped))
        if self.dry_run:
            return False
        if prepared.estimate.calls and not self.yes:
            if not sys.stdin.isatty():
                raise SettingsError(
                    "cannot ask whether to pay: there is no terminal",
                    hint="Say --yes, or --dry-run to see the cost only.",
                )
            typer.confirm("Ask the judge?", abort=True, err=True)
        return True


def evaluate(
    case: Annotated[list[Path], typer.Option("--case", metavar="FILE", help="A case, or a folder of them; may be repeated.")],
    profile: Annotated[Path, typer.Option("--profile", metavar="FILE", help="Profile: judges, repetitions, thresholds.")],
    session: Sessions = None,
    connection: OfConnection = None,
    tag: Tags = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Only sessions of this project.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only sessions that ended since then.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST, help="At most so many sessions, the newest first.")] = 100,
    judge_run: Annotated[
        list[str] | None, typer.Option("--judge-run", metavar="ID", help="Only this judge run of the profile; may be repeated.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Write the results into this folder.")] = None,
    output: Annotated[Output, typer.Option("--output", help="Output format.")] = Output.TABLE,
    chart: Annotated[Path | None, typer.Option("--chart", metavar="FILE.png", help="Draw score against cost.")] = None,
    fail_under: Annotated[
        float | None, typer.Option("--fail-under", min=LOWEST, max=HIGHEST, help="Exit 1 when a score is below this.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask failed questions again, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would take and cost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before paying.")] = False,
    server: Server = None,
    insecure: Insecure = False,
    database: Database = None,
    policy: PolicyFile = None,
) -> None:
    """Evaluate finished sessions against test cases: deterministic checks, and a judge who scores six dimensions.

    Exit 1 when an evaluation has no score or one below --fail-under. Earlier evaluations are reused.
    """
    if server is not None and (database is not None or policy is not None):
        raise SettingsError(
            "--server goes without --db and --policy", hint="The server has a database and a policy of its own."
        )
    if insecure and server is None:
        raise SettingsError("--insecure goes with --server", hint="Without a server no token is sent.")
    cases, loaded = load_cases(case), load_profile(profile)
    warn(warnings_of(cases))
    wanted = _wanted(session, connection, tag, project, since, limit)
    plans = chosen_plans(loaded, judge_run, profile)
    settings, terms = settings_of(database, policy), Terms(cases, loaded, plans, wanted, retry_failed)
    if not dry_run:
        _require(folder, chart)
    agreement = Agreement(dry_run, yes, output, is_capped=all(plan.cost_cap_usd is not None for plan in plans))
    if server is None:
        found = _evaluate_here(settings, terms, agreement)
    else:
        found = _evaluate_there(terms, agreement, server, insecure=insecure)
    if found is None:
        return
    report = report_of(found, fail_under)
    _show(report, output)
    _write(found, report, folder, chart)
    if report.failed or report.below:
        raise typer.Exit(1)


def _require(folder: Path | None, chart: Path | None) -> None:
    """SettingsError where a folder or a chart that is asked for cannot be made: nothing was paid yet."""
    if folder is not None:
        make_folder(folder)
    if chart is not None:
        require_charts(chart)
        make_folder(chart.parent)


def _wanted(
    sessions: Sequence[str] | None,
    connection: str | None,
    tags: Sequence[str] | None,
    project: str | None,
    since: str | None,
    limit: int,
) -> Wanted:
    if connection is not None and not sessions:
        raise SettingsError(
            "--connection goes with --session", hint="Name the sessions, or choose them by --tag, --project or --since."
        )
    prefix = "" if connection is None else f"{connection}/"
    return Wanted(
        sessions=[f"{prefix}{one}" for one in sessions or ()],
        tags=list(tags or ()),
        project=project,
        since=None if since is None else moment_of(since, "--since"),
        limit=limit,
    )


def _evaluate_here(settings: Settings, terms: Terms, agreement: Agreement) -> Sequence[Evaluated] | None:
    """Evaluations made in this process, over the database that the settings name; None where it was agreed to make none."""
    with open_workspace(settings, writes=True, alone=ASK_IT) as workspace:
        require_known(workspace, terms.wanted.project)
        catch_up(workspace)
        judge = who_judges(settings, workspace.policy)
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
            raise InputError("no finished session is like that", hint="`driftline runs` lists those that have ended.")
        if prepared.estimate.calls or prepared.estimate.not_asked:
            refuse_unconfigured(terms.plans, workspace.policy, judge.address)
        if prepared.estimate.calls:
            if judge.name == NONE and not agreement.dry_run:
                raise SettingsError("there is no judge", hint=NAME_A_JUDGE)
            if note := f"there is no judge. {NAME_A_JUDGE}" if judge.name == NONE else judge.note:
                err.say(f"note: {note}", style="yellow")
        if not agreement.given(prepared):
            return None
        try:
            with telling() as tell:
                return make_evaluations(workspace, settings, prepared, tell)
        except (KeyboardInterrupt, StoppedError):
            err.print("stopped; the same command goes on from here", markup=False)
            raise typer.Exit(1) from None


def _evaluate_there(terms: Terms, agreement: Agreement, server: str, *, insecure: bool) -> Sequence[Evaluated] | None:
    """Evaluations made by a server, over the database that it has; None where it was agreed to make none."""
    with closing(EvaluationClient(server, token_of_environment(), insecure=insecure)) as client:
        if not agreement.given(client.estimate(terms)):
            return None
        try:
            with telling() as tell:
                return client.evaluate(terms, tell)
        except KeyboardInterrupt:
            err.print("not waiting any more; the server goes on, and the same command reads what it has made", markup=False)
            raise typer.Exit(1) from None


def _show(report: Report, output: Output) -> None:
    if output is Output.JSON:
        print_text(readable_json(report))
    else:
        out.print(evaluation_view(report, out.width))


def _write(found: Sequence[Evaluated], report: Report, folder: Path | None, chart: Path | None) -> None:
    """The files that are asked for. What is written was paid for, so an error says that nothing is lost."""
    if folder is not None:
        written = write_files(folder, found)
        err.say(f"{counted(len(written), 'result')} written to {folder}")
    if chart is not None:
        write_chart(report, chart)
        err.say(f"chart written to {chart}")
