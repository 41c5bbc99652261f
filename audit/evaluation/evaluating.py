"""Evaluations: builds a request with everything the judge is shown from a case, a plan and a run, and a result from the judge's answers.

1. The fingerprint covers what a score depends on. It leaves out the ids of profile, judge run and judge, the type of the judge and the cost
   cap, so the same run with the same case is evaluated once, however often it is requested.
2. The judge is asked once per repetition. Repetitions are independent, and failed ones are excluded. If the judge becomes unavailable, the
   remaining repetitions get that state without a call.
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
from audit.exchanges.questions import Question, Reply, add_earlier_judgements
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
"""The parts of a plan that a score depends on."""

FORM = "# What you are given, and what you answer"
"""Heading of the last part of the shipped prompt: the form of the message, which of its texts are data, and the form of the answer."""


def evaluating(request: EvaluationRequest, recorded: Sequence[Judgement] = ()) -> Generator[Question, Reply, Evaluation]:
    """Evaluate a request: yield its questions one by one, take a reply to each, and return the result.

    `recorded` are the judgements of the evaluation up to this attempt. Their cost is part of the result; the cost of answers reused from
    another evaluation is not. Raises RecordError for an unreadable request, and ValueError for a reply that is neither a text nor a state.
    """
    terms = Terms.of(request)
    iterations: list[IterationOutcome] = []
    for number, question in enumerate(questions_of(request), 1):
        reply = yield question
        iterations.append(iteration_outcome(number, question, reply))
    return _build_evaluation(request, findings_of(request, terms, iterations), recorded)


def _build_evaluation(request: EvaluationRequest, findings: Findings, recorded: Sequence[Judgement]) -> Evaluation:
    judgements = [judgement for iteration in findings.iterations for judgement in iteration.judgements]
    own_judgements = [judgement for judgement in judgements if judgement.subject_id == request.evaluation_id]
    paid_judgements = {judgement.judgement_id: judgement for judgement in (*recorded, *own_judgements)}
    result = findings.result(request)
    overall = findings.aggregates.overall if findings.aggregates else None
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
        dimensions=tuple(_build_resolution(resolution, findings) for resolution in findings.resolutions),
        configured_repetitions=findings.terms.plan.repetitions,
        successful_iterations=findings.successful,
        aggregation_method=findings.terms.plan.method,
        warnings=findings.warnings,
        judgement_ids=tuple(judgement.judgement_id for judgement in judgements),
        result=result.as_json(),
        cost_usd=total_cost(list(paid_judgements.values())),
        simulated=findings.simulated,
        evaluated_at=_find_latest_time(own_judgements) or request.requested_at,
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
        sampling_probability=request.sampling_probability,
        iterations=tuple(_build_iteration(iteration) for iteration in findings.iterations),
        checks=findings.terms.checks,
        rule_version=RULE_VERSION,
    )


def _build_resolution(resolution: Resolution, findings: Findings) -> DimensionResolution:
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


def _find_latest_time(judgements: Sequence[Judgement]) -> datetime | None:
    return max((judgement.judged_at for judgement in judgements), default=None)


def _build_iteration(iteration: IterationOutcome) -> EvaluationIteration:
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
    """Return the request to evaluate a run by a case. The same content always has the same fingerprint and ids.

    `earlier` are the judgements before this attempt, see `next_attempt`. `warnings` are those from reading the run. Raises BoundsError if
    case, prompt and view are too large for a record.
    """
    outcomes = check_run(case, run)
    checks = canonical_json(msgspec.to_builtins(outcomes))
    view = subject_view(case, run, outcomes, plan.max_view_characters)
    prompt = append_form(system_prompt)
    terms = case.model_dump(mode="json", exclude={"recorded"})
    yardstick = [RULE_VERSION, terms, plan.model_dump(mode="json", include=_SCORING), prompt]
    facts = _list_facts(run)
    fact_values = [value.isoformat() if isinstance(value, datetime) else value for value in facts.values()]
    fingerprint = _digest([*yardstick, view.text, checks, fact_values])
    request = EvaluationRequest(
        request_id="",
        connection=run.connection,
        project=run.project,
        session_id=run.session_id,
        case_id=case.case_id,
        case=canonical_json(terms),
        profile=canonical_json(plan.model_dump(mode="json")),
        fingerprint=fingerprint,
        repetition=repetition,
        requested_at=at,
        evaluation_id=stable_id("evaluation", run.connection, run.session_id, case.case_id, fingerprint),
        **facts,
        run_cost_usd=run.cost_usd,
        judge_run_id=plan.judge_run_id,
        judge_model=plan.judge.model,
        yardstick=_digest(yardstick),
        tags=case.tags,
        anomaly_reasons=tuple(view.anomaly_reasons),
        system_prompt=prompt,
        user_prompt=view.text,
        checks=checks,
        warnings=(*view.warnings, *warnings),
        rule_version=RULE_VERSION,
    )
    return next_attempt(request, attempt, earlier)


def append_form(system_prompt: str) -> str:
    """Append the form of message and answer to a prompt that does not contain it.

    A custom prompt only says how to score. The form is always needed: servers that ignore the answer's schema have no other description of
    it, and it tells the judge not to obey the texts of the run.
    """
    shipped = shipped_system_prompt()
    form = shipped[shipped.index(FORM) :]
    if form.strip() in system_prompt:
        return system_prompt
    return f"{system_prompt.rstrip()}\n\n{form}"


def _list_facts(run: Run) -> dict[str, Any]:
    """Return the facts of the run that are listed with its scores, named as in the records; the cost is not part of the fingerprint."""
    duration = None if run.started_at is None or run.ended_at is None else run.ended_at - run.started_at
    return {
        "subject_model": run.model,
        "agent": run.agent,
        "run_at": run.ended_at,
        "run_seconds": None if duration is None else duration.total_seconds(),
        "run_input_tokens": run.input_tokens,
        "run_output_tokens": run.output_tokens,
    }


def _digest(value: Any) -> str:
    """Return the SHA-256 of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def next_attempt(request: EvaluationRequest, attempt: int, earlier: Sequence[Judgement]) -> EvaluationRequest:
    """Return the request as another attempt, with as many earlier judgements as fit into a record.

    Raises BoundsError if the request alone is too large for a record.
    """
    attempt_id = request_id(request.evaluation_id, attempt)
    without_judgements = msgspec.structs.replace(request, request_id=attempt_id, attempt=attempt, earlier_judgements=())
    try:
        return add_earlier_judgements(without_judgements, earlier)
    except BoundsError as error:
        raise BoundsError(str(error), hint=_TOO_LARGE) from error
