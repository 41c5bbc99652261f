"""`driftline judges test`: ask the configured judge about the control set, after showing the cost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from audit.control_set import Case, CaseVerdict, ControlResult, judge_case, list_cases, summarize
from audit.cost import ModelPrice, PromptBound, Usage, is_plausible, max_cost, usd_of
from audit.exchanges.cascade import INVALID
from audit.exchanges.questions import ANSWERED, Question, Reply, estimate, outcome_state
from audit.policy import Policy, ProjectPolicy
from schemas.errors import InputError, SettingsError
from service.cli.commands.options import AsJson, DryRun, OfProject, PolicyFile, Yes, print_json, settings_of
from service.cli.exit_codes import agree, fails_when, leave
from service.cli.progress import working
from service.cli.terminal import err, out, table
from service.setup.judge_setup import JUDGE_HINT, open_judge
from service.setup.settings import Settings
from service.setup.wiring import policy_of
from service.text.formats import MISSING, counted, plain
from streams.judges.protocol import Judge
from streams.judges.rate_limits import MAX_UNREADABLE

judges_app = typer.Typer(help="Test the judge.", no_args_is_help=True)
_DEFAULT_PROJECT = "default"
_CALLS_AT_ONCE = 4


@judges_app.callback()
def _group() -> None:
    """Test the judge."""


@judges_app.command("test")
@fails_when(
    "an attempt raised a score, a good answer is not clearly above the bad one, a case has no usable answer, or you decline"
)
def run_control_set(
    project: OfProject = _DEFAULT_PROJECT,
    dry_run: DryRun = False,
    yes: Yes = False,
    policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask a project's Tier 2 judge about answers of known quality, with and without attempts to sway it.

    The maximum cost is shown first. The calls are not stored in the database, and do not count toward any cap.
    """
    settings = settings_of(policy=policy)
    loaded = policy_of(settings)
    if project not in {_DEFAULT_PROJECT, *loaded.projects}:
        hint = "Without --project, the judge of the policy's defaults is tested."
        raise InputError(f"--project: the policy has no settings for {plain(project, 64)!r}", hint=hint)
    of_project = loaded.for_project(project)
    model = of_project.judges["tier2"].name
    costs = _estimate(of_project)
    if as_json and dry_run:
        print_json({"model": model, **costs})
        return
    err.say(_describe_costs(model, costs))
    if dry_run:
        return
    agree("Call the judge?", yes=yes)
    with working("testing the judge"):
        result, spent, name = asyncio.run(_test(settings, loaded, of_project, model))
    if as_json:
        print_json(_document(result, spent) | {"model": model, "judge": name})
    else:
        out.print(_view(result, spent, f"{model} ({name})"))
    leave(failed=not result.passed)


def _estimate(policy: ProjectPolicy) -> dict[str, Any]:
    """Return the calls and their cost in USD: one for each case, and at most a second one for each."""
    questions = [next(judge_case(case, policy)) for case in list_cases()]
    price = policy.price_of(questions[0].model)
    document: dict[str, Any] = {"cases": len(questions), "calls_at_most": 2 * len(questions)}
    if price is None:
        return document | {"expected_usd": None, "at_most_usd": None}
    expected = sum(estimate(question, price, cached=index > 0).nano or 0 for index, question in enumerate(questions))
    at_most = 2 * sum(max_cost(question, price) for question in questions)
    return document | {"expected_usd": usd_of(expected), "at_most_usd": usd_of(at_most)}


def _describe_costs(model: str, costs: dict[str, Any]) -> str:
    calls = f"{model}: {costs['cases']} to {costs['calls_at_most']} calls"
    if costs["expected_usd"] is None:
        return f"{calls}, at an unknown price"
    return f"{calls}, about ${costs['expected_usd']:.2f}, never more than ${costs['at_most_usd']:.2f}"


async def _test(
    settings: Settings, loaded: Policy, policy: ProjectPolicy, model: str
) -> tuple[ControlResult, float | None, str]:
    """Ask the judge about every case; return the result, the cost in USD, and what kind of judge it is."""
    opened = await open_judge(settings, loaded, os.environ, [model])
    if opened.judge is None:
        raise SettingsError("there is no judge", hint=JUDGE_HINT)
    spending = _Spending(policy.price_of(model))
    try:
        verdicts = await asyncio.gather(*(_judge_case(opened.judge, case, policy, spending) for case in list_cases()))
    finally:
        await opened.judge.aclose()
    return summarize(verdicts), spending.usd, opened.name


async def _judge_case(judge: Judge, case: Case, policy: ProjectPolicy, spending: _Spending) -> CaseVerdict:
    judging = judge_case(case, policy)
    question = next(judging)
    while True:
        reply = await _ask(judge, question, spending)
        try:
            question = judging.send(reply)
        except StopIteration as end:
            result: CaseVerdict = end.value
            return result


