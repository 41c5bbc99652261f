"""Outcome of each call of the judge: the answer that counts, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.evaluation.answers import EvaluationAnswer
from audit.evaluation.questions import NOT_BATCHED, NOT_RECORDED
from audit.evaluation.results.result import Iteration, IterationScores
from audit.exchanges.judgements import ANSWERED, COST_CAP, INTERRUPTED, UNKNOWN_PRICE
from audit.exchanges.outcomes import NO_JUDGE
from audit.exchanges.questions import Invalid, Question, Reply
from audit.fingerprints import canonical_json
from audit.prompts.answer_json import MAX_ANSWER
from schemas.records import Judgement

INVALID = "invalid"
"""Outcome of an iteration whose answer cannot be read."""
MAX_ANSWERS_BYTES = 400_000
"""Bytes of JSON that the answers of one result take together, so that it fits into a record; the judgements hold them whole."""
_MAX_REASON = 500
_REASONS: Mapping[str, str] = {
    NOT_RECORDED.reason: "only recorded answers count, and none is recorded",
    NOT_BATCHED.reason: "no batch has answered it, and a batch judge is not asked outside of batches",
    NO_JUDGE.reason: "no judge is configured",
    COST_CAP.reason: "the cost cap of the evaluation leaves no room for the call",
    UNKNOWN_PRICE.reason: "there is a cost cap, and the model has no known price",
}
"""The reasons for a call that was never made, in words."""
_CALL = (
    "judgement_id",
    "answering_model",
    "attempts",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "latency_ms",
    "batched",
    "simulated",
    "judged_at",
)
"""The fields of its judgement that an iteration shows unchanged."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One iteration, after the judge was asked."""

    number: int
    """From 1."""
    outcome: str
    """answered, or why it does not count."""
    reason: str | None
    """A description of the failure, in words."""
    answer: EvaluationAnswer | None
    """None where it does not count."""
    judgement: Judgement | None
    """The one it rests on."""
    judgements: tuple[Judgement, ...]
    """All that were recorded of the question, those of failed calls, too."""


def asked(number: int, question: Question, reply: Reply) -> Asked:
    """Make an iteration of a reply. ValueError for a reply that is neither a text nor a state."""
    judgements = tuple(sorted(reply.judgements, key=lambda one: (one.subject_revision, one.judged_at, one.judgement_id)))
    if reply.state is not None:
        last = next((one for one in reversed(judgements) if one.outcome != INTERRUPTED), None)
        reason = last.error if last is not None and last.outcome == reply.state.reason else None
        words = reason or _REASONS.get(reply.state.reason)
        return Asked(number, reply.state.reason, _cut(words), None, last, judgements)
    if reply.text is None:
        raise ValueError(f"the reply to iteration {number} is neither a text nor a state")
    found = next((one for one in judgements if one.outcome == ANSWERED), None)
    answer = question.read(reply.text)
    if isinstance(answer, Invalid):
        return Asked(number, INVALID, _cut("; ".join(answer.problems)), None, found, judgements)
    return Asked(number, ANSWERED, None, answer, found, judgements)


def documents(iterations: Sequence[Asked], evaluation_id: str) -> tuple[Iteration, ...]:
    """The iterations as the result of the evaluation shows them."""
    return tuple(_document(one, evaluation_id, MAX_ANSWERS_BYTES // len(iterations)) for one in iterations)


def _document(one: Asked, evaluation_id: str, room: int) -> Iteration:
    scores = None
    if one.answer is not None:
        by_dimension = {dimension: found.score for dimension, found in one.answer.dimensions.items()}
        scores = IterationScores(dimensions=by_dimension, overall=one.answer.overall.score)
    call = _call(one.judgement, evaluation_id, room)
    return Iteration(iteration=one.number, outcome=one.outcome, reason=one.reason, scores=scores, **call)


def _call(known: Judgement | None, evaluation_id: str, room: int) -> dict[str, Any]:
    """Return the facts about the call; nothing for one that was never made.

    A call that was made for another evaluation has cost this one nothing.
    """
    if known is None:
        return dict.fromkeys((*_CALL, "answer", "taken_over_from")) | {"attempts": 0, "batched": False, "simulated": False}
    shown = {name: getattr(known, name) for name in _CALL} | {"answer": known.answer and _fitting(known.answer, room)}
    if known.subject_id == evaluation_id:
        return shown | {"taken_over_from": None}
    return shown | {"taken_over_from": known.subject_id, "attempts": 0, "cost_usd": 0.0}


def _fitting(answer: str, room: int) -> str:
    """The answer, cut so that it takes no more than so many bytes as JSON; a cut says what is left out."""
    if len(answer) <= MAX_ANSWER and _size(answer) <= room:
        return answer
    shown = answer[:room]
    while _size(shown) > room:
        shown = shown[: len(shown) * room // (_size(shown) + 1)]
    return f"{shown} [… {len(answer) - len(shown)} characters left out …]"


def _size(text: str) -> int:
    return len(canonical_json(text).encode())


def _cut(words: str | None) -> str | None:
    return words if words is None or len(words) <= _MAX_REASON else f"{words[: _MAX_REASON - 1]}…"
