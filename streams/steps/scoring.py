"""The scoring stage without a call: the cascade over tasks, answered from what was recorded.

Where nothing was recorded, the tiers that want a judge are unscored with the reason no_judge. So an import scores without paying,
and a replay comes to the scores that were made when the judge was asked.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from audit.cascade import drive
from audit.ledger import Ledger
from audit.policy import Policy
from schemas.records import ScoringTask
from streams.batches import StageBatch, StepOutcome
from streams.docket import STATE, Docket, ScoringState
from streams.recorded import Recorded


class ScoringStep:
    """The stage's step; see `streams.batches.Step`."""

    def __init__(self, policy: Policy, recorded: Recorded) -> None:
        self._policy = policy
        self._recorded = recorded

    def __call__(self, batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """One score for each task."""
        tasks = [(offset, key, record) for offset, key, record in batch.records() if isinstance(record, ScoringTask)]
        recorded = self._recorded([(task.connection, task.exchange_id) for _, _, task in tasks])
        sessions = {key: STATE.decode(state) for key, state in states.items()}
        outcome = StepOutcome()
        for offset, key, task in tasks:
            session = sessions.get(key, ScoringState())
            if offset < session.next_offset:
                continue
            ledger = Ledger(self._policy.for_project(task.project).cap, session.spent)
            try:
                docket = Docket.of(task, self._policy, recorded.get((task.connection, task.exchange_id), ()), ledger)
                outcome.records.append(("scores", drive(docket.judging(), docket.unasked)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs one exchange, as it does where a judge is asked
                outcome.failed.append((offset, task, error))
            sessions[key] = ScoringState(offset + 1, ledger.spent)
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome
