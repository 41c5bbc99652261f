"""Requested evaluations, and what they take."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import msgspec
from msgspec import Meta, field

from schemas.records import Evaluation, EvaluationRequest
from service.text.answers import Answer
from streams.evaluations.preparing import Estimate, Prepared


class EvaluationEstimate(Answer, frozen=True):
    """The estimate of evaluations, made without asking a judge."""

    evaluations: Annotated[int, Meta(description="Evaluations to make.")]
    reused: Annotated[int, Meta(description="Evaluations that exist already.")]
    taken_up: Annotated[int, Meta(description="Those of them that were requested before, and wait for the judge.")]
    left_over: Annotated[int, Meta(description="Other evaluations that were requested before, and wait for the judge.")]
    calls: Annotated[int, Meta(description="Questions to ask the judge.")]
    answered: Annotated[int, Meta(description="Questions that it has answered already, for this evaluation or another.")]
    not_asked: Annotated[
        int, Meta(description="Questions that are not asked: no answer is recorded, no price known, or no room left.")
    ]
    unpriced: Annotated[int, Meta(description="Calls without a known price; the sums leave them out.")]
    expected_usd: Annotated[float | None, Meta(description="null if nothing is known.")]
    at_most_usd: Annotated[float | None, Meta(description="If every answer had its maximum length.")]


class RequestedEvaluation(Answer, frozen=True):
    """An evaluation that was requested."""

    evaluation_id: Annotated[str, Meta(description="Its id: the same for the same run, case, judge and prompt.")] = field(
        name="id"
    )
    attempt: Annotated[
        int, Meta(description="The revision that its result will have; if it fails, an earlier finished one stays.")
    ]
    connection: str
    project: str
    session_id: str
    case_id: str
    judge_run_id: str
    repetition: Annotated[int, Meta(description="Number of the run among those of its model.")]
    reused: Annotated[bool, Meta(description="Whether the result exists already, so that no judge is asked.")]


class RequestedEvaluations(Answer, frozen=True):
    """The requested evaluations, and what they take."""

    sessions: int
    estimate: EvaluationEstimate
    evaluations: list[RequestedEvaluation]


def requested_evaluations(prepared: Prepared) -> RequestedEvaluations:
    """Return every prepared evaluation, in order, and what they take."""
    reused = [_requested(found.evaluation, found.evaluation.revision, reused=True) for found in prepared.reused]
    asked = [_requested(request, request.attempt, reused=False) for request in prepared.asked]
    return RequestedEvaluations(
        sessions=prepared.sessions,
        estimate=evaluation_estimate(prepared.estimate),
        evaluations=sorted((*reused, *asked), key=lambda evaluation: prepared.order[evaluation.evaluation_id]),
    )


def evaluation_estimate(estimate: Estimate) -> EvaluationEstimate:
    """Return an estimate; the costs are None where no price is known."""
    unknown = dict.fromkeys(("expected_usd", "at_most_usd")) if estimate.calls and estimate.unpriced == estimate.calls else {}
    return EvaluationEstimate.of(dataclasses.asdict(estimate), **unknown)


def _requested(evaluation: Evaluation | EvaluationRequest, attempt: int, *, reused: bool) -> RequestedEvaluation:
    return RequestedEvaluation.of(msgspec.structs.asdict(evaluation), attempt=attempt, reused=reused)
