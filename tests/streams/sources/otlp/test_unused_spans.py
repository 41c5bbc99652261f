"""No span is dropped silently: unused spans are counted by reason, with an example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_captures import assembled, records_of
from support.otlp_spans import agent, chat, messages, request, span, tool

from schemas.records import TraceAssembly, UnusedSpans
from streams.sources.otlp.trace_records import MAX_UNUSED_GROUPS

MODEL = {"gen_ai.request.model": "model-1"}


def decision_of(*spans: Any, scope: str = "tests") -> TraceAssembly:
    """Return the decision on a trace of these spans."""
    [assembly] = assembled(records_of([request(*spans, scope=scope)]))
    return assembly.decision


def unused(state: str, example: str, spans: int = 1, scope: str = "tests") -> UnusedSpans:
    """Return the expected group."""
    return UnusedSpans(state=state, scope=scope, example=example, spans=spans)


def test_an_unknown_kind_is_counted_with_its_value() -> None:
    """The user learns which attribute to change, or which value to report."""
    spans = [span(number, attributes={"gen_ai.operation.name": "ponder"}) for number in range(3)]
    decision = decision_of(*spans, scope="litellm")
    assert decision.state == "not_understood"
    assert decision.unused_spans == (unused("unknown_kind", "gen_ai.operation.name = ponder", 3, "litellm"),)


def test_a_request_without_texts_is_counted_although_its_tokens_are_used() -> None:
    """Otherwise it would look like a lost trace."""
    decision = decision_of(
        span(0, name="chat m", attributes={**MODEL, "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 4})
    )
    assert decision.state == "no_content"
    assert decision.unused_spans == (unused("no_content", "chat m"),)


def test_a_trace_with_only_helper_requests_is_reported_as_such() -> None:
    """An indexing job embeds a thousand documents: no conversation is missing."""
    decision = decision_of(span(0, name="embed", attributes={**MODEL, "gen_ai.operation.name": "embeddings"}))
    assert decision.state == "helper"
    assert decision.unused_spans == (unused("helper", "embed"),)


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
    decision = decision_of(*spans)
    assert decision.state == "complete"
    expected = {unused("repeated", "step"), unused("retrieval", "search"), unused("not_a_model_call", "SELECT")}
    assert set(decision.unused_spans) == expected


def test_a_secret_in_an_unknown_value_is_redacted() -> None:
    """The value comes from outside, and the example is shown on pages."""
    secret = "sk-ant-api03-" + "a1B2" * 12
    decision = decision_of(span(0, attributes={"gen_ai.operation.name": secret}))
    [group] = decision.unused_spans
    assert group.state == "unknown_kind"
    assert secret[:20] not in group.example


def test_the_number_of_groups_is_bounded_and_actionable_ones_stay() -> None:
    """A sender can make up any number of scopes."""
    spans = [
        request(span(number, name="plain", attributes={"a": 1}), scope=f"scope {number}")
        for number in range(MAX_UNUSED_GROUPS + 9)
    ]
    strange = request(span(900, attributes={"gen_ai.operation.name": "ponder"}))
    [assembly] = assembled(records_of([*spans, strange]))
    assert len(assembly.decision.unused_spans) == MAX_UNUSED_GROUPS
    assert assembly.decision.unused_spans[0].state == "unknown_kind"


@settings(max_examples=30, deadline=None)
@given(value=st.text(min_size=1, max_size=40).filter(lambda text: text.strip(' "')))
@pytest.mark.parametrize("attribute", ["gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind"])
def test_custom_values_lose_no_request_with_a_model_and_messages(attribute: str, value: str) -> None:
    """Conventions allow custom values: such a span is read as a request, or recognised as something else."""
    attributes = {
        attribute: value,
        **MODEL,
        "gen_ai.input.messages": messages("user", "When do you open?"),
        "gen_ai.output.messages": messages("assistant", "At nine."),
    }
    decision = decision_of(span(0, attributes=attributes))
    assert decision.exchanges == 1 or decision.unused_spans
