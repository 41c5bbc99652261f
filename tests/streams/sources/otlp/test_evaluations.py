"""Evaluators and experiments of a platform are not agents: their traces are counted and give no exchanges."""

from __future__ import annotations

from typing import Any

import pytest
from support.otlp_captures import assembled, records_of
from support.otlp_spans import agent, chat, request, span, tool

from streams.sources.otlp.trace_records import Assembly

JUDGE = {"langfuse.environment": "langfuse-llm-as-a-judge"}


def assembly_of(*spans: Any, resource: dict[str, Any] | None = None) -> Assembly:
    """Return a trace of these spans."""
    [assembly] = assembled(records_of([request(*spans, resource=resource)]))
    return assembly


@pytest.mark.parametrize("environment", ["langfuse-llm-as-a-judge", "langfuse-evaluation", "langfuse-new", "sdk-experiment"])
@pytest.mark.parametrize("is_on_resource", [False, True])
def test_a_run_of_an_evaluator_is_counted_and_gives_no_exchange(environment: str, *, is_on_resource: bool) -> None:
    """A judge's questions and answers would move the agent's scores."""
    marker = {"langfuse.environment": environment}
    span_attributes = {} if is_on_resource else marker
    spans = [agent(0, attributes=span_attributes), chat(1, attributes=span_attributes), tool(2, 1, attributes=span_attributes)]
    assembly = assembly_of(*spans, resource=marker if is_on_resource else None)
    assert assembly.exchanges == []
    assert assembly.events == []
    assert assembly.decision.state == "evaluation"
    [unused] = assembly.decision.unused_spans
    assert unused.state == "evaluation"
    assert unused.example == f"langfuse.environment = {environment}"
    assert unused.spans == 3


def test_spans_within_an_evaluation_belong_to_it() -> None:
    """Other instrumentors write their spans below the platform's."""
    assembly = assembly_of(span(0, attributes=JUDGE), agent(1, 0), chat(2, 1))
    assert assembly.exchanges == []
    assert assembly.events == []
    assert assembly.decision.state == "evaluation"


def test_an_evaluation_beside_a_turn_keeps_the_turn() -> None:
    """An application may judge its own answer in the trace of the turn."""
    turn = [agent(0), chat(1), tool(2)]
    assembly = assembly_of(*turn, span(3, 0, attributes=JUDGE | {"gen_ai.operation.name": "chat"}), chat(4, 3))
    alone = assembly_of(*turn)
    assert alone.exchanges == assembly.exchanges
    assert alone.events == assembly.events


@pytest.mark.parametrize("environment", ["production", "default", "my-langfuse-tests", "sdk"])
def test_other_environments_belong_to_the_agent(environment: str) -> None:
    """Langfuse reserves names that start with its own; all others are the user's."""
    assembly = assembly_of(agent(0, attributes={"langfuse.environment": environment}), chat(1))
    assert len(assembly.exchanges) == 1
    assert assembly.decision.state == "complete"
