"""No span is dropped silently: unused spans are counted by reason, with an example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.otlp_captures import assembled, records_of
from support.otlp_spans import agent, chat, messages, request, span, tool

from schemas.records import TraceAssembly, UnusedSpans
from streams.sources.otlp.kinds import HELPER_STEMS, KINDS, names_helper
from streams.sources.otlp.trace_records import MAX_UNUSED_GROUPS

MODEL = {"gen_ai.request.model": "model-1"}


def assemble(*spans: Any, scope: str = "tests") -> TraceAssembly:
    """Return the decision on a trace of these spans."""
    [assembly] = assembled(records_of([request(*spans, scope=scope)]))
    return assembly.decision


def group(state: str, example: str, spans: int = 1, scope: str = "tests") -> UnusedSpans:
    """Return a group of unused spans."""
    return UnusedSpans(state=state, scope=scope, example=example, spans=spans)


def test_an_unknown_kind_is_counted_with_its_value() -> None:
    """The user learns which attribute to change, or which value to report."""
    spans = [span(number, attributes={"gen_ai.operation.name": "ponder"}) for number in range(3)]
    decision = assemble(*spans, scope="litellm")
    assert decision.state == "not_understood"
    assert decision.unused_spans == (group("unknown_kind", "gen_ai.operation.name = ponder", 3, "litellm"),)


def test_a_request_without_texts_is_counted_although_its_tokens_are_used() -> None:
    """Otherwise it would look like a lost trace."""
    decision = assemble(
        span(0, name="chat m", attributes={**MODEL, "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 4})
    )
    assert decision.state == "no_content"
    assert decision.unused_spans == (group("no_content", "chat m"),)


def test_a_trace_with_only_helper_requests_has_the_state_helper() -> None:
    """An indexing job embeds a thousand documents: no conversation is missing."""
    decision = assemble(span(0, name="embed", attributes={**MODEL, "gen_ai.operation.name": "embeddings"}))
    assert decision.state == "helper"
    assert decision.unused_spans == (group("helper", "embed"),)


def test_application_spans_and_duplicates_are_counted_separately() -> None:
    """A database query was never meant to become an exchange."""
    spans = [
        agent(0),
        span(1, 0, name="SELECT", attributes={"db.system": "duckdb"}),
        span(2, 0, name="step", attributes={"openinference.span.kind": "CHAIN"}),
        span(3, 2, name="search", attributes={"openinference.span.kind": "RETRIEVER"}),
        chat(4, 2),
        tool(5, 2),
    ]
    decision = assemble(*spans)
    assert decision.state == "complete"
    expected = {group("repeated", "step"), group("retrieval", "search"), group("not_a_model_call", "SELECT")}
    assert set(decision.unused_spans) == expected


def test_a_secret_in_an_unknown_value_is_redacted() -> None:
    """The value comes from outside, and the example is shown on pages."""
    secret = "sk-ant-api03-" + "a1B2" * 12
    decision = assemble(span(0, attributes={"gen_ai.operation.name": secret}))
    [unused_spans] = decision.unused_spans
    assert unused_spans.state == "unknown_kind"
    assert secret[:20] not in unused_spans.example


def test_the_number_of_groups_is_bounded_and_actionable_ones_stay() -> None:
    """A sender can make up any number of scopes."""
    requests = [
        request(span(number, name="plain", attributes={"a": 1}), scope=f"scope {number}")
        for number in range(MAX_UNUSED_GROUPS + 9)
    ]
    requests.append(request(span(900, attributes={"gen_ai.operation.name": "ponder"})))
    [assembly] = assembled(records_of(requests))
    assert len(assembly.decision.unused_spans) == MAX_UNUSED_GROUPS
    assert assembly.decision.unused_spans[0].state == "unknown_kind"


def is_custom(attribute: str, value: str) -> bool:
    """Return whether a value is neither in the table of its attribute nor names the task of a helper."""
    known_values = {known for _, name, table in KINDS if name == attribute for known in table}
    folded = value.strip(' "').casefold()
    return folded not in known_values and not names_helper(value) and not any(stem in folded for stem in HELPER_STEMS)


@settings(max_examples=30, deadline=None)
@given(value=st.text(min_size=1, max_size=40))
@pytest.mark.parametrize("attribute", ["gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind"])
def test_a_span_of_a_custom_kind_with_a_model_and_messages_is_an_exchange(attribute: str, value: str) -> None:
    """Every convention allows custom values, so they must not lose a conversation."""
    assume(is_custom(attribute, value))
    attributes = {
        attribute: value,
        **MODEL,
        "gen_ai.input.messages": messages("user", "When do you open?"),
        "gen_ai.output.messages": messages("assistant", "At nine."),
    }
    decision = assemble(span(0, attributes=attributes))
    assert decision.exchanges == 1
    assert decision.unused_spans == ()
