"""Questions of an evaluation: the same question for each repetition, told apart only by its number."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from pydantic import ValidationError

from audit.evaluation.answers import answer_schema, read_evaluation
from audit.evaluation.cases.case import Case
from audit.evaluation.cases.profile import Plan
from audit.exchanges.outcomes import TierState
from audit.exchanges.questions import Material, Question
from audit.exchanges.states import UNSCORED
from audit.fingerprints import canonical_json, stable_id
from schemas.bounds.validation_messages import decoding_words, words_of
from schemas.errors import RecordError
from schemas.records import CheckOutcome, EvaluationRequest

EVALUATION = "evaluation"
"""Purpose of the questions."""
RULE_VERSION = "evaluation-1"
"""Version of checks, subject view, aggregation and policies; part of every fingerprint."""
NOT_RECORDED = TierState(UNSCORED, "not_recorded")
"""The state of an iteration where only recorded answers count, and none is there."""
NOT_BATCHED = TierState(UNSCORED, "not_batched")
"""The state of an iteration of a batch judge that no batch has answered: it is not asked call by call."""
_FALLBACKS: Mapping[str, TierState] = {"recorded": NOT_RECORDED}
"""By type of judge: the state of an iteration that may not be asked."""


def request_id(evaluation_id: str, attempt: int) -> str:
    """Id of the request for an evaluation's attempt: asked for twice, it is one request."""
    return stable_id("evaluation-request", evaluation_id, attempt)


@dataclass(frozen=True, slots=True)
class Terms:
    """The content of a request, decoded."""

    case: Case
    plan: Plan
    checks: tuple[CheckOutcome, ...]

    @classmethod
    def of(cls, request: EvaluationRequest) -> Terms:
        """The terms of a request; RecordError naming the field that is none of ours."""
        return cls(
            _read("case", request.case, Case.model_validate_json),
            _read("profile", request.profile, Plan.model_validate_json),
            _read("checks", request.checks, partial(msgspec.json.decode, type=tuple[CheckOutcome, ...])),
        )


def questions_of(request: EvaluationRequest) -> tuple[Question, ...]:
    """One question for each repetition, in order; RecordError for a request that was not made by `evaluation_request`."""
    terms = Terms.of(request)
    return tuple(_question(request, terms, iteration) for iteration in range(1, terms.plan.repetitions + 1))


def _question(request: EvaluationRequest, terms: Terms, iteration: int) -> Question:
    judge, dimensions = terms.plan.judge, terms.case.dimensions
    schema = answer_schema(dimensions)
    return Question(
        purpose=EVALUATION,
        model=judge.model,
        instructions=request.system_prompt,
        materials=(Material("subject_view", request.user_prompt),),
        task="",
        schema=schema,
        max_tokens=judge.max_tokens,
        fingerprint=_fingerprint(request, [judge.model, schema, judge.max_tokens], iteration),
        read=partial(read_evaluation, dimensions=dimensions),
        fallback=_FALLBACKS.get(judge.type),
        verbatim=True,
    )


def _fingerprint(request: EvaluationRequest, asked: list[Any], iteration: int) -> str:
    """Names the question and whose run it is about, but not who asks: a recorded judge finds what a live one was asked.

    Nor how its answers are put together, so that another method or policy is another evaluation and no other question.
    """
    about = [request.connection, request.session_id, request.case_id]
    named = canonical_json([EVALUATION, *asked, request.system_prompt, request.user_prompt, *about, iteration])
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


def _read(field: str, text: str, read: Any) -> Any:
    try:
        return read(text)
    except (ValidationError, msgspec.DecodeError, RecursionError) as error:
        words = _words(error)
        raise RecordError(
            f"EvaluationRequest.{field}: {words}", hint="Ask for the evaluation again: driftline evaluate makes the request."
        ) from error


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return words_of(error.errors(include_url=False)[0])
    return decoding_words(error) if isinstance(error, msgspec.MsgspecError) else "nests too deep"
