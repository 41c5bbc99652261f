"""Recorded judgements: a replay reuses the answers of the first run, and no call is paid or charged twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.cost import usd_of
from audit.exchanges.outcomes import TierState
from audit.exchanges.questions import COST_CAP, UNKNOWN_PRICE, charged, outcome_state, recorded_reply
from schemas.records import Judgement

START = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)
OUTCOMES = ("answered", "refused", "cut_off", "provider_error", "timeout", "invalid", "cost_cap", "interrupted")


def judgement(number: int, outcome: str = "answered", revision: int = 0, **fields: Any) -> Judgement:
    """Return judgement `number` of a question."""
    values: dict[str, Any] = {
        "judgement_id": f"j{number}",
        "fingerprint": "f" * 64,
        "connection": "local",
        "project": "ops",
        "session_id": "s",
        "subject_id": "s:1",
        "purpose": "tier2",
        "requested_model": "claude-haiku-4-5",
        "outcome": outcome,
        "answer": f"answer {number}" if outcome == "answered" else None,
        "attempts": 1,
        "cost_usd": usd_of(10**number),
        "judged_at": START + timedelta(seconds=number),
        "subject_revision": revision,
    }
    return Judgement(**(values | fields))


histories = st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(0, 3)), max_size=8).map(
    lambda kinds: [judgement(number, *kind) for number, kind in enumerate(kinds)]
)


@pytest.mark.parametrize(
    ("records", "revision", "expected"),
    [
        ([], 0, None),
        ([judgement(1)], 0, "answer 1"),
        ([judgement(1, "timeout"), judgement(2)], 0, "answer 2"),
        ([judgement(1), judgement(2, "timeout")], 0, "answer 1"),
        ([judgement(1), judgement(2)], 0, "answer 1"),
        ([judgement(1)], 3, "answer 1"),
        ([judgement(1, revision=1)], 0, None),
        ([judgement(1, "refused"), judgement(2, revision=1)], 0, TierState("unscored", "refused")),
        ([judgement(1, "refused"), judgement(2, revision=1)], 1, "answer 2"),
        ([judgement(1, "refused")], 1, None),
        ([judgement(1, "refused"), judgement(2, "timeout")], 0, TierState("unscored", "timeout")),
        ([judgement(1, "invalid"), judgement(2, "interrupted")], 0, TierState("unscored", "invalid")),
        ([judgement(1, "interrupted")], 0, None),
        ([judgement(1, "cost_cap")], 0, COST_CAP),
        ([judgement(1, answer=None)], 0, ""),
    ],
)
def test_the_deciding_record_depends_on_outcome_and_revision(
    records: list[Judgement], revision: int, expected: TierState | str | None
) -> None:
    """An answer counts for all later revisions, a failure for its own revision, an interrupted call never."""
    reply = recorded_reply(records, revision)
    assert (reply and (reply.state or reply.text)) == expected


def test_the_cost_of_a_reply_includes_every_paid_call() -> None:
    """Calls that failed or were cut short by a crash cost money too, which the score must include."""
    records = [judgement(1, "timeout"), judgement(2, "interrupted", 1), judgement(3, revision=1), judgement(4, revision=2)]
    reply = recorded_reply(records, 1)
    assert reply is not None
    assert [one.judgement_id for one in reply.judgements] == ["j1", "j2", "j3"]


@settings(deadline=None)
@given(history=histories, data=st.data())
def test_the_order_of_records_does_not_matter(history: list[Judgement], data: st.DataObject) -> None:
    """A replay reads partitions in any order, and must compute the same score."""
    shuffled = data.draw(st.permutations(history))
    assert [recorded_reply(history, revision) for revision in range(4)] == [recorded_reply(shuffled, r) for r in range(4)]


@settings(deadline=None)
@given(history=histories, revision=st.integers(0, 3))
def test_later_judgements_are_ignored(history: list[Judgement], revision: int) -> None:
    """A replay of an old revision must not see later judgements."""
    known_by_then = [judgement for judgement in history if judgement.subject_revision <= revision]
    assert recorded_reply(known_by_then, revision) == recorded_reply(history, revision)


@settings(deadline=None)
@given(history=histories)
def test_revisions_together_are_charged_every_judgement_once(history: list[Judgement]) -> None:
    """A session that is judged again keeps its account: earlier charges are not repeated."""
    assert sum(10**number for number in range(len(history))) == sum(charged(history, revision) for revision in range(4))


def test_a_call_without_a_known_price_is_charged_nothing() -> None:
    """Only a session without a cap calls a model without a price, so its account needs no amount."""
    assert charged([judgement(1), judgement(2, cost_usd=None)], 0) == 10


def test_a_reached_cap_is_skipped_and_a_missing_price_is_not() -> None:
    """A reached cap is intended; a missing price must be fixed."""
    assert outcome_state("cost_cap") == ("skipped_cost_cap", "cost_cap")
    assert outcome_state("timeout") == ("unscored", "timeout")
    assert UNKNOWN_PRICE == ("unscored", "unknown_price")
