"""Answers about evaluations, field by field; `service.read.evaluations` says where each value comes from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.http.answers.project_answers import Moment
from service.web.paging import NextCursor
from service.web.response_models import Answer


class EstimateAnswer(Answer):
    """The estimate of evaluations, made without asking a judge."""

    evaluations: int = Field(description="Evaluations to make.")
    reused: int = Field(description="Evaluations that exist already.")
    taken_up: int = Field(description="Those of them that were requested before, and wait for the judge.")
    left_over: int = Field(description="Other evaluations that were requested before, and wait for the judge.")
    calls: int = Field(description="Questions to ask the judge.")
    answered: int = Field(description="Questions that it has answered already, for this evaluation or another.")
    not_asked: int = Field(description="Questions that are not asked: no answer is recorded, no price known, or no room left.")
    unpriced: int = Field(description="Calls without a known price; the sums leave them out.")
    expected_usd: float | None = Field(description="null if nothing is known.")
    at_most_usd: float | None = Field(description="If every answer had its maximum length.")


class AskedAnswer(Answer):
    """An evaluation that was requested."""

    id: str = Field(description="Its id: the same for the same run, case, judge and prompt.")
    attempt: int = Field(description="The revision that its result will have; if it fails, an earlier finished one stays.")
    connection: str
    project: str
    session_id: str
    case_id: str
    judge_run_id: str
    repetition: int = Field(description="Number of the run among those of its model.")
    reused: bool = Field(description="Whether the result exists already, so that no judge is asked.")


class EvaluateAnswer(Answer):
    """The requested evaluations, and what they take."""

    sessions: int
    estimate: EstimateAnswer
    evaluations: list[AskedAnswer]


class EvaluatedDimension(Answer):
    """One dimension and how it got its score; scores are 0 to 10, null if there is none."""

    policy: str = Field(examples=["judge_only"])
    source: str = Field(description="judge, deterministic, weighted or missing.", examples=["judge"])
    deterministic: float | None
    judge: float | None
    final: float | None
    spread: float | None = Field(description="Largest minus smallest score over the repetitions.")


class EvaluationAnswer(Answer):
    """The score of a run against a case."""

    id: str
    revision: int
    project: str
    connection: str
    session_id: str
    agent: str | None
    model: str | None = Field(description="Model of the audited agent.")
    case_id: str
    case_title: str
    tags: list[str] = Field(description="Of the case.")
    judge_run_id: str
    judge_model: str
    yardstick: str = Field(description="Digest of the scale; scores with different digests are not compared.")
    repetition: int
    status: Literal["completed", "failed"]
    final_score: float | None = Field(description="0 to 10; null if every answer of the judge failed.")
    overall_spread: float | None
    dimensions: dict[str, EvaluatedDimension]
    configured_repetitions: int
    successful_iterations: int
    aggregation_method: str = Field(examples=["median"])
    warnings: list[str]
    anomaly_reasons: list[str] = Field(description="Attempts of the run to sway the judge, in words.")
    run_at: Moment | None = Field(description="When the run ended.")
    run_seconds: float | None
    run_input_tokens: int | None
    run_output_tokens: int | None
    run_cost_usd: float | None
    cost_usd: float | None = Field(description="Cost of the judge's calls.")
    simulated: bool = Field(description="Whether a simulated judge was asked.")
    evaluated_at: Moment


class WholeEvaluationAnswer(EvaluationAnswer):
    """An evaluation with every answer of the judge."""

    request_id: str
    fingerprint: str
    judgement_ids: list[str]
    rule_version: str
    final_result: dict[str, Any] = Field(description="docs/schemas/evaluation-result.schema.json")
    judge_result: dict[str, Any] = Field(description="docs/schemas/judge-result.schema.json: every answer as it came.")


class EvaluationsAnswer(Answer):
    """Evaluations, the one judged last first."""

    evaluations: list[EvaluationAnswer]
    count: int
    next_cursor: NextCursor


class OneEvaluationAnswer(Answer):
    """An evaluation as it is now, and whether it is under way."""

    id: str
    pending: bool = Field(description="Whether the judge is still to be asked, or asked again.")
    attempt: int = Field(description="Number of requests before the last one.")
    set_aside: str | None = Field(description="Why it could not be judged; null if it could.")
    failed_attempt: int | None = Field(
        description="A later attempt that failed, so that an earlier evaluation is shown; null if there is none."
    )
    evaluation: WholeEvaluationAnswer | None = Field(description="null while there is no result.")
    system_prompt: str | None = Field(description="Messages to the judge; null while it is under way.")
    user_prompt: str | None = Field(description="Messages to the judge; null while it is under way.")
