"""Sampling: the rules in their order, and the last turns of a session although a stream does not know them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.policy import Sampling
from audit.sampling import Candidate, Decision, Parked, SamplingState, close, decide, is_disagreement

QUIET: dict[str, Any] = {"agent_response": "Done.", "output_tokens": 10, "tier1_flags": ()}
DEFAULT = Sampling()

policies = st.builds(
    Sampling,
    routine_interval=st.integers(1, 5),
    always_score_first=st.integers(0, 4),
    always_score_last=st.integers(0, 4),
    always_score_disagreement=st.booleans(),
)
facts = st.fixed_dictionaries(
    {
        "agent_response": st.sampled_from(["Done.", "I disagree."]),
        "output_tokens": st.sampled_from([None, 0, 500, 501]),
        "tier1_flags": st.sampled_from([(), (), ("silent_refusal",)]),
    }
)
streams = st.lists(facts, max_size=25)


def candidate(number: int, *, turn: int | None = None, **given_facts: Any) -> Candidate:
    """The exchange number `number` of a session; quiet unless told otherwise."""
    values = {**QUIET, **given_facts}
    return Candidate(exchange_id=f"e{number}", revision=0, turn_number=turn, record=b"%d" % number, **values)


def run(stream: list[dict[str, Any]], policy: Sampling, state: SamplingState | None = None, start: int = 1) -> Any:
    """Decide on a stream of exchanges; the decisions and the state at the end."""
    state = state or SamplingState()
    decisions = []
    for number, given_facts in enumerate(stream, start):
        decision, state = decide(state, candidate(number, **given_facts), policy)
        decisions.append(decision)
    return decisions, state


@pytest.mark.parametrize(
    ("turn", "changes", "policy", "expected"),
    [
        (7, {"tier1_flags": ("a",)}, {"enabled": False}, ("sampling_disabled", 1.0)),
        (5, {"tier1_flags": ("a",)}, {}, ("first_turns", 1.0)),
        (0, {}, {}, ("first_turns", 1.0)),
        (7, {"tier1_flags": ("a",), "agent_response": "I disagree"}, {}, ("tier1_flags", 1.0)),
        (7, {"agent_response": "I disagree", "output_tokens": 501}, {}, ("disagreement", 1.0)),
        (7, {"agent_response": "I disagree"}, {"always_score_disagreement": False}, ("sampling_skip", None)),
        (9, {"output_tokens": 501}, {}, ("long_response", 1.0)),
        (7, {"output_tokens": 501}, {"always_score_long_responses": False}, ("sampling_skip", None)),
        (7, {"output_tokens": 500}, {}, ("sampling_skip", None)),
        (7, {"output_tokens": None}, {}, ("sampling_skip", None)),
        (7, {"output_tokens": 1}, {"long_response_threshold": 0}, ("long_response", 1.0)),
        (7, {"output_tokens": 0}, {"long_response_threshold": 0}, ("sampling_skip", None)),
        (9, {}, {}, ("routine_sample", 1 / 3)),
        (6, {}, {}, ("routine_sample", 1 / 3)),
        (8, {}, {}, ("sampling_skip", None)),
        (8, {}, {"routine_interval": 1}, ("routine_sample", 1.0)),
        (0, {}, {"always_score_first": 0, "routine_interval": 7}, ("routine_sample", 1 / 7)),
        (1, {}, {"always_score_first": 0}, ("sampling_skip", None)),
    ],
)
def test_the_first_rule_that_holds_decides(turn: int, changes: dict[str, Any], policy: dict[str, Any], expected: Any) -> None:
    """The reason is stored and averages are weighted by its probability, so the order of the rules matters."""
    decision, _ = decide(SamplingState(), candidate(1, turn=turn, **changes), Sampling(**policy))
    reason, probability = expected
    assert Decision(reason != "sampling_skip", reason, probability, turn) == decision


def test_the_default_session_samples_what_the_defaults_say() -> None:
    """Always the first 5, every 3rd routine turn, and at the end the last 3."""
    decisions, state = run([{}] * 14, DEFAULT)
    assert [turn for turn, decision in enumerate(decisions, 1) if decision.sampled] == [1, 2, 3, 4, 5, 6, 9, 12]
    last, _ = close(state, DEFAULT)
    assert [(parked.turn, parked.exchange_id, parked.record) for parked in last] == [(13, "e13", b"13"), (14, "e14", b"14")]


def test_a_missing_turn_number_is_counted() -> None:
    """Most sources number nothing; without a count the rules on turns would be dead."""
    decisions, _ = run([{}, {}, {"turn": 40}, {}], DEFAULT)
    assert [decision.turn for decision in decisions] == [1, 2, 40, 4]


@settings(deadline=None)
@given(streams, policies)
def test_the_first_turns_are_always_sampled(stream: list[dict[str, Any]], policy: Sampling) -> None:
    """Trouble shows early in a session."""
    decisions, _ = run(stream, policy)
    first = policy.always_score_first
    assert all(decision.sampled for decision in decisions[:first])
    assert all(decision.sampled == (decision.probability is not None) for decision in decisions)
    assert all(
        decision.probability == 1 / policy.routine_interval for decision in decisions if decision.reason == "routine_sample"
    )


@settings(deadline=None)
@given(streams, policies)
def test_closing_any_prefix_hands_out_the_skipped_ones_of_the_last_turns(
    stream: list[dict[str, Any]], policy: Sampling
) -> None:
    """The rule on last turns must hold for every session, although its end is known only afterwards."""
    for length in range(len(stream) + 1):
        decisions, state = run(stream[:length], policy)
        tail = range(max(0, length - policy.always_score_last), length)
        expected = [f"e{index + 1}" for index in tail if not decisions[index].sampled]
        last, _ = close(state, policy)
        assert expected == [parked.exchange_id for parked in last]


@settings(deadline=None)
@given(streams, policies, st.lists(st.integers(0, 25), max_size=4))
def test_batches_change_nothing(stream: list[dict[str, Any]], policy: Sampling, cuts: list[int]) -> None:
    """State travels through a store between batches; where the batches were cut must not show in any decision."""
    whole, expected_state = run(stream, policy)
    decisions: list[Decision] = []
    state = SamplingState()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in itertools.pairwise(edges):
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SamplingState)
        part, state = run(stream[start:end], policy, state, start + 1)
        decisions += part
    assert whole == decisions
    assert expected_state == state


@settings(deadline=None)
@given(st.lists(streams, max_size=4), policies)
def test_a_session_that_goes_on_after_its_close_hands_nothing_out_twice(
    parts: list[list[dict[str, Any]]], policy: Sampling
) -> None:
    """Late records reopen sessions; an exchange judged twice as last turn would be paid for twice."""
    state = SamplingState()
    handed_out: list[str] = []
    skipped: list[str] = []
    seen = 0
    for part in parts:
        decisions, state = run(part, policy, state, seen + 1)
        skipped += [f"e{seen + index}" for index, decision in enumerate(decisions, 1) if not decision.sampled]
        seen += len(part)
        last, state = close(state, policy)
        newest = {f"e{number}" for number in range(seen - policy.always_score_last + 1, seen + 1)}
        assert {parked.exchange_id for parked in last} == (newest & set(skipped)) - set(handed_out)
        handed_out += [parked.exchange_id for parked in last]
        assert close(state, policy) == ((), state)
    assert len(handed_out) == len(set(handed_out))


def test_the_last_turns_are_those_with_the_highest_numbers() -> None:
    """Records arrive out of order; a late one of the middle is not among the last."""
    policy = Sampling(always_score_first=0, always_score_last=2, routine_interval=100)
    _, state = run([{"turn": 8}, {"turn": 11}, {"turn": 10}, {"turn": 3}], policy)
    assert [parked.turn for parked in close(state, policy)[0]] == [10, 11]


def test_turns_with_one_number_are_kept_apart() -> None:
    """A source that restarts its count must not lose an exchange, nor have one scored for the other."""
    policy = Sampling(always_score_first=0, always_score_last=2, routine_interval=100)
    _, state = run([{"turn": 7}, {"turn": 7}, {"turn": 7}], policy)
    assert [parked.exchange_id for parked in close(state, policy)[0]] == ["e2", "e3"]


@settings(deadline=None)
@given(streams, policies)
def test_the_state_stays_small(stream: list[dict[str, Any]], policy: Sampling) -> None:
    """State is written after every batch for every session of the fleet."""
    _, state = run(stream * 4, policy)
    assert len(state.newest) <= policy.always_score_last
    assert len(state.parked) <= policy.always_score_last


def test_a_smaller_window_takes_effect_at_once() -> None:
    """A policy may change while a session runs."""
    _, state = run([{}] * 8, Sampling(always_score_first=0, routine_interval=100))
    assert [parked.turn for parked in close(state, Sampling(always_score_last=1))[0]] == [8]
    assert close(state, Sampling(always_score_last=0)) == ((), SamplingState(exchanges=8))


def test_what_is_parked_is_enough_to_score_it() -> None:
    """When the session closes, the log is not read again."""
    policy = Sampling(always_score_first=0, routine_interval=100)
    given_candidate = Candidate(exchange_id="x", revision=4, turn_number=2, record=b"\x00\xff", **QUIET)
    _, state = decide(SamplingState(), given_candidate, policy)
    assert close(state, policy)[0] == (Parked(2, "x", 4, b"\x00\xff"),)


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
def test_pushing_back_is_recognised(response: str) -> None:
    """Disagreement is where an agent shows judgement, so it is always looked at."""
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
def test_what_only_looks_like_pushing_back_is_not(response: str) -> None:
    """Every hit is a paid call."""
    assert not is_disagreement(response)
