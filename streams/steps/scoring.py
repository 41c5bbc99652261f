"""The scoring stage without a judge: every tier that wants one is unscored, with the reason no_judge."""

from __future__ import annotations

from collections.abc import Mapping

from audit.outcomes import NO_JUDGE, structural_score
from audit.policy import Policy
from schemas.records import Score, ScoringTask
from streams.batches import StageBatch, StepOutcome, encoded_exchange


class ScoringStep:
    """The stage's step; see `streams.batches.Step`. It keeps no state."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:  # noqa: ARG002 - nothing is kept
        """One score for each task."""
        tasks = (record for _, _, record in batch.records() if isinstance(record, ScoringTask))
        return StepOutcome(records=[("scores", self._score(task)) for task in tasks])

    def _score(self, task: ScoringTask) -> Score:
        return structural_score(
            encoded_exchange(task.exchange),
            self._policy.for_project(task.project),
            revision=task.revision,
            turn_number=task.turn_number,
            sampling_reason=task.sampling_reason,
            sampling_probability=task.sampling_probability,
            tier1_score=task.tier1_score,
            tier1_flags=task.tier1_flags,
            judged=NO_JUDGE,
        )