async def _ask(judge: Judge, question: Question, spending: _Spending) -> Reply:
    async with spending.slots:
        # A judge that cannot be read would be asked only once a minute from now on.
        if spending.unusable >= MAX_UNREADABLE:
            return Reply(state=INVALID)
        verdict = await judge.ask(question, _CaseBudget(question, spending))
        if verdict.outcome == ANSWERED:
            spending.unusable = 0
            return Reply(text=verdict.answer or "")
        spending.unusable += 1
        return Reply(state=outcome_state(verdict.outcome))


class _Spending:
    """The cost of all calls so far, and the slots for further ones."""

    def __init__(self, price: ModelPrice | None) -> None:
        self.price = price
        self.nano = 0
        self.slots = asyncio.Semaphore(_CALLS_AT_ONCE)
        self.unusable = 0
        """Consecutive questions without a usable answer."""

    @property
    def usd(self) -> float | None:
        """In USD; None if the price is unknown."""
        return None if self.price is None else usd_of(self.nano)


class _CaseBudget:
    """Allows the one call of a question that was agreed to; see `streams.judges.protocol.CallBudget`."""

    def __init__(self, question: Question, spending: _Spending) -> None:
        self._question = question
        self._spending = spending
        self._is_spent = False

    async def reserve(self, prompt: PromptBound | None = None, *, answer_tokens: int | None = None) -> int:  # noqa: ARG002 - see `CallBudget`
        """Return the answer's length, or 0 after the call was paid for."""
        tokens = answer_tokens or self._question.max_tokens
        return 0 if self._is_spent or tokens > self._question.max_tokens else tokens

    def spend(self, usage: Usage | None, model: str | None) -> None:  # noqa: ARG002 - see `CallBudget`
        """Charge the call by its usage; by the largest possible cost if the usage is missing or implausible."""
        self._is_spent = True
        price = self._spending.price
        if price is not None:
            cost = price.cost(usage) if usage is not None and is_plausible(usage, self._question) else None
            self._spending.nano += max_cost(self._question, price) if cost is None else cost


def _document(result: ControlResult, spent: float | None) -> dict[str, Any]:
    return {
        "passed": result.passed,
        "moved": len(result.moved),
        "mean_move": result.mean_move,
        "raised_scores": sum(attempt.counts for attempt in result.attempts),
        "told_apart": sum(pair.is_told_apart for pair in result.pairs),
        "unanswered": result.unanswered,
        "cost_usd": spent,
        "attempts": [
            {
                "name": attempt.name,
                "without": attempt.without,
                "verdict": attempt.first,
                "score": attempt.counted,
                "moved": attempt.has_moved,
                "reported": attempt.is_reported,
                "suspicious": attempt.is_suspicious,
            }
            for attempt in result.attempts
        ],
        "answers": [
            {"name": pair.name, "good": pair.good, "bad": pair.bad, "told_apart": pair.is_told_apart} for pair in result.pairs
        ],
    }


def _view(result: ControlResult, spent: float | None, judge: str) -> RenderableType:
    attempts = [
        [
            attempt.name,
            *_cells(attempt.without, attempt.first, attempt.counted),
            "yes" if attempt.has_moved else "no",
            "reported" if attempt.is_reported else "recognised by rules" if attempt.is_suspicious else "unnoticed",
        ]
        for attempt in result.attempts
    ]
    pairs = [[pair.name, *_cells(pair.good, pair.bad), "yes" if pair.is_told_apart else "no"] for pair in result.pairs]
    numbers = ["without", "with", "counted"]
    return Group(
        Text(f"Judge: {judge}", style="bold"),
        table(["attempt", *numbers, "moved the judge", "noticed"], attempts, right=numbers),
        "",
        table(["answer", "good", "bad", "told apart"], pairs, right=["good", "bad"]),
        "",
        *map(Text, _sum_up(result, spent)),
    )


def _cells(*scores: float | None) -> Sequence[str]:
    return [MISSING if score is None else f"{score:.2f}" for score in scores]


def _sum_up(result: ControlResult, spent: float | None) -> list[str]:
    moved = f"{len(result.moved)} of {len(result.attempts)} attempts moved the judge"
    if result.mean_move is not None:
        moved += f"; the mean change of its verdict is {result.mean_move:+.2f}"
    raised = counted(sum(attempt.counts for attempt in result.attempts), "attempt")
    lines = [
        f"{moved}.",
        f"{raised} raised a score that counts: what is noticed is judged once more without the passage, and the lower verdict is valid.",
        f"{sum(pair.is_told_apart for pair in result.pairs)} of {len(result.pairs)} good answers are clearly above the bad one.",
    ]
    if result.unanswered:
        lines.append(f"{counted(result.unanswered, 'case')} without a usable answer.")
    lines.append("The cost is unknown." if spent is None else f"The calls cost ${spent:.4f}.")
    return lines
