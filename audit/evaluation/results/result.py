"""The result of an evaluation as a document: the final result and what the judge said, each a file with a published schema."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from audit.evaluation.cases.profile import JudgeType, Method
from audit.evaluation.dimensions import DIMENSIONS, HIGHEST, LOWEST, Dimension
from audit.evaluation.results.resolution import Source
from audit.fingerprints import canonical_json

ResultStatus = Literal["completed", "failed"]
Score = Annotated[float, Field(ge=LOWEST, le=HIGHEST)]
Count = Annotated[int, Field(ge=0)]
Value = TypeVar("Value")


def _in_order(by_dimension: Mapping[Dimension, Value]) -> Mapping[Dimension, Value]:
    """JSON objects that were sorted by name are shown in the dimensions' own order all the same."""
    return {one: by_dimension[one] for one in DIMENSIONS if one in by_dimension}


ByDimension = Annotated[Mapping[Dimension, Value], AfterValidator(_in_order)]
"""A value for each dimension that the case declares."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class AggregateScore(_Document):
    """A score of the judge over all iterations that succeeded."""

    evidence: tuple[str, ...]
    """Facts that it rests on, all from one iteration; see `evidence_iteration`."""
    score: Score
    spread: Annotated[float, Field(ge=0)]
    """Largest minus smallest over the iterations."""


class JudgeAggregate(_Document):
    """The aggregate of the iterations that succeeded."""

    dimensions: ByDimension[AggregateScore]
    overall: AggregateScore
    evidence_iteration: Annotated[int, Field(ge=1)]
    """Iteration that the evidence is taken from: its overall score is nearest to the aggregate."""


class IterationScores(_Document):
    """The scores of one iteration; its evidence is in its answer."""

    dimensions: ByDimension[Score]
    overall: Score


class Iteration(_Document):
    """One call of the judge, whether it counts or not."""

    iteration: Annotated[int, Field(ge=1)]
    outcome: str
    """answered, or why it does not count: refused, cut_off, provider_error, timeout, invalid, cost_cap, …"""
    reason: str | None
    """A description of the failure, in words."""
    answer: str | None
    """The judge's answer as it came; one that is very long is cut, and says so at its end."""
    scores: IterationScores | None
    """None where the iteration does not count."""
    judgement_id: str | None
    """The record that holds the whole answer."""
    taken_over_from: str | None = None
    """Evaluation for which this answer was given and paid; then it took no attempts here and cost nothing. None: it was this one."""
    answering_model: str | None
    attempts: Count
    input_tokens: Count | None
    output_tokens: Count | None
    cost_usd: Annotated[float, Field(ge=0)] | None
    """None where the price is unknown."""
    latency_ms: Count | None
    batched: bool
    simulated: bool
    judged_at: datetime | None


class JudgeResult(_Document):
    """Everything the judge said of a run."""

    judge_run_id: str
    judge_id: str
    judge_type: JudgeType
    judge_model: str
    aggregation_method: Method
    configured_repetitions: Annotated[int, Field(ge=1)]
    successful_iterations: Count
    failed_iterations: Count
    iterations: tuple[Iteration, ...]
    aggregate: JudgeAggregate | None
    """None where every iteration failed."""


class DimensionResolution(_Document):
    """The origin of a dimension's score."""

    policy: Literal["judge_only", "deterministic_only", "weighted"]
    source: Source
    """The origin of the final score; missing where there is none."""
    judge_weight: Annotated[float, Field(ge=0, le=1)] | None
    """Normalised; None where the policy does not weigh."""
    deterministic_weight: Annotated[float, Field(ge=0, le=1)] | None
    deterministic_score: Score | None
    """10 x passed / mapped checks; None where no check counts for the dimension."""
    judge_score: Score | None
    final_score: Score | None


class CheckResult(_Document):
    """The result of a deterministic check."""

    check_id: str
    kind: str
    dimensions: tuple[str, ...]
    """Dimensions it counts for."""
    outcome: Literal["pass", "fail", "error"]
    detail: str


class ResultSummary(_Document):
    """Counts."""

    deterministic_passed_checks: Count
    deterministic_failed_checks: Count
    deterministic_error_checks: Count
    judge_successful_iterations: Count
    judge_failed_iterations: Count


class FinalResult(_Document):
    """The result of a run against a case: the judge's verdict and the deterministic checks together."""

    evaluation_id: str
    case_id: str
    case_title: str
    session_id: str
    subject_model: str | None
    judge_run_id: str
    judge_model: str
    simulated: bool
    """True if a simulated judge was asked: then no score says anything about the run."""
    evaluation_status: ResultStatus
    final_score: Score | None
    """The judge's overall score; None where every iteration failed."""
    judge_overall: AggregateScore | None
    judge_dimensions: ByDimension[AggregateScore]
    """Empty where every iteration failed."""
    deterministic_dimensions: ByDimension[Score | None]
    """None where no check counts for the dimension."""
    final_dimensions: ByDimension[Score | None]
    dimension_resolutions: ByDimension[DimensionResolution]
    checks: tuple[CheckResult, ...]
    summary: ResultSummary
    warnings: tuple[str, ...]
    anomaly_reasons: tuple[str, ...]
    """Attempts of the run to sway the judge, in words."""


class EvaluationResult(_Document):
    """Both documents; what an `Evaluation` record keeps in `result`."""

    final_result: FinalResult
    judge_result: JudgeResult

    def as_json(self) -> str:
        """Canonical JSON: the same result gives the same bytes. `model_validate_json` reads it."""
        return canonical_json(self.model_dump(mode="json"))
