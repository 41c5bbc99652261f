"""Sampling: the order of the rules, the last turns of a session, and weights that add up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.exchanges.sampling import (
    Candidate,
    Decision,
    DeferredExchange,
    SamplingState,
    close,
    decide,
    decide_again,
    is_disagreement,
    routine_start,
)
from audit.policy import Sampling
from schemas.records import ToolCall

UNREMARKABLE: dict[str, Any] = {
    "agent_response": "Done.",
    "output_tokens": 10,
    "tier1_flags": (),
    "tool_calls": (),
    "is_tampering": False,
}
FAILED_CALL = (ToolCall(name="deploy", arguments="{}", result="timeout", outcome="error"),)
DEFAULT_POLICY = Sampling()
MAX_CHI_SQUARE = 30
"""About p = 0.0004 for ten starts, the largest number tested."""
PERMANENT_REASONS = {"sampling_disabled", "first_turns"}
"""Reasons that a turn keeps even if it is one of the last."""

policies = st.builds(
    Sampling,
    enabled=st.sampled_from([True, True, True, False]),
    routine_interval=st.integers(1, 5),
    always_score_first=st.integers(0, 4),
    always_score_last=st.integers(0, 4),
    always_score_disagreement=st.booleans(),
    always_score_long_responses=st.booleans(),
)
fact_sets = st.fixed_dictionaries(
    {
        "agent_response": st.sampled_from(["Done.", "I disagree."]),
        "output_tokens": st.sampled_from([None, 0, 500, 501]),
        "tier1_flags": st.sampled_from([(), (), ("silent_refusal",)]),
        "tool_calls": st.sampled_from([(), (), FAILED_CALL]),
    }
)
streams = st.lists(fact_sets, max_size=25)


@cache
def find_session(start: int, interval: int) -> str:
    """Return a session whose routine samples are the turns with this remainder."""
    return next(name for name in map(str, itertools.count()) if routine_start(name, interval) == start)


def candidate(number: int, *, turn: int | None = None, session: str = "", **facts: Any) -> Candidate:
    """Return exchange `number` of a session, by default without anything notable."""
    values = {**UNREMARKABLE, **facts}
    return Candidate(session=session, exchange_id=f"e{number}", revision=0, turn_number=turn, record=b"%d" % number, **values)


def decide_all(stream: list[dict[str, Any]], policy: Sampling, state: SamplingState | None = None, start: int = 1) -> Any:
    """Return the decisions on a stream of exchanges, and the final state."""
    state = state or SamplingState()
    decisions = []
    for number, facts in enumerate(stream, start):
        decision, state = decide(state, candidate(number, **facts), policy)
        decisions.append(decision)
    return decisions, state


@pytest.mark.parametrize(
    ("turn", "changes", "policy", "reason", "probability"),
    [
        (7, {"tier1_flags": ("a",)}, {"enabled": False}, "sampling_disabled", 1.0),
        (5, {"tier1_flags": ("a",)}, {}, "first_turns", 1.0),
        (0, {}, {}, "first_turns", 1.0),
        (7, {"tier1_flags": ("a",), "agent_response": "I disagree"}, {}, "tier1_flags", 1.0),
        (7, {"tier1_flags": ("a",), "tool_calls": FAILED_CALL}, {}, "tier1_flags", 1.0),
        (7, {"agent_response": "I disagree", "tool_calls": FAILED_CALL}, {}, "tool_trouble", 1.0),
        (7, {"tool_calls": FAILED_CALL}, {"always_score_tool_trouble": False}, "sampling_skip", None),
        (7, {"agent_response": "I disagree", "output_tokens": 501}, {}, "disagreement", 1.0),
        (7, {"agent_response": "I disagree"}, {"always_score_disagreement": False}, "sampling_skip", None),
        (9, {"output_tokens": 501}, {}, "long_response", 1.0),
        (7, {"output_tokens": 501}, {"always_score_long_responses": False}, "sampling_skip", None),
        (7, {"output_tokens": 500}, {}, "sampling_skip", None),
        (7, {"is_tampering": True, "output_tokens": 501}, {}, "judge_tampering", 1.0),
        (7, {"output_tokens": None}, {}, "sampling_skip", None),
        (7, {"output_tokens": 1}, {"long_response_threshold": 0}, "long_response", 1.0),
        (7, {"output_tokens": 0}, {"long_response_threshold": 0}, "sampling_skip", None),
        (9, {}, {}, "routine_sample", 1 / 3),
        (6, {}, {}, "routine_sample", 1 / 3),
        (8, {}, {}, "sampling_skip", None),
        (8, {}, {"routine_interval": 1}, "routine_sample", 1.0),
        (0, {}, {"always_score_first": 0, "routine_interval": 7}, "routine_sample", 1 / 7),
        (1, {}, {"always_score_first": 0}, "sampling_skip", None),
    ],
)
def test_the_first_matching_rule_decides(
    turn: int, changes: dict[str, Any], policy: dict[str, Any], reason: str, probability: float | None
) -> None:
    """The reason is stored and determines the weight in averages, so the order of the rules matters."""
    sampling = Sampling(**policy)
    session = find_session(0, sampling.routine_interval)
    decision, _ = decide(SamplingState(), candidate(1, turn=turn, session=session, **changes), sampling)
    assert decision == Decision(reason != "sampling_skip", reason, probability, turn)


def test_a_default_session_samples_the_documented_turns() -> None:
    """The documentation promises the first 5 turns, every 3rd turn after them, and the last 3, including the routine one."""
    decisions, state = decide_all([{"session": find_session(0, 3)}] * 14, DEFAULT_POLICY)
    assert [turn for turn, decision in enumerate(decisions, 1) if decision.sampled] == [1, 2, 3, 4, 5, 6, 9, 12]
    last_exchanges, _ = close(state, DEFAULT_POLICY)
    assert last_exchanges == tuple(
        DeferredExchange(turn=turn, exchange_id=f"e{turn}", revision=1, record=b"%d" % turn) for turn in (12, 13, 14)
    )


def test_a_missing_turn_number_is_counted() -> None:
    """Most sources send no turn numbers, without which the rules about turns would not work."""
    decisions, _ = decide_all([{}, {}, {"turn": 40}, {}], DEFAULT_POLICY)
    assert [decision.turn for decision in decisions] == [1, 2, 40, 4]


@settings(deadline=None)
@given(streams, policies)
def test_the_first_turns_are_always_sampled(stream: list[dict[str, Any]], policy: Sampling) -> None:
    """Problems often show early in a session."""
    decisions, _ = decide_all(stream, policy)
    assert all(decision.sampled for decision in decisions[: policy.always_score_first])
    assert all(decision.sampled == (decision.probability is not None) for decision in decisions)
    assert all(
        decision.probability == 1 / policy.routine_interval for decision in decisions if decision.reason == "routine_sample"
    )


@settings(deadline=None)
@given(streams, policies)
def test_closing_any_prefix_samples_its_last_turns_except_the_first_ones(
    stream: list[dict[str, Any]], policy: Sampling
) -> None:
    """The rule about last turns must hold for every session, although its end is known only afterwards."""
    for length in range(len(stream) + 1):
        decisions, state = decide_all(stream[:length], policy)
        tail = range(max(0, length - policy.always_score_last), length)
        expected = [f"e{index + 1}" for index in tail if decisions[index].reason not in PERMANENT_REASONS]
        last_exchanges, _ = close(state, policy)
        assert [deferred.exchange_id for deferred in last_exchanges] == expected


@settings(deadline=None)
@given(streams, policies, st.lists(st.integers(0, 25), max_size=4))
def test_batches_do_not_affect_decisions(stream: list[dict[str, Any]], policy: Sampling, cuts: list[int]) -> None:
    """State is stored between batches, whose boundaries must not affect any decision."""
    expected_decisions, expected_state = decide_all(stream, policy)
    decisions: list[Decision] = []
    state = SamplingState()
    boundaries = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in itertools.pairwise(boundaries):
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SamplingState)
        batch, state = decide_all(stream[start:end], policy, state, start + 1)
        decisions += batch
    assert decisions == expected_decisions
    assert state == expected_state


@settings(deadline=None)
@given(st.lists(streams, max_size=4), policies)
def test_a_reopened_session_samples_no_turn_twice(batches: list[list[dict[str, Any]]], policy: Sampling) -> None:
    """Late records reopen sessions; an exchange is one of the last only once, however often its session closes."""
    state = SamplingState()
    closed_ids: list[str] = []
    eligible: list[str] = []
    decision_count = 0
    for batch in batches:
        decisions, state = decide_all(batch, policy, state, decision_count + 1)
        eligible += [
            f"e{decision_count + index}"
            for index, decision in enumerate(decisions, 1)
            if decision.reason not in PERMANENT_REASONS
        ]
        decision_count += len(batch)
        last_exchanges, state = close(state, policy)
        newest = {f"e{number}" for number in range(decision_count - policy.always_score_last + 1, decision_count + 1)}
        assert {deferred.exchange_id for deferred in last_exchanges} == (newest & set(eligible)) - set(closed_ids)
        closed_ids += [deferred.exchange_id for deferred in last_exchanges]
        assert close(state, policy) == ((), state)
    assert len(closed_ids) == len(set(closed_ids))


def test_the_last_turns_are_those_with_the_highest_numbers() -> None:
    """Records arrive out of order; a late one from the middle is not among the last."""
    policy = Sampling(always_score_first=0, always_score_last=2, routine_interval=100)
    _, state = decide_all([{"turn": 8}, {"turn": 11}, {"turn": 10}, {"turn": 3}], policy)
    assert [deferred.turn for deferred in close(state, policy)[0]] == [10, 11]


def test_turns_with_equal_numbers_are_kept_apart() -> None:
    """A source that restarts its count must not lose an exchange or confuse two."""
    policy = Sampling(always_score_first=0, always_score_last=2, routine_interval=100)
    _, state = decide_all([{"turn": 7}, {"turn": 7}, {"turn": 7}], policy)
    assert [deferred.exchange_id for deferred in close(state, policy)[0]] == ["e2", "e3"]


@settings(deadline=None)
@given(streams, policies)
def test_the_state_stays_small(stream: list[dict[str, Any]], policy: Sampling) -> None:
    """State is written after every batch for every session of the fleet, so it must be small."""
    _, state = decide_all(stream * 4, policy)
    assert len(state.newest) <= policy.always_score_last
    assert len(state.deferred) <= policy.always_score_last


def test_a_smaller_window_takes_effect_at_once() -> None:
    """A policy may change during a session."""
    _, state = decide_all([{}] * 8, Sampling(always_score_first=0, routine_interval=100))
    assert [deferred.turn for deferred in close(state, Sampling(always_score_last=1))[0]] == [8]
    assert close(state, Sampling(always_score_last=0)) == ((), SamplingState(exchanges=8))


def test_a_deferred_exchange_has_what_its_scoring_needs() -> None:
    """Closing a session does not read the log again, so the state must contain the encoded exchange."""
    policy = Sampling(always_score_first=0, routine_interval=100)
    exchange = Candidate(session="s", exchange_id="x", revision=4, turn_number=2, record=b"\x00\xff", **UNREMARKABLE)
    _, state = decide(SamplingState(), exchange, policy)
    assert close(state, policy)[0] == (DeferredExchange(2, "x", 5, b"\x00\xff"),)


def compute_weights(stream: Sequence[dict[str, Any]], policy: Sampling, session: str, closes: set[int]) -> dict[str, Fraction]:
    """Return the final weight of each exchange, with the session closing after some of the exchanges."""
    state = SamplingState()
    weights: dict[str, Fraction] = {}
    for number, facts in enumerate(stream, 1):
        decision, state = decide(state, candidate(number, session=session, **facts), policy)
        probability = 0 if decision.probability is None else Fraction(decision.probability).limit_denominator(10_000)
        weights[f"e{number}"] = 1 / probability if probability else Fraction(0)
        if number in closes:
            last_exchanges, state = close(state, policy)
            weights |= {deferred.exchange_id: Fraction(1) for deferred in last_exchanges}
    return weights


numbered_streams = st.lists(
    st.builds(lambda facts, turn: {**facts, "turn": turn}, fact_sets, st.none() | st.integers(-2, 40)), max_size=30
)
"""Turn numbers as sources send them: none, out of order, some repeated."""


@settings(deadline=None)
@given(numbered_streams, policies, st.sets(st.integers(1, 30), max_size=3))
def test_the_weights_of_a_session_add_up_to_its_turns_in_expectation(
    stream: list[dict[str, Any]], policy: Sampling, closes: set[int]
) -> None:
    """For any policy and session, closed at any time or several times, each turn has weight 1 on average over the starts.

    Otherwise a mean weighted by 1 / probability would describe another mix of turns, depending on the session's length.
    """
    interval = policy.routine_interval
    sums = Counter[str]()
    for start in range(interval):
        sums.update(compute_weights(stream, policy, find_session(start, interval), closes))  # type: ignore[arg-type]
    assert sums == {f"e{number}": interval for number in range(1, len(stream) + 1)}


@settings(deadline=None)
@given(st.integers(1, 60), policies)
def test_the_last_turns_of_a_closed_session_have_weight_1(turns: int, policy: Sampling) -> None:
    """A routine sample among the last turns would also represent judged turns, so that 21 turns would weigh 25."""
    weights = compute_weights([{}] * turns, policy, "ops/s1", {turns})
    last_weights = [weights[f"e{number}"] for number in range(max(1, turns - policy.always_score_last + 1), turns + 1)]
    assert last_weights == [1] * min(turns, policy.always_score_last)
    assert abs(sum(weights.values()) - turns) < policy.routine_interval


def test_a_session_of_21_turns_weighs_21_on_average() -> None:
    """The 5 first and 3 last turns have weight 1; of the 13 between, 4 or 5 have weight 3."""
    totals = [sum(compute_weights([{}] * 21, DEFAULT_POLICY, find_session(start, 3), {21}).values()) for start in range(3)]
    assert totals == [23, 20, 20]


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 7, 10])
def test_every_start_is_drawn_as_often_as_any_other(interval: int) -> None:
    """The stated probability is 1 / interval, so starts must be uniform for any naming of sessions."""
    names = [f"{connection}/{number}" for connection in ("openclaw", "http") for number in range(10_000)]
    session_counts = Counter(routine_start(name, interval) for name in names)
    expected = len(names) / interval
    chi2 = sum((session_counts[start] - expected) ** 2 / expected for start in range(interval))
    assert set(session_counts) == set(range(interval))
    assert chi2 < MAX_CHI_SQUARE


def test_the_start_is_the_same_in_every_process() -> None:
    """A replay on another machine must sample the same turns, so these numbers are a contract."""
    assert [routine_start(name, 3) for name in ("http/a", "http/b", "http/\ud800", "openclaw/main")] == [0, 1, 0, 1]


distinctly_numbered_streams = st.lists(
    st.tuples(st.integers(0, 60), fact_sets), max_size=25, unique_by=lambda pair: pair[0]
).map(lambda pairs: [{**facts, "turn": turn} for turn, facts in pairs])


def compute_weights_by_turn(stream: Sequence[dict[str, Any]], policy: Sampling) -> dict[int, Fraction]:
    """Return the final weight of each turn of a session that closes after its last exchange."""
    weights = compute_weights(stream, policy, "s", {len(stream)})
    turns = [facts["turn"] for facts in stream]
    return dict(zip(turns, weights.values(), strict=True))


@settings(deadline=None)
@given(distinctly_numbered_streams, policies, st.randoms())
def test_the_order_of_arrival_changes_no_weight(stream: list[dict[str, Any]], policy: Sampling, random: Any) -> None:
    """Records arrive late and out of order; which turns count, and their weight, must depend only on the turns."""
    shuffled = random.sample(stream, len(stream))
    assert compute_weights_by_turn(shuffled, policy) == compute_weights_by_turn(stream, policy)


ROUTINE_DECISION = Decision(sampled=True, reason="routine_sample", probability=1 / 3, turn=9)


def decide_again_for_revisions(revisions: Sequence[int]) -> tuple[SamplingState, Sampling]:
    """Return the state and policy of a one-turn session whose turn was requested again with each of these revisions."""
    policy = Sampling(always_score_first=0, always_score_last=1)
    _, state = decide(SamplingState(), candidate(1, turn=9), policy)
    for revision in revisions:
        decision, next_revision, state = decide_again(state, "e1", ROUTINE_DECISION, revision)
        assert decision == ROUTINE_DECISION
        assert next_revision == revision
    return state, policy


def test_a_turn_that_was_judged_again_is_still_one_of_the_last() -> None:
    """Requesting a failed verdict again must not remove the turn from the last ones; revisions continue from the request's."""
    state, policy = decide_again_for_revisions([1, 2])
    last_exchanges, _ = close(state, policy)
    assert [(deferred.exchange_id, deferred.revision) for deferred in last_exchanges] == [("e1", 3)]


