"""Tasks that no judge is asked about: settled without making their questions, to the same records."""

from __future__ import annotations

import builders as build
from engines import policy_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from audit.cost.session_ledger import Ledger
from audit.exchanges.cascade import drive
from audit.exchanges.outcomes import whole
from schemas.records import ScoringTask
from streams.judging.judged_stages import SCORING
from streams.stage_batches import RecordBatch, session_key
from streams.steps.intake import IntakeStep


@given(
    st.one_of(st.none(), st.integers(0, 200_000_000)),
    st.integers(0, 10_000_000),
    st.booleans(),
    st.sampled_from([0, 200, 2_000]),
)
def test_a_task_is_settled_as_if_its_questions_had_been_made(cap: int | None, spent: int, is_priced: bool, length: int) -> None:
    """A bound of what the first question takes tells that the cap leaves room; near the cap the question itself has to."""
    exchange, policy = build.exchange("s", 1, response="x" * length), policy_of()
    made = IntakeStep(policy)(RecordBatch([(0, session_key(exchange), exchange)]), {})
    (task,) = (record for _, record in made.records if isinstance(record, ScoringTask))
    opened = SCORING.open(task, policy, (), ledger=Ledger(cap, min(spent, spent if cap is None else cap)))
    opened = opened if is_priced else replace(opened, price=None)
    assert drive(opened.judging(), opened.unasked) == whole(opened.without_judge())


def test_an_exchange_that_was_decoded_already_is_not_decoded_again() -> None:
    """It is what a task carries, by its encoding; the score is the same."""
    exchange, policy = build.exchange("s", 1), policy_of()
    (row,) = IntakeStep(policy)(RecordBatch([(0, session_key(exchange), exchange)]), {}).records
    task = row[1]
    assert isinstance(task, ScoringTask)
    other = build.exchange("s", 1, response="Something else.")
    scores = [
        SCORING.open(task, policy, (), decoded=decoded).without_judge()
        for decoded in ({}, {task.exchange: exchange}, {b"": other})
    ]
    assert [scores[0]] * 3 == scores
