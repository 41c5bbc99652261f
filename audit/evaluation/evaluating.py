"""An evaluation: the judge is asked once for each repetition, and what it says becomes one result. A generator; no I/O.

Every repetition is asked whatever became of those before it: they are independent, and a failed one is excluded. Where the judge
cannot be asked any more, each of the rest is answered so without a call.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime

from audit.evaluation.questions import EVALUATION, RULE_VERSION, Terms, questions_of
from audit.evaluation.results.findings import Findings, findings_of
from audit.evaluation.results.iterations import Asked, asked
from audit.evaluation.results.resolution import Resolution
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
        iterations.append(asked(number, question, reply))
    return _evaluation(request, findings_of(request, terms, iterations), recorded)


def _evaluation(request: EvaluationRequest, found: Findings, recorded: Sequence[Judgement]) -> Evaluation:
    judgements = [judgement for one in found.iterations for judgement in one.judgements]
    own = [one for one in judgements if one.subject_id == request.evaluation_id]
    paid = {one.judgement_id: one for one in (*recorded, *own)}
    result, overall = found.result(request), found.aggregates.overall if found.aggregates else None
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
        dimensions=tuple(_resolution(one, found) for one in found.resolutions),
        configured_repetitions=found.terms.plan.repetitions,
        successful_iterations=found.successful,
        aggregation_method=found.terms.plan.method,
        warnings=found.warnings,
        judgement_ids=tuple(one.judgement_id for one in judgements),
        result=result.as_json(),
        cost_usd=total_cost(list(paid.values())),
        simulated=found.simulated,
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
        case_title=found.terms.case.title,
        overall_spread=overall.spread if overall else None,
        iterations=tuple(_iteration(one) for one in found.iterations),
        checks=found.terms.checks,
        rule_version=RULE_VERSION,
    )


def _newest(judgements: Sequence[Judgement]) -> datetime | None:
    return max((one.judged_at for one in judgements), default=None)


def _resolution(one: Resolution, found: Findings) -> DimensionResolution:
    aggregate = found.aggregates.dimensions[one.dimension] if found.aggregates else None
    return DimensionResolution(
        dimension=one.dimension,
        policy=one.policy.policy,
        source=one.source,
        deterministic=one.deterministic,
        judge=one.judge,
        final=one.final,
        spread=aggregate.spread if aggregate else None,
    )


def _iteration(one: Asked) -> EvaluationIteration:
    return EvaluationIteration(
        iteration=one.number,
        outcome=one.outcome,
        overall=one.answer.overall.score if one.answer else None,
        judgement_id=one.judgement.judgement_id if one.judgement else None,
    )
