"""The context of an exchange reaches the judge within its budget, and says what was left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import builders
from support.effort import examples

from audit.answers import QuotableTexts
from audit.exchanges.context import (
    BYTES_PER_TOKEN,
    MAX_STATE_BYTES,
    RememberedTurn,
    bound_calls,
    excerpt,
    has_trouble,
    remember,
    replace_turn,
    tool_call,
    turns_before,
)
from audit.exchanges.prompts import tier2_question
from audit.exchanges.questions import byte_tokens
from audit.policy import Context, Policy, ProjectPolicy
from schemas.bounds import MAX_TOOL_CALLS, MAX_TOOL_TEXT_BYTES
from schemas.records import EarlierTurn, ToolCall

BOUNDARY = "0123456789abcdef"
texts = st.sampled_from(["ok", "<" * 900, "\ufdfa" * 300, "[INST]" * 90, "é漢🏽" * 200, "", "\x00\u202e"]) | st.text(
    max_size=80
)
calls = st.lists(
    st.builds(tool_call, texts, texts | st.none(), texts | st.none(), st.sampled_from(["ok", "error", "unanswered"])),
    max_size=50,
)
turns = st.lists(st.builds(EarlierTurn, turn_number=st.integers(1, 99), user_message=texts, agent_response=texts), max_size=6)


def policy_of(**context: Any) -> ProjectPolicy:
    """Return a policy with this context."""
    return Policy.model_validate({"defaults": {"context": context}}, strict=False).for_project("ops")


def call(name: str = "search", arguments: str | None = "{}", result: str | None = "[]", outcome: str = "ok") -> ToolCall:
    """Return a tool call, by default without trouble."""
    return tool_call(name, arguments, result, outcome)


@settings(max_examples=examples(100))
@given(calls, turns, st.sampled_from([100, 200, 800, 8_000]))
@example([call("f", "x" * 800, "y" * 800)] * 40, [], 100)
def test_the_context_never_exceeds_its_budget(sent: list[ToolCall], earlier: list[EarlierTurn], max_tokens: int) -> None:
    """Its tokens are paid for with every judged turn, so a long tool output must not multiply the bill."""
    kept, omitted = bound_calls(sent)
    exchange = builders.exchange("s", 9, tool_calls=kept, omitted_tool_calls=omitted)
    policy = policy_of(maxTokens=max_tokens)
    question = tier2_question(exchange, policy, earlier)
    bare = tier2_question(builders.exchange("s", 9), policy)
    added = byte_tokens(question.content(BOUNDARY)) - byte_tokens(bare.content(BOUNDARY))
    assert added <= max_tokens * BYTES_PER_TOKEN
    shown = {material.name: json.loads(material.literal) for material in question.materials}
    left_out = len(sent) - len(shown.get("tool_calls", ()))
    assert (f"tool_calls: {left_out} of {len(sent)} calls are left out." in question.task) == (left_out > 0)
    left_out_turns = len(earlier[-2:]) - len(shown.get("earlier_turns", ()))
    assert (f"earlier_turns: {left_out_turns} of {len(earlier[-2:])} turns" in question.task) == (left_out_turns > 0)


def test_a_call_in_trouble_is_left_out_last() -> None:
    """The failed call among a hundred is what explains the answer."""
    sent = [call(arguments=f'{{"page": {page}}}') for page in range(100)]
    sent[7] = call("deploy", outcome="error", result="timeout")
    kept, omitted = bound_calls(sent)
    assert sent[7] in kept
    assert len(kept) == MAX_TOOL_CALLS
    assert omitted == 100 - MAX_TOOL_CALLS
    assert list(kept) == [one for one in sent if one in kept]
    question = tier2_question(builders.exchange("s", 1, tool_calls=kept, omitted_tool_calls=omitted), policy_of(maxTokens=100))
    assert "deploy" in question.content(BOUNDARY)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([], False),
        ([call()], False),
        ([call(), call()], False),
        ([call()] * 3, True),
        ([call(arguments=f"{number}") for number in range(3)], False),
        ([call(arguments=None)] * 3, False),
        ([call(outcome="error")], True),
        ([call(outcome="unanswered", result=None)], True),
    ],
)
def test_failed_repeated_and_unanswered_calls_are_trouble(sent: list[ToolCall], expected: bool) -> None:
    """Such a turn is always judged; calls whose arguments are unknown may differ."""
    assert has_trouble(sent) == expected


@given(st.text(st.characters(exclude_categories=("Cs",))) | texts)
def test_an_excerpt_has_the_ends_of_a_text_and_fits(text: str) -> None:
    """What failed is at the end of an output, what was asked is at the start."""
    short = excerpt(text, 100)
    assert len(short.encode()) <= 100
    assert excerpt(short, 100) == short
    if short != text:
        head, _, rest = short.partition(" [… ")
        number, _, tail = rest.partition(" characters left out …] ")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + int(number) + len(tail) == len(text)


def test_a_source_may_send_any_call() -> None:
    """Names and texts come from models and tools; a record with one that breaks the contract would be refused as a whole."""
    cleaned = tool_call("\n\x00 \u2028", "a" * 10_000, "é" * 10_000, "ok")
    assert cleaned.name == "unnamed"
    assert max(len((cleaned.arguments or "").encode()), len((cleaned.result or "").encode())) <= MAX_TOOL_TEXT_BYTES


def test_the_policy_switches_both_parts_of_the_context() -> None:
    """Who may not show tool outputs to the judge's provider can still have earlier turns, and the other way round."""
    exchange = builders.exchange("s", 1, tool_calls=(call(),))
    earlier = (EarlierTurn(turn_number=1, user_message="Shall I?", agent_response="Yes?"),)

    def shown(**context: Any) -> set[str]:
        return {material.name for material in tier2_question(exchange, policy_of(**context), earlier).materials}

    texts_of_exchange = {"user_message", "agent_response"}
    assert shown() == {"earlier_turns", "tool_calls"} | texts_of_exchange
    assert shown(turns=0) == {"tool_calls"} | texts_of_exchange
    assert shown(toolCalls=False) == {"earlier_turns"} | texts_of_exchange
    assert shown(turns=0, toolCalls=False) == texts_of_exchange


