"""`driftline cases` and `driftline gate`: freeze an incident as cases, and compare a build's answers with the level before it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from audit.cost import usd_of
from audit.evaluation.cases import load_frozen_cases
from audit.evaluation.gate import ERROR, GateResult, compare
from schemas.errors import InputError, SettingsError
from schemas.records import Score
from service.cli.commands.incidents import IncidentId, require_incident
from service.cli.commands.options import AsJson, ChosenJudge, Database, DryRun, PolicyFile, Yes, print_json, settings_of
from service.cli.evaluation_files import readable_json, write_file
from service.cli.exit_codes import agree, fails_when, leave
from service.cli.gate_reports import gate_junit, gate_markdown, gate_view
from service.cli.list_views import open_for_display
from service.cli.progress import counting
from service.cli.terminal import err, out, print_text
from service.read.cases import DEFAULT_MOVED, MAX_CASES, freeze_incident, write_cases
from service.setup.judge_setup import LIVE, describe_judge
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from service.text.formats import counted
from service.write.gating import Gate, JudgementFile, judge_answers, list_judges, read_results
from streams.replay.rescoring import Estimate

cases_app = typer.Typer(no_args_is_help=True, help="Freeze an incident as test cases.")
DEFAULT_CAP = 1.0
"""Most USD that one gate may spend."""
MarkdownFile = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write a summary for a pull request to this file.")
]


@cases_app.callback()
def _group() -> None:
    """Freeze an incident as test cases."""


@cases_app.command("from-incident")
def freeze(
    incident: IncidentId,
    file: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the cases to this file; by default to the output.")
    ] = None,
    moved: Annotated[
        int, typer.Option("--moved", metavar="N", min=1, max=MAX_CASES, help="Most exchanges of the incident.")
    ] = DEFAULT_MOVED,
    healthy: Annotated[
        int | None,
        typer.Option("--healthy", metavar="N", min=0, max=MAX_CASES, help="Healthy exchanges from before; by default as many."),
    ] = None,
    database: Database = None,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Freeze the exchanges that moved an incident most, and healthy ones from before, as cases for `driftline gate`.

    A case has the messages before the answer, and the recorded answer with its tool calls and scores. The levels before the change and the
    checks of all cases are in the same file. Texts are redacted as stored.
    """
    with open_for_display(database, policy=policy) as workspace:
        record = require_incident(workspace, incident)
        with counting("freezing"):
            frozen = freeze_incident(workspace.store.cursor(), record, workspace.policy, count=moved, healthy=healthy)
    text = readable_json(frozen) if as_json else write_cases(frozen)
    if file is None:
        print_text(text)
    else:
        write_file(file, text.encode())
    sides = [case.recorded.side for case in frozen.cases if case.recorded]
    numbers = f"{counted(sides.count('incident'), 'exchange')} of the incident and {sides.count('before')} from before"
    err.say(f"{numbers}{'' if file is None else f' written to {file}'}")


@fails_when("the build is worse than before the incident, or you decline")
def gate(
    cases: Annotated[Path, typer.Argument(metavar="CASES", help="File of `driftline cases from-incident`.")],
    candidate: Annotated[
        Path, typer.Option("--candidate", metavar="FILE", help="The build's answers: JSON lines, one for each case.")
    ],
    judge: ChosenJudge = None,
    cap: Annotated[float, typer.Option("--cap", metavar="USD", min=0, help="Most that this gate may spend.")] = DEFAULT_CAP,
    judgements: Annotated[
        Path | None,
        typer.Option(
            "--judgements", metavar="FILE", help="The recorded judge calls; by default beside CASES, as NAME.judgements.jsonl."
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML to this file.")] = None,
    markdown: MarkdownFile = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Gate a build on the cases of an incident: compare its answers with the level before, and fail if it is worse beyond chance.

    Answers that were judged before are not judged again. The others are judged, within the cap.
    """
    frozen = load_frozen_cases(cases)
    answers = read_results(candidate, frozen)
    settings = settings_of(policy=policy, judge=judge)
    loaded = policy_of(settings)
    recorded = JudgementFile(judgements or cases.with_suffix(".judgements.jsonl"))
    build = Gate(frozen, loaded, redactor_of(settings, loaded), recorded)
    build.read(answers)
    scores: dict[str, Score] = {}
    if build.is_judged:
        if not _consent(build, settings, cap, dry_run=dry_run, yes=yes, as_json=as_json):
            return
        with counting("judging") as bar:
            scores, spent = judge_answers(build, settings, cap, utc_now, bar)
        if spent:
            err.say(f"judged for {spent:.4f} USD; the answers are recorded in {recorded.path}")
    elif dry_run:
        return
    result = compare(frozen, build.measure(scores))
    for path, text in ((junit, gate_junit), (markdown, gate_markdown)):
        if path is not None:
            write_file(path, text(result, frozen).encode())
    if as_json:
        print_json(_document(result))
    else:
        out.print(gate_view(result, frozen))
    if not result.worse and result.unjudged and settings.judge != "none":
        raise InputError(
            f"the gate is undecided: {counted(result.unjudged, 'answer')} could not be judged",
            hint=f"Run it again; raise --cap if it was reached ({cap:g} USD), or use --judge none to compare only the checks.",
        )
    leave(failed=bool(result.worse))


def _consent(build: Gate, settings: Settings, cap: float, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show the calls that the gate needs and their cost, ask for consent if there are any, and return whether to go on."""
    judge = describe_judge(settings, build.policy, list_judges(build.project))
    estimate = asyncio.run(build.estimate(takes_simulated=judge.name != LIVE))
    if dry_run and as_json:
        print_json(_describe_estimate(estimate, cap))
        return False
    line = f"{counted(len(build.inputs), 'answer')}: "
    if settings.judge == "none":
        err.say(f"{line}no judge is asked, so only the checks and recorded judgements are compared")
        return not dry_run
    if not estimate.calls:
        err.say(f"{line}no judge is asked, because all answers were judged before")
        return not dry_run
    cost = f"{estimate.calls} to {estimate.calls + estimate.open} calls" if estimate.open else counted(estimate.calls, "call")
    price = f"about {usd_of(estimate.expected):.4f} USD" if estimate.unpriced < estimate.calls else "an unknown price"
    err.say(f"{line}{cost} for {price}, {cap:g} USD at most")
    if dry_run:
        return False
    if not yes and not sys.stdin.isatty():
        raise SettingsError("cannot confirm the cost: there is no terminal", hint="Use --yes, or --dry-run to see it only.")
    agree("Call the judge?", yes=yes)
    if judge.note:
        err.say(f"note: {judge.note}", style="yellow")
    return True


def _describe_estimate(estimate: Estimate, cap: float) -> dict[str, Any]:
    return {
        "calls": estimate.calls,
        "calls_at_most": estimate.calls + estimate.open,
        "expected_usd": usd_of(estimate.expected),
        "cap_usd": cap,
    }


def _document(result: GateResult) -> dict[str, Any]:
    return {
        "passed": not result.worse,
        "answers": result.answers,
        "unjudged": result.unjudged,
        "error": ERROR,
        "comparisons": [
            {
                "name": comparison.name,
                "kind": comparison.kind,
                "answers": comparison.answers,
                "before": comparison.before,
                "build": comparison.after,
                "margin": comparison.margin,
                "interval": [comparison.interval.low, comparison.interval.high] if comparison.interval else None,
                "probability": comparison.probability,
                "worse": comparison.is_worse,
                "worst": [{"case_id": worst.case_id, "detail": worst.detail} for worst in comparison.worst],
            }
            for comparison in result.comparisons
        ],
    }
