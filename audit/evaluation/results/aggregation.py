"""Aggregation of the judge's answers to one score per dimension: median or mean of the iterations, and their spread.

Nothing is rounded here: scores are rounded where they are shown. Every sum is exact before it is divided, so the order of the
iterations never matters and an aggregate never leaves the range of what it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from audit.evaluation.answers import Assessment, EvaluationAnswer
from audit.evaluation.cases.profile import Method
from audit.evaluation.dimensions import Dimension

_METHODS = {"median": median, "mean": mean}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One score over all iterations that succeeded."""

    score: float
    """Median or mean, 0 to 10."""
    spread: float
    """Largest minus smallest."""
    evidence: tuple[str, ...]
    """The evidence of one iteration; see `Aggregates.evidence_iteration`."""


@dataclass(frozen=True, slots=True)
class Aggregates:
    """The aggregate of the iterations that succeeded."""

    dimensions: Mapping[Dimension, Aggregate]
    overall: Aggregate
    evidence_iteration: int
    """The iteration whose overall score is nearest to the aggregate, the first of equals. All evidence is taken from it, so that
    it hangs together."""


def aggregate(answers: Mapping[int, EvaluationAnswer], method: Method) -> Aggregates | None:
    """The answers, by number of iteration, as one; None where there is none. All are about the same dimensions."""
    if not answers:
        return None
    numbers = sorted(answers)
    middle = _METHODS[method]([answers[number].overall.score for number in numbers])
    nearest = min(numbers, key=lambda number: abs(answers[number].overall.score - middle))
    found = answers[nearest]
    return Aggregates(
        {
            dimension: _aggregate([answers[number].dimensions[dimension] for number in numbers], method, one.evidence)
            for dimension, one in found.dimensions.items()
        },
        _aggregate([answers[number].overall for number in numbers], method, found.overall.evidence),
        nearest,
    )


def _aggregate(iterations: Sequence[Assessment], method: Method, evidence: tuple[str, ...]) -> Aggregate:
    scores = [one.score for one in iterations]
    return Aggregate(_METHODS[method](scores), max(scores) - min(scores), evidence)
