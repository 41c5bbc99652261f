"""Agreement of evaluations and people: the judge's verdict on a run against the scores of its exchanges by people.

People score exchanges from 1 to 5, an evaluation the whole run from 0 to 10. A rater's word on a run is the mean of what they gave its
exchanges, rounded to the nearest point; the verdict is put onto the same scale, 0 as 1 and 10 as 5. Then it is the agreement of any
scores: weighted kappa and bias, with sessions as clusters. Runs are looked at for reasons of their own, so each stands for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audit.agreement import HIGHEST, LOWEST, Agreement, Label, agreement, rounded
from audit.evaluation.dimensions import HIGHEST as BEST

_EVERY = "every run"


@dataclass(frozen=True, slots=True)
class Said:
    """One person's verdict on the exchanges of an evaluated run."""

    evaluation_id: str
    session: tuple[str, str]
    """Connection and id."""
    rater: str
    human: float
    """Mean of the scores they gave, 1 to 5."""
    final_score: float
    """Of the evaluation, 0 to 10."""


def on_the_scale_of_people(final_score: float) -> float:
    """A verdict from 0 to 10 as a score from 1 to 5."""
    return LOWEST + (HIGHEST - LOWEST) * final_score / BEST


def agreement_with_people(said: Sequence[Said]) -> Agreement:
    """Measure how far verdicts and people agree, with one label per rater and evaluation."""
    labels = [
        Label(
            exchange=one.evaluation_id,
            session=one.session,
            rater=one.rater,
            human=rounded(one.human),
            judge=on_the_scale_of_people(one.final_score),
            stratum=_EVERY,
        )
        for one in said
    ]
    return agreement(labels, {_EVERY: len({one.evaluation_id for one in said})})
