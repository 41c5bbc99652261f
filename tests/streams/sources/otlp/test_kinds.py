"""The kind of a span does not depend on how its sender writes a value, or on whether Driftline knows the value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_captures import LABELS, NOW, assembled, records_of
from support.otlp_spans import agent, chat, messages, request, span, tool

from schemas.records import Exchange
from streams.sources.otlp.kinds import KINDS
from streams.sources.otlp.reading import FactReader
from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.span_facts import SpanFacts

VALUES = [(attribute, value, kind) for _, attribute, kinds in KINDS for value, kind in kinds.items()]
TALK = {
    "gen_ai.request.model": "model-1",
    "gen_ai.input.messages": messages("user", "Is the ferry late?"),
    "gen_ai.output.messages": messages("assistant", "By an hour."),
}


def facts_of(**attributes: Any) -> SpanFacts:
    """Return the facts of a span with these attributes."""
    [observed] = SIGNALS["traces"].read(request(span(0, attributes=attributes)).as_json, NOW, is_json=True)
    assert not isinstance(observed, RejectedItem)
    return FactReader(LABELS).facts_of(observed)


def exchanges_of(*spans: Any) -> list[Exchange]:
    """Return the exchanges of the traces of these spans."""
    return [exchange for assembly in assembled(records_of([request(*spans)])) for exchange in assembly.exchanges]


@pytest.mark.parametrize("value", ["Chat", "CHAT", "chat ", '"chat"'])
def test_case_and_quotes_of_an_operation_are_ignored(value: str) -> None:
    """SDKs write enumerations by name, by value and as JSON."""
    assert facts_of(**{"gen_ai.operation.name": value}).kind == "inference"


@settings(max_examples=50, deadline=None)
@given(known=st.sampled_from(VALUES), upper=st.lists(st.booleans(), min_size=40, max_size=40))
def test_any_case_of_a_known_value_means_the_same(known: tuple[str, str, str], upper: list[bool]) -> None:
    """`LLM`, `Llm` and `llm` all mean a request to a model."""
    attribute, value, kind = known
    mixed_case = "".join(letter.upper() if up else letter for letter, up in zip(value, upper, strict=False))
    assert kind == facts_of(**{attribute: mixed_case}).kind


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "agenerate", **TALK},
        {"openinference.span.kind": "model", "llm.model_name": "m", "input.value": "Is it late?", "output.value": "No."},
        {
            "traceloop.span.kind": "llm_step",
            "gen_ai.request.model": "m",
            "gen_ai.prompt": "Is it late?",
            "gen_ai.completion": "No.",
        },
        {"langfuse.observation.type": "llm", **TALK},
        {"mlflow.spanType": json.dumps("LLM_V2"), **TALK},
        {"openinference.span.kind": "PROMPT", **TALK},
    ],
)
def test_a_span_with_a_model_and_messages_is_a_request_whatever_its_operation(attributes: dict[str, Any]) -> None:
    """Every convention allows custom values; such a conversation was lost although the sender got a 200."""
    [exchange] = exchanges_of(span(0, attributes=attributes))
    assert exchange.user_message
    assert exchange.agent_response


def test_an_unknown_value_defers_to_the_next_attribute() -> None:
    """Two instrumentors may write to one span, one of them new."""
    assert facts_of(**{"traceloop.span.kind": "step", "gen_ai.operation.name": "execute_tool"}).kind == "tool"


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"gen_ai.operation.name": "call_function", "gen_ai.tool.name": "book", "gen_ai.tool.call.id": "1"}, "tool"),
        ({"gen_ai.operation.name": "function", "tool.name": "book", "input.value": "{}"}, "tool"),
        ({"gen_ai.operation.name": "run", "gen_ai.agent.name": "scout"}, "agent"),
        ({"gen_ai.agent.name": "scout"}, "other"),
        ({"gen_ai.operation.name": "run"}, "other"),
    ],
)
def test_tool_attributes_distinguish_a_tool_from_an_agent(attributes: dict[str, Any], kind: str) -> None:
    """Some SDKs write the agent's name on every span, including database queries."""
    assert facts_of(**attributes).kind == kind


@pytest.mark.parametrize(
    "value", ["aembedding", "ai.embed.doEmbed", "ai.rerank", "arerank", "text_embeddings", "amoderation", "run_evaluator"]
)
@pytest.mark.parametrize("attribute", ["gen_ai.operation.name", "ai.operationId", "llm.request.type"])
def test_a_helper_request_is_recognised_by_its_task(attribute: str, value: str) -> None:
    """It also has a model and a text, and would be taken for a request."""
    assert facts_of(**{attribute: value, **TALK}).kind == "helper"


def test_creating_an_agent_is_not_a_request() -> None:
    """The operation has the names of an agent and a model."""
    assert (
        facts_of(**{"gen_ai.operation.name": "create_agent", "gen_ai.request.model": "m", "gen_ai.agent.name": "a"}).kind
        == "other"
    )


def test_an_unknown_span_does_not_affect_known_ones() -> None:
    """An unknown span must not affect others."""
    [exchange] = exchanges_of(agent(0), span(1, 0, attributes={"gen_ai.operation.name": "ponder"}), chat(2, 0), tool(3, 0))
    assert exchange.user_message == "Is it well?"
    assert exchange.agent_response == "It is."