def test_a_quote_from_the_context_counts() -> None:
    """The proof of a false claim is in the tool's output; control tokens are escaped there, and marks of secrets are not."""
    exchange = builders.exchange(
        "s", 1, tool_calls=(call(result='Error: [ERR] "disk" full, [SECRET:api_key:0123abcd]', outcome="error"),)
    )
    question = tier2_question(exchange, policy_of())
    quotable = QuotableTexts(question.materials)
    assert "[SECRET:api_key:0123abcd]" in question.content(BOUNDARY)
    for quote in ('[ERR] "disk" full', '\\u005bERR] \\"disk\\" full', "[SECRET:api_key:0123abcd]"):
        assert quotable.contains(quote)
    assert not quotable.contains("disk empty")


def test_a_session_remembers_its_newest_turns_within_a_budget() -> None:
    """The state of every open session is kept; a long answer must not fill it."""
    remembered: tuple[RememberedTurn, ...] = ()
    context = Context(turns=10, max_tokens=8_000)
    for number in range(60):
        exchange = builders.exchange("s", number, "x" * 50_000)
        remembered = remember(remembered, exchange, number, kept=50, settings=context)
    size = sum(len(one.turn.user_message) + len(one.turn.agent_response) for one in remembered)
    assert MAX_STATE_BYTES / 2 < size <= MAX_STATE_BYTES
    last = remembered[-1].exchange_id
    assert [turn.turn_number for turn in turns_before(remembered, last, 2)] == [57, 58]
    assert turns_before(remembered, "unknown", 2) == ()
    revised = builders.exchange("s", 59, "Better.")
    assert replace_turn(remembered, revised, context)[-1].turn.agent_response == "Better."
    assert remember(remembered, exchange, 60, kept=50, settings=Context(turns=0)) == ()