def test_a_request_made_before_the_close_keeps_the_turn_one_of_the_last() -> None:
    """A request made before the close was known would otherwise reuse its revision, and the turn would get weight 3."""
    state, policy = decide_again_for_revisions([])
    _, state = close(state, policy)
    decision, revision, state = decide_again(state, "e1", ROUTINE_DECISION, 1)
    assert decision == Decision(sampled=True, reason="last_turns", probability=1.0, turn=9)
    assert revision == 2
    last_turn = Decision(sampled=True, reason="last_turns", probability=1.0, turn=9)
    assert decide_again(state, "e1", last_turn, 3)[:2] == (last_turn, 3)


def test_a_request_for_a_turn_outside_the_state_is_unchanged() -> None:
    """First turns keep their reason, and old turns are not among the last."""
    state, _ = decide_again_for_revisions([])
    assert decide_again(state, "e7", ROUTINE_DECISION, 5) == (ROUTINE_DECISION, 5, state)


@pytest.mark.parametrize(
    "response",
    [
        "I disagree.",
        "I don\u2019t agree with that",
        "I respectfully decline",
        "I must point out that",
        "i should note",
        "I would advise against it",
        "However, I think",
        "however, I believe",
        "However, I suggest",
        "However, I recommend",
        "That is not correct",
        "that's incorrect",
        "That is wrong.",
        "that is inaccurate",
        "I'd push back",
        "I\u2019d caution",
        "I would warn",
        "I'd flag this",
        "No, I think",
        "no, actually",
        "No, that fails",
        "No, the tests",
    ],
)
def test_disagreement_is_recognized(response: str) -> None:
    """Disagreement shows the agent's judgement, so it is always sampled."""
    assert is_disagreement(f"Well. {response} because of x.")


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I agree.",
        "That is correct.",
        "Casino, the best",
        "However, it works",
        "no problem",
        "I flagged it",
        "Hi disagree",
        "No. The",
    ],
)
def test_an_ordinary_response_is_no_disagreement(response: str) -> None:
    """Every match costs a judge call."""
    assert not is_disagreement(response)
