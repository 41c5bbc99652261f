"""Evaluations: a case, a plan and a run become a request that holds everything the judge is shown, and its answers become one result.

1. Names and ways of asking change no score, so neither the ids of profile, judge run and judge nor the type of the judge nor the cost
   cap are in the fingerprint: the same run with the same case is evaluated once, however often it is requested.
2. The judge is asked once per repetition. Repetitions are independent: each is asked whatever became of those before it, and a
   failed one is excluded. If the judge cannot be asked any more, each remaining one gets that state without a call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from audit.evaluation.cases import Case, Plan, shipped_system_prompt
from audit.evaluation.checks import check_run
from audit.evaluation.questions import EVALUATION, RULE_VERSION, Terms, questions_of, request_id
from audit.evaluation.results import Findings, IterationOutcome, Resolution, findings_of, iteration_outcome
from audit.evaluation.run import Run
from audit.evaluation.view import subject_view
from audit.exchanges.outcomes import total_cost
from audit.exchanges.questions import Question, Reply, with_earlier
from audit.fingerprints import canonical_json, stable_id
from schemas.errors import BoundsError
from schemas.records import DimensionResolution, Evaluation, EvaluationIteration, EvaluationRequest, Judgement

__all__ = ["EVALUATION", "evaluating", "questions_of"]

_TOO_LARGE = "Make max_view_characters of the profile smaller, or the case or its system prompt shorter."
_SCORING: dict[str, Any] = {
    "judge": {"model", "max_tokens"},
    "repetitions": True,
    "method": True,
    "dimension_policies": True,
}
"""The parts of a plan that a score depends on, whatever the run."""

FORM = "# What you are given, and what you answer"
"""Heading of the last part of the shipped prompt: the form of the message, which texts are data, and the shape of the answer."""


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
    judgements = [judgement for item in findings.iterations for judgement in item.judgements]
    own = [item for item in judgements if item.subject_id == request.evaluation_id]
    paid = {item.judgement_id: item for item in (*recorded, *own)}
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
        dimensions=tuple(_resolution(item, findings) for item in findings.resolutions),
        configured_repetitions=findings.terms.plan.repetitions,
        successful_iterations=findings.successful,
        aggregation_method=findings.terms.plan.method,
        warnings=findings.warnings,
        judgement_ids=tuple(item.judgement_id for item in judgements),
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
        iterations=tuple(_iteration(item) for item in findings.iterations),
        checks=findings.terms.checks,
        rule_version=RULE_VERSION,
    )


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


def _newest(judgements: Sequence[Judgement]) -> datetime | None:
    return max((judgement.judged_at for judgement in judgements), default=None)


def _iteration(iteration: IterationOutcome) -> EvaluationIteration:
    return EvaluationIteration(
        iteration=iteration.number,
        outcome=iteration.outcome,
        overall=iteration.answer.overall.score if iteration.answer else None,
        judgement_id=iteration.judgement.judgement_id if iteration.judgement else None,
    )


def evaluation_request(
    case: Case,
    plan: Plan,
    system_prompt: str,
    run: Run,
    *,
    repetition: int,
    attempt: int,
    earlier: Sequence[Judgement],
    at: datetime,
    warnings: Sequence[str] = (),
) -> EvaluationRequest:
    """The request to hold a run against a case. The same content gives the same fingerprint and ids, whatever the time.

    `earlier` is what was recorded for the evaluation before this attempt; see `asked_again`. `warnings` are of how the run was read.
    BoundsError where case, prompt and view together are more than a record may hold.
    """
    outcomes = check_run(case, run)
    checks = canonical_json(msgspec.to_builtins(outcomes))
    view = subject_view(case, run, outcomes, plan.max_view_characters)
    prompt = complete(system_prompt)
    measured_by = [RULE_VERSION, case.model_dump(mode="json"), plan.model_dump(mode="json", include=_SCORING), prompt]
    facts = _facts(run)
    fact_values = [value.isoformat() if isinstance(value, datetime) else value for value in facts.values()]
    fingerprint = _digest([*measured_by, view.text, checks, fact_values])
    request = EvaluationRequest(
        request_id="",
        connection=run.connection,
        project=run.project,
        session_id=run.session_id,
        case_id=case.case_id,
        case=canonical_json(case.model_dump(mode="json")),
        profile=canonical_json(plan.model_dump(mode="json")),
        fingerprint=fingerprint,
        repetition=repetition,
        requested_at=at,
        evaluation_id=stable_id("evaluation", run.connection, run.session_id, case.case_id, fingerprint),
        **facts,
        run_cost_usd=run.cost_usd,
        judge_run_id=plan.judge_run_id,
        judge_model=plan.judge.model,
        yardstick=_digest(measured_by),
        tags=case.tags,
        anomaly_reasons=tuple(view.anomaly_reasons),
        system_prompt=prompt,
        user_prompt=view.text,
        checks=checks,
        warnings=(*view.warnings, *warnings),
        rule_version=RULE_VERSION,
    )
    return asked_again(request, attempt, earlier)


def complete(system_prompt: str) -> str:
    """The prompt with the form put at its end, where it does not hold it word for word.

    One's own prompt says how to score. What the judge is given and how it answers is no matter of taste: a server that takes no
    notice of the answer's schema has nothing else to go by, and nor has a judge that is not to obey the texts it reads.
    """
    shipped = shipped_system_prompt()
    form = shipped[shipped.index(FORM) :]
    return system_prompt if form.strip() in system_prompt else f"{system_prompt.rstrip()}\n\n{form}"


def _facts(run: Run) -> dict[str, Any]:
    """Return the facts about the run beside the scores, named as in the records.

    The cost is left out: another price makes no other run.
    """
    lasted = None if run.started_at is None or run.ended_at is None else run.ended_at - run.started_at
    return {
        "subject_model": run.model,
        "agent": run.agent,
        "run_at": run.ended_at,
        "run_seconds": None if lasted is None else lasted.total_seconds(),
        "run_input_tokens": run.input_tokens,
        "run_output_tokens": run.output_tokens,
    }


def _digest(value: Any) -> str:
    """SHA-256 of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def asked_again(request: EvaluationRequest, attempt: int, earlier: Sequence[Judgement]) -> EvaluationRequest:
    """The same request as another attempt, with what was recorded before it, as far as a record has room for that.

    BoundsError where the request alone is more than a record may hold.
    """
    named = request_id(request.evaluation_id, attempt)
    bare = msgspec.structs.replace(request, request_id=named, attempt=attempt, earlier_judgements=())
    try:
        return with_earlier(bare, earlier)
    except BoundsError as error:
        raise BoundsError(str(error), hint=_TOO_LARGE) from error
