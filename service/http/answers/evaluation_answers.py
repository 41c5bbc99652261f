"""The answer to a request for evaluations."""

from __future__ import annotations

from pydantic import Field

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
