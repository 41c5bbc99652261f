"""The judge's answer on a finished run: its JSON schema, and the reader that takes nothing else.

Bounds of numbers and lists are in words only: no provider enforces them, so the reader checks them. Evidence comes before its
score, because a model writes in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.evaluation.dimensions import HIGHEST, LOWEST, Dimension
from audit.exchanges.questions import Invalid
from audit.prompts.answer_fields import Fields
from audit.prompts.answer_json import read_json
from schemas.bounds.limits import has_surrogates

MAX_EVIDENCE = 8
"""Most pieces of evidence for one score; there is at least one."""
MAX_FACT = 400
"""Characters that are kept of a piece of evidence."""
_EVIDENCE = {
    "type": "array",
    "items": {"type": "string"},
    "description": f"1 to {MAX_EVIDENCE} concise facts that the score rests on, each at most 30 words.",
}
_SCORE = {"type": "number", "description": f"From {LOWEST:g} to {HIGHEST:g}."}
_JUDGED = ("evidence", "score")


@dataclass(frozen=True, slots=True)
class Assessment:
    """One score, and what it rests on."""

    evidence: tuple[str, ...]
    """At least one fact, each on one line."""
    score: float
    """0 to 10."""


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """The judge's answer about a run."""

    dimensions: Mapping[Dimension, Assessment]
    """Those that were asked, in the order they were asked."""
    overall: Assessment
    """The judge's own verdict on the whole, not a mean."""


def answer_schema(dimensions: Sequence[Dimension]) -> dict[str, Any]:
    """JSON schema of the answer about these dimensions: closed objects, every field required."""
    one = _closed({"evidence": _EVIDENCE, "score": _SCORE})
    return _closed({"dimensions": _closed(dict.fromkeys(dimensions, one)), "overall": one})


def read_evaluation(text: str, *, dimensions: Sequence[Dimension]) -> EvaluationAnswer | Invalid:
    """The answer to a question about these dimensions, or every reason why it cannot be used. Raises for no text."""
    value = read_json(text)
    if isinstance(value, Invalid):
        return value
    fields = _EvaluationFields(())
    members = fields.members(value, ("dimensions", "overall"), "the answer")
    found = fields.members(members["dimensions"], dimensions, "dimensions") if "dimensions" in members else {}
    answer = EvaluationAnswer(
        {one: fields.assessment(found, one) for one in dimensions},
        fields.assessment(members, "overall"),
    )
    return fields.invalid or answer


class _EvaluationFields(Fields):
    """Takes the answer apart; see `Fields`."""

    def assessment(self, members: Mapping[str, Any], name: str) -> Assessment:
        """A score with its evidence. A field that is missing was noted with the object that lacks it."""
        one = self.members(members[name], _JUDGED, name) if name in members else {}
        evidence = self._facts(one["evidence"], f"{name}.evidence") if "evidence" in one else ()
        # Minus zero is smaller than zero to no one, and yet another text.
        return Assessment(evidence, self.number(one, "score", int(LOWEST), int(HIGHEST), f"{name}.") + 0.0)

    def _facts(self, value: Any, at: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_EVIDENCE:
            self._problems.append(f"{at} must be a list of 1 to {MAX_EVIDENCE} texts")
            return ()
        return tuple(self._fact(one, f"{at}[{place}]") for place, one in enumerate(value))

    def _fact(self, value: Any, at: str) -> str:
        words = " ".join(value.split()) if isinstance(value, str) else ""
        if not words or has_surrogates(words):
            self._problems.append(f"{at} must be a text that is not empty" + (" and holds no lone surrogate" if words else ""))
        return words if len(words) <= MAX_FACT else f"{words[: MAX_FACT - 1]}…"


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with these fields, each of them, and no others."""
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}
