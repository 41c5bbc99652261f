"""A judged stage without a call: its tasks answered from what was recorded.

What was not recorded is unscored with the reason no_judge. So an import scores without paying, and a replay comes to the records that
were made when the judge was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from audit.policy.policy import Policy
from streams.judging.judged_stages import NOT_DECODED, JudgedStage, JudgingTask
from streams.judging.judged_state import STATE, JudgedState, kept_after
from streams.judging.recorded_judgements import Recorded
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome


class JudgingStep:
    """The step of a judged stage; see `streams.stage_batches.Step`.

    `keeps_calls`: keep the recorded judgements of turns that may be judged again in the session's state, because `recorded` forgets
    those of tasks that are done.
    """

    def __init__(self, stage: JudgedStage[Any], policy: Policy, recorded: Recorded, *, keeps_calls: bool = False) -> None:
        self._stage = stage
        self._policy = policy
        self._recorded = recorded
        self._keeps_calls = keeps_calls

    def __call__(self, batch: StageBatch | RecordBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """One record for each task."""
        stage = self._stage
        tasks = [(offset, key, record) for offset, key, record in batch.records() if isinstance(record, stage.task_type)]
        recorded = self._recorded([stage.subject_of(task) for _, _, task in tasks])
        sessions = {key: STATE.decode(state) for key, state in states.items()}
        decoded = batch.decoded if isinstance(batch, RecordBatch) else NOT_DECODED
        outcome = StepOutcome()
        for offset, key, task in tasks:
            session = sessions.get(key, JudgedState())
            if offset < session.next_offset:
                continue
            judging_task: JudgingTask | None = None
            try:
                known = (*recorded.get(stage.subject_of(task), ()), *session.recorded_of(stage.id_of(task)))
                judging_task = stage.open(task, self._policy, known, spent=session.spent, decoded=decoded)
                outcome.records.append((stage.sink, judging_task.without_judge()))
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs one task, as it does where a judge is asked
                outcome.failed.append((offset, task, error))
            rested_on = judging_task.recorded if judging_task is not None and self._keeps_calls else ()
            kept = kept_after(session.kept, task, rested_on, self._policy)
            sessions[key] = JudgedState(offset + 1, stage.spent_after(session.spent, judging_task), kept)
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome
