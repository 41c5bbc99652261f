"""Estimates of evaluations, without asking any judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audit.cost.estimate import estimate
from audit.cost.prices import usd_of, worst_case
from audit.evaluation.questions import Terms, questions_of
from audit.exchanges.questions import Question, Reply
from audit.policy.policy import Policy
from schemas.records import EvaluationRequest, Judgement
from streams.judging.judged_stages import EVALUATION, JudgingTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Counts of what is to be evaluated, and what that is expected to cost."""

    evaluations: int = 0
    """Evaluations that will be made."""
    reused: int = 0
    """Evaluations that are there."""
    taken_up: int = 0
    """Of those that will be made: how many were asked for before, by a process that did not come to its end."""
    left_over: int = 0
    """Evaluations beside these that were asked for before and are not made: the next worker makes them, too, within its own caps."""
    calls: int = 0
    """Questions that the judge will be asked about those that will be made."""
    answered: int = 0
    """Questions that it has answered before, for this evaluation or for another one of the run."""
    not_asked: int = 0
    """Questions that will not be asked: only recorded answers count, the cap leaves no room, or it needs an unknown price."""
    unpriced: int = 0
    """Calls without a known price; they count in no sum."""
    expected_usd: float = 0.0
    at_most_usd: float = 0.0
    """With every answer as long as it may be, and no evaluation beyond its cap."""


def estimate_of(
    requests: Sequence[tuple[EvaluationRequest, Sequence[Judgement]]],
    policy: Policy,
    *,
    reused: int,
    taken_up: int,
    left_over: int,
) -> Estimate:
    """Estimate the calls and costs of the requests, each with the judgements recorded of it."""
    counts = dict.fromkeys(("calls", "answered", "not_asked", "unpriced"), 0)
    expected = most = 0
    models: set[str] = set()
    for request, recorded in requests:
        judging_task = judging_task_of(request, policy, recorded)
        room = None if judging_task.ledger.cap is None else max(0, judging_task.ledger.cap - judging_task.ledger.spent)
        questions = settled_questions(request, judging_task)
        calls = [question for question, reply in questions if reply is None]
        answered = sum(reply is not None and reply.text is not None for _, reply in questions)
        counts["calls"] += len(calls)
        counts["answered"] += answered
        counts["not_asked"] += len(questions) - len(calls) - answered
        counts["unpriced"] += len(calls) if judging_task.price is None else 0
        if judging_task.price is not None and calls:
            price, batched = judging_task.price, judging_task.batched
            at_most = sum(worst_case(one, price, batched=batched) for one in calls)
            likely = sum(
                estimate(one, price, cached=bool(place) or one.model in models, batched=batched).nano or 0
                for place, one in enumerate(calls)
            )
            most += _within(at_most, room)
            expected += _within(likely, room)
            models.add(calls[0].model)
    return Estimate(
        evaluations=len(requests),
        reused=reused,
        taken_up=taken_up,
        left_over=left_over,
        expected_usd=usd_of(expected),
        at_most_usd=usd_of(most),
        **counts,
    )


def judging_task_of(request: EvaluationRequest, policy: Policy, recorded: Sequence[Judgement]) -> JudgingTask:
    """The judging task of a request, at the prices of the way in which its judge is asked."""
    return EVALUATION.open(request, policy, recorded, batched=is_batched(request))


def settled_questions(request: EvaluationRequest, judging_task: JudgingTask) -> list[tuple[Question, Reply | None]]:
    """The questions of a request, each with the reply to it; None where the judge is to be asked."""
    return [(one, judging_task.settle(one, judging_task.earlier(one))) for one in questions_of(request)]


def is_batched(request: EvaluationRequest) -> bool:
    """Tell whether the judge of a request is asked through the batch API."""
    return Terms.of(request).plan.judge.type == "batch"


def _within(amount: int, room: int | None) -> int:
    return amount if room is None else min(amount, room)
