"""The answers that a worker on Kafka keeps: those of turns that may be judged again, within a bound."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders as build

from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Judgement, ScoringTask
from streams.judging import judged_stages
from streams.judging.judged_stages import STATE, JudgedState, KeptCalls, update_kept_calls

REASONS = ("first_turns", "sampling_disabled", "tier1_flags", "disagreement", "long_response", "routine_sample", "retried")
LAST = "last_turns"
POLICY = Policy.model_validate({"defaults": {"sampling": {"alwaysScoreLast": 2}}})


def task(turn: int, reason: str) -> ScoringTask:
    """Return the task of a turn."""
    return ScoringTask(
        connection="local", project="ops", session_id="s", exchange_id=f"s:{turn}", revision=int(reason == LAST), exchange=b"",
        turn_number=turn, sampling_reason=reason, sampling_probability=1.0, tier1_score=1.0, tier1_flags=(),
        methodology="default", rule_version="r", policy_digest="p",
    )  # fmt: skip


def answer(turn: int) -> Judgement:
    """Return a judgement of a turn."""
    return build.judgement("s", turn, subject_id=f"s:{turn}")


def after(tasks: Sequence[tuple[int, str]]) -> tuple[KeptCalls, ...]:
    """Return the kept calls after these answered tasks."""
    kept_calls: tuple[KeptCalls, ...] = ()
    for turn, reason in tasks:
        kept_calls = update_kept_calls(kept_calls, task(turn, reason), [answer(turn)], POLICY)
    return kept_calls


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(REASONS)), max_size=20))
def test_answers_of_the_newest_possible_last_turns_are_kept(tasks: list[tuple[int, str]]) -> None:
    """Whichever turns turn out to be last, their answers are available, each turn once."""
    eligible = sorted({turn for turn, reason in tasks if reason not in {"first_turns", "sampling_disabled"}})
    kept_calls = after(tasks)
    assert [f"s:{turn}" for turn in eligible[-2:]] == [call.subject_id for call in kept_calls]
    state = STATE.decode(msgspec.msgpack.encode(JudgedState(1, 2, kept_calls)))
    for turn in range(31):
        assert ([answer(turn)] if turn in eligible[-2:] else []) == state.judgements_of(f"s:{turn}")


def test_a_closed_session_keeps_no_answers() -> None:
    """States of millions of closed sessions are kept, so they must be small."""
    assert after([(6, "routine_sample"), (7, "disagreement"), (8, LAST), (9, LAST)]) == ()


def test_answers_after_a_last_turn_are_kept() -> None:
    """Last turns come in order, and the answers of the next one are still needed."""
    kept_calls = after([(7, "routine_sample"), (8, "disagreement"), (7, LAST)])
    assert [call.subject_id for call in kept_calls] == ["s:8"]


def test_a_task_without_an_answer_removes_nothing() -> None:
    """Without a judge, earlier paid answers are kept."""
    kept_calls = after([(7, "routine_sample")])
    assert update_kept_calls(kept_calls, task(7, "routine_sample"), (), POLICY) == kept_calls


def test_kept_answers_never_exceed_the_bound_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state beyond the topic's limit would stop the whole session; repeating a question is cheap."""
    monkeypatch.setattr(judged_stages, "KEPT_BYTES", len(encode(answer(7))) + 10)
    assert [call.subject_id for call in after([(7, "routine_sample"), (8, "routine_sample")])] == ["s:8"]


def test_an_invalid_kept_judgement_does_not_stop_a_worker() -> None:
    """A state topic may hold arbitrary bytes: at worst a question is asked again."""
    kept_calls = (KeptCalls(7, "s:7", (b"\xff\x00", b"", encode(build.exchange("s", 7)), encode(answer(7)))),)
    assert JudgedState(1, 0, kept_calls).judgements_of("s:7") == [answer(7)]


def test_a_state_of_the_previous_version_is_readable() -> None:
    """During a rolling upgrade, both versions must read both formats."""
    assert JudgedState(7, 8) == STATE.decode(msgspec.msgpack.encode([7, 8]))
    newer = msgspec.msgpack.encode([7, 8, [], [], "what a later version adds"])
    assert JudgedState(7, 8) == STATE.decode(newer)
