"""An evaluation: the judge is asked once for each repetition, and what it says becomes one result. A generator; no I/O.

Every repetition is asked whatever became of those before it: they are independent, and a failed one is excluded. Where the judge
cannot be asked any more, each of the rest is answered so without a call.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime

from audit.evaluation.questions import EVALUATION, RULE_VERSION, Terms, questions_of
from audit.evaluation.results import Findings, IterationOutcome, Resolution, findings_of, iteration_outcome
from audit.exchanges.outcomes import total_cost
from audit.exchanges.questions import Question, Reply
from schemas.records import DimensionResolution, Evaluation, EvaluationIteration, EvaluationRequest, Judgement

__all__ = ["EVALUATION", "evaluating", "questions_of"]


def evaluating(request: EvaluationRequest, recorded: Sequence[Judgement] = ()) -> Generator[Question, Reply, Evaluation]:
    """Evaluate a request: yields its questions one by one, takes a reply to each, returns the result.

    `recorded` is everything that was recorded for the evaluation up to this attempt: it was paid for, so its cost is in the result. That
    of an answer which was given to another evaluation is not.
    RecordError for a request that cannot be read, ValueError for a reply that is neither a text nor a state.
    """
    terms, iterations = Terms.of(request), []
    for number, question in enumerate(questions_of(request), 1):
        reply = yield question
        iterations.append(iteration_outcome(number, question, reply))
    return _evaluation(request, findings_of(request, terms, iterations), recorded)


def _evaluation(request: EvaluationRequest, findings: Findings, recorded: Sequence[Judgement]) -> Evaluation:
    judgements = [judgement for one in findings.iterations for judgement in one.judgements]
    own = [one for one in judgements if one.subject_id == request.evaluation_id]
    paid = {one.judgement_id: one for one in (*recorded, *own)}
    result, overall = findings.result(request), findings.aggregates.overall if findings.aggregates else None
    return Evaluation(
        evaluation_id=request.evaluation_id,
        revision=request.attempt,
        request_id=request.request_id,
        connection=request.connection,
        project=request.project,
        session_id=request.session_id,
        case_id=request.case_id,
        subject_model=request.subject_model,
        fingerprint=request.fingerprint,
        status=result.final_result.evaluation_status,
        final_score=overall.score if overall else None,
        dimensions=tuple(_resolution(one, findings) for one in findings.resolutions),
        configured_repetitions=findings.terms.plan.repetitions,
        successful_iterations=findings.successful,
        aggregation_method=findings.terms.plan.method,
        warnings=findings.warnings,
        judgement_ids=tuple(one.judgement_id for one in judgements),
        result=result.as_json(),
        cost_usd=total_cost(list(paid.values())),
        simulated=findings.simulated,
        evaluated_at=_newest(own) or request.requested_at,
        agent=request.agent,
        run_at=request.run_at,
        run_seconds=request.run_seconds,
        run_input_tokens=request.run_input_tokens,
        run_output_tokens=request.run_output_tokens,
        run_cost_usd=request.run_cost_usd,
        judge_run_id=request.judge_run_id,
        judge_model=request.judge_model,
        yardstick=request.yardstick,
        tags=request.tags,
        anomaly_reasons=request.anomaly_reasons,
        repetition=request.repetition,
        case_title=findings.terms.case.title,
        overall_spread=overall.spread if overall else None,
        iterations=tuple(_iteration(one) for one in findings.iterations),
        checks=findings.terms.checks,
        rule_version=RULE_VERSION,
    )


def _newest(judgements: Sequence[Judgement]) -> datetime | None:
    return max((judgement.judged_at for judgement in judgements), default=None)


def _resolution(resolution: Resolution, findings: Findings) -> DimensionResolution:
    aggregate = findings.aggregates.dimensions[resolution.dimension] if findings.aggregates else None
    return DimensionResolution(
        dimension=resolution.dimension,
        policy=resolution.policy.policy,
        source=resolution.source,
        deterministic=resolution.deterministic,
        judge=resolution.judge,
        final=resolution.final,
        spread=aggregate.spread if aggregate else None,
    )


def _iteration(iteration: IterationOutcome) -> EvaluationIteration:
    return EvaluationIteration(
        iteration=iteration.number,
        outcome=iteration.outcome,
        overall=iteration.answer.overall.score if iteration.answer else None,
        judgement_id=iteration.judgement.judgement_id if iteration.judgement else None,
    )
