"""Findings of an evaluation: aggregates, the score of each dimension, warnings, documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from audit.evaluation.questions import Terms
from audit.evaluation.results.aggregation import Aggregate, Aggregates, aggregate
from audit.evaluation.results.iterations import Asked, documents
from audit.evaluation.results.resolution import (
    ERROR,
    FAIL,
    JUDGE_ONLY,
    PASS,
    Resolution,
    normalised,
    resolution_warnings,
    resolve,
)
from audit.evaluation.results.result import (
    AggregateScore,
    CheckResult,
    DimensionResolution,
    EvaluationResult,
    FinalResult,
    JudgeAggregate,
    JudgeResult,
    ResultSummary,
)
from schemas.records import EvaluationRequest


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of an evaluation; made by `findings_of`."""

    terms: Terms
    iterations: tuple[Asked, ...]
    aggregates: Aggregates | None
    """None where every iteration failed."""
    resolutions: tuple[Resolution, ...]
    """One for each dimension that the case declares, in order."""
    warnings: tuple[str, ...]

    @property
    def successful(self) -> int:
        """Iterations that count."""
        return sum(one.answer is not None for one in self.iterations)

    @property
    def simulated(self) -> bool:
        """True if a simulated judge was asked at all."""
        return any(judgement.simulated for one in self.iterations for judgement in one.judgements)

    def result(self, request: EvaluationRequest) -> EvaluationResult:
        """The documents."""
        return EvaluationResult(final_result=_final_result(request, self), judge_result=_judge_result(request, self))


def findings_of(request: EvaluationRequest, terms: Terms, iterations: Sequence[Asked]) -> Findings:
    """Everything that follows from what the judge said, iteration by iteration."""
    answers = {one.number: one.answer for one in iterations if one.answer is not None}
    found = aggregate(answers, terms.plan.method)
    policies = terms.plan.dimension_policies
    resolutions = tuple(
        resolve(
            dimension,
            policies.get(dimension, JUDGE_ONLY),
            terms.checks,
            None if found is None else found.dimensions[dimension].score,
        )
        for dimension in terms.case.dimensions
    )
    warnings = [
        *request.warnings,
        *_iteration_warnings(iterations),
        *resolution_warnings(resolutions, terms.checks),
    ]
    return Findings(terms, tuple(iterations), found, resolutions, tuple(dict.fromkeys(warnings)))


def _iteration_warnings(iterations: Sequence[Asked]) -> Iterator[str]:
    return (f"Judge iteration {one.number} failed and was excluded." for one in iterations if one.answer is None)


def _score(found: Aggregate) -> AggregateScore:
    return AggregateScore(evidence=found.evidence, score=found.score, spread=found.spread)


def _judge_result(request: EvaluationRequest, found: Findings) -> JudgeResult:
    plan, aggregates = found.terms.plan, None
    if found.aggregates is not None:
        aggregates = JudgeAggregate(
            dimensions={dimension: _score(one) for dimension, one in found.aggregates.dimensions.items()},
            overall=_score(found.aggregates.overall),
            evidence_iteration=found.aggregates.evidence_iteration,
        )
    return JudgeResult(
        judge_run_id=plan.judge_run_id,
        judge_id=plan.judge.judge_id,
        judge_type=plan.judge.type,
        judge_model=plan.judge.model,
        aggregation_method=plan.method,
        configured_repetitions=plan.repetitions,
        successful_iterations=found.successful,
        failed_iterations=len(found.iterations) - found.successful,
        iterations=documents(found.iterations, request.evaluation_id),
        aggregate=aggregates,
    )


def _final_result(request: EvaluationRequest, found: Findings) -> FinalResult:
    aggregates = found.aggregates
    return FinalResult(
        evaluation_id=request.evaluation_id,
        case_id=request.case_id,
        case_title=found.terms.case.title,
        session_id=request.session_id,
        subject_model=request.subject_model,
        judge_run_id=request.judge_run_id,
        judge_model=request.judge_model,
        simulated=found.simulated,
        evaluation_status="failed" if aggregates is None else "completed",
        final_score=aggregates.overall.score if aggregates else None,
        judge_overall=_score(aggregates.overall) if aggregates else None,
        judge_dimensions={one: _score(score) for one, score in (aggregates.dimensions if aggregates else {}).items()},
        deterministic_dimensions={one.dimension: one.deterministic for one in found.resolutions},
        final_dimensions={one.dimension: one.final for one in found.resolutions},
        dimension_resolutions={one.dimension: _resolution(one) for one in found.resolutions},
        checks=tuple(CheckResult.model_validate(one, from_attributes=True) for one in found.terms.checks),
        summary=_summary(found),
        warnings=found.warnings,
        anomaly_reasons=request.anomaly_reasons,
    )


def _resolution(one: Resolution) -> DimensionResolution:
    weights = normalised(one.policy) if one.policy.policy == "weighted" else (None, None)
    return DimensionResolution(
        policy=one.policy.policy,
        source=one.source,
        judge_weight=None if weights[0] is None else float(weights[0]),
        deterministic_weight=None if weights[1] is None else float(weights[1]),
        deterministic_score=one.deterministic,
        judge_score=one.judge,
        final_score=one.final,
    )


def _summary(found: Findings) -> ResultSummary:
    outcomes = [check.outcome for check in found.terms.checks]
    return ResultSummary(
        deterministic_passed_checks=outcomes.count(PASS),
        deterministic_failed_checks=outcomes.count(FAIL),
        deterministic_error_checks=outcomes.count(ERROR),
        judge_successful_iterations=found.successful,
        judge_failed_iterations=len(found.iterations) - found.successful,
    )
