"""The questions of an evaluation and the judge's answers: one question per repetition, which differ only in their number.

The schema states bounds of numbers and lists only in descriptions, because no provider enforces them; the reader checks them.
Evidence comes before its score, because a model writes in the order of the schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from pydantic import ValidationError

from audit.answers import Fields, read_json
from audit.evaluation.cases import Case, Plan
from audit.evaluation.dimensions import HIGHEST, LOWEST, Dimension
from audit.exchanges.outcomes import TierState
from audit.exchanges.questions import Invalid, Material, Question
from audit.exchanges.states import UNSCORED
from audit.fingerprints import canonical_json, stable_id
from schemas.bounds import has_surrogates
from schemas.errors import RecordError
from schemas.records import CheckOutcome, EvaluationRequest
from schemas.validation_messages import decoding_words, words_of

EVALUATION = "evaluation"
"""Purpose of the questions."""
RULE_VERSION = "evaluation-1"
"""Version of checks, subject view, aggregation and policies; part of every fingerprint."""
NOT_RECORDED = TierState(UNSCORED, "not_recorded")
"""The state of an iteration if only recorded answers are used and none exists."""
NOT_BATCHED = TierState(UNSCORED, "not_batched")
"""The state of an iteration of a batch judge without an answer from a batch; it is not asked by a single call."""
_FALLBACKS: Mapping[str, TierState] = {"recorded": NOT_RECORDED}
"""The state of an iteration that may not be asked, by type of judge."""

MAX_EVIDENCE = 8
"""Most pieces of evidence for one score; at least one is required."""
MAX_FACT = 400
"""Characters kept of a piece of evidence."""
_EVIDENCE = {
    "type": "array",
    "items": {"type": "string"},
    "description": f"1 to {MAX_EVIDENCE} concise facts that the score rests on, each at most 30 words.",
}
_SCORE = {"type": "number", "description": f"From {LOWEST:g} to {HIGHEST:g}."}
_JUDGED = ("evidence", "score")


def request_id(evaluation_id: str, attempt: int) -> str:
    """Return the id of the request for an attempt at an evaluation; requesting it twice gives the same id."""
    return stable_id("evaluation-request", evaluation_id, attempt)


@dataclass(frozen=True, slots=True)
class Terms:
    """The content of a request, decoded."""

    case: Case
    plan: Plan
    checks: tuple[CheckOutcome, ...]

    @classmethod
    def of(cls, request: EvaluationRequest) -> Terms:
        """Decode the terms of a request; raises RecordError naming the invalid field."""
        return cls(
            _read("case", request.case, Case.model_validate_json),
            _read("profile", request.profile, Plan.model_validate_json),
            _read("checks", request.checks, partial(msgspec.json.decode, type=tuple[CheckOutcome, ...])),
        )


def _read(field: str, text: str, read: Any) -> Any:
    try:
        return read(text)
    except (ValidationError, msgspec.DecodeError, RecursionError) as error:
        reason = _reason_of(error)
        raise RecordError(
            f"EvaluationRequest.{field}: {reason}", hint="Ask for the evaluation again: driftline evaluate makes the request."
        ) from error


def _reason_of(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return words_of(error.errors(include_url=False)[0])
    return decoding_words(error) if isinstance(error, msgspec.MsgspecError) else "nests too deep"


def questions_of(request: EvaluationRequest) -> tuple[Question, ...]:
    """Return one question per repetition, in order; raises RecordError for a request not made by `evaluation_request`."""
    terms = Terms.of(request)
    return tuple(_build_question(request, terms, iteration) for iteration in range(1, terms.plan.repetitions + 1))


def _build_question(request: EvaluationRequest, terms: Terms, iteration: int) -> Question:
    judge = terms.plan.judge
    dimensions = terms.case.dimensions
    schema = answer_schema(dimensions)
    return Question(
        purpose=EVALUATION,
        model=judge.model,
        instructions=request.system_prompt,
        materials=(Material("subject_view", request.user_prompt),),
        task="",
        schema=schema,
        max_tokens=judge.max_tokens,
        fingerprint=_compute_fingerprint(request, [judge.model, schema, judge.max_tokens], iteration),
        read=partial(read_evaluation, dimensions=dimensions),
        fallback=_FALLBACKS.get(judge.type),
        verbatim=True,
    )


def _compute_fingerprint(request: EvaluationRequest, form: list[Any], iteration: int) -> str:
    """Return the digest of the question and its run, without the judge, so that a recorded judge finds a live judge's answers.

    The aggregation is left out as well: another method or policy is another evaluation with the same questions.
    """
    run = [request.connection, request.session_id, request.case_id]
    identity = canonical_json([EVALUATION, *form, request.system_prompt, request.user_prompt, *run, iteration])
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Assessment:
    """One score with its evidence."""

    evidence: tuple[str, ...]
    """At least one fact, each on one line."""
    score: float
    """0 to 10."""


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """The judge's answer about a run."""

    dimensions: Mapping[Dimension, Assessment]
    """The requested dimensions, in order."""
    overall: Assessment
    """The judge's own overall score, not a mean."""


def answer_schema(dimensions: Sequence[Dimension]) -> dict[str, Any]:
    """Return the JSON schema of the answer about these dimensions: closed objects, every field required."""
    assessment = _build_closed_object({"evidence": _EVIDENCE, "score": _SCORE})
    return _build_closed_object(
        {"dimensions": _build_closed_object(dict.fromkeys(dimensions, assessment)), "overall": assessment}
    )


def _build_closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these fields, all required."""
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def read_evaluation(text: str, *, dimensions: Sequence[Dimension]) -> EvaluationAnswer | Invalid:
    """Return the answer to a question about these dimensions, or every problem of it. Never raises."""
    value = read_json(text)
    if isinstance(value, Invalid):
        return value
    fields = _EvaluationFields(())
    members = fields.members(value, ("dimensions", "overall"), "the answer")
    dimension_members = fields.members(members["dimensions"], dimensions, "dimensions") if "dimensions" in members else {}
    answer = EvaluationAnswer(
        {dimension: fields.assessment(dimension_members, dimension) for dimension in dimensions},
        fields.assessment(members, "overall"),
    )
    return fields.invalid or answer


class _EvaluationFields(Fields):
    """Reads the fields of an answer; see `Fields`."""

    def assessment(self, members: Mapping[str, Any], name: str) -> Assessment:
        """Return a score with its evidence; the problem of a missing field was already noted."""
        assessed = self.members(members[name], _JUDGED, name) if name in members else {}
        evidence = self._read_facts(assessed["evidence"], f"{name}.evidence") if "evidence" in assessed else ()
        # -0.0 equals 0.0 but is written differently.
        return Assessment(evidence, self.number(assessed, "score", int(LOWEST), int(HIGHEST), f"{name}.") + 0.0)

    def _read_facts(self, value: Any, path: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_EVIDENCE:
            self._problems.append(f"{path} must be a list of 1 to {MAX_EVIDENCE} texts")
            return ()
        return tuple(self._read_fact(fact, f"{path}[{index}]") for index, fact in enumerate(value))

    def _read_fact(self, value: Any, path: str) -> str:
        """Return a fact on one line, cut to MAX_FACT characters."""
        fact = " ".join(value.split()) if isinstance(value, str) else ""
        if not fact:
            self._problems.append(f"{path} must be a text that is not empty")
        elif has_surrogates(fact):
            self._problems.append(f"{path} must be a text that is not empty and holds no lone surrogate")
        return fact if len(fact) <= MAX_FACT else f"{fact[: MAX_FACT - 1]}…"
