"""Requests for evaluations: a case, a plan and a run become one record that holds everything the judge is shown.

Names and ways of asking change no score, so neither the ids of profile, judge run and judge nor the type of the judge nor the cost cap
are in the fingerprint: the same run with the same case is evaluated once, however often it is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from audit.evaluation.cases import Case, Plan, shipped_system_prompt
from audit.evaluation.checks import check_run
from audit.evaluation.questions import RULE_VERSION, request_id
from audit.evaluation.run import Run
from audit.evaluation.view import subject_view
from audit.exchanges.judgements import with_earlier
from audit.fingerprints import canonical_json, stable_id
from schemas.errors import BoundsError
from schemas.records import EvaluationRequest, Judgement

_TOO_LARGE = "Make max_view_characters of the profile smaller, or the case or its system prompt shorter."
_SCORING: dict[str, Any] = {
    "judge": {"model", "max_tokens"},
    "repetitions": True,
    "method": True,
    "dimension_policies": True,
}
"""The parts of a plan that a score depends on, whatever the run."""


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


FORM = "# What you are given, and what you answer"
"""Heading of the last part of the shipped prompt: the form of the message, which texts are data, and the shape of the answer."""


def complete(system_prompt: str) -> str:
    """The prompt with the form put at its end, where it does not hold it word for word.

    One's own prompt says how to score. What the judge is given and how it answers is no matter of taste: a server that takes no
    notice of the answer's schema has nothing else to go by, and nor has a judge that is not to obey the texts it reads.
    """
    shipped = shipped_system_prompt()
    form = shipped[shipped.index(FORM) :]
    return system_prompt if form.strip() in system_prompt else f"{system_prompt.rstrip()}\n\n{form}"
