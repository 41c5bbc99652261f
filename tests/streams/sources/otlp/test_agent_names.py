"""The agent is the configured one, not the method that an instrumentor wrapped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.otlp_captures import assembled, records_of
from support.otlp_spans import request, span

from schemas.records import Exchange

TALK = {"openinference.span.kind": "AGENT", "session.id": "s1", "input.value": "Is it late?", "output.value": "By an hour."}


def exchange_of(name: str, **attributes: Any) -> Exchange:
    """Return the exchange of an agent's span."""
    payload = request(span(0, name=name, attributes={**TALK, **attributes}), resource={"service.name": "desk"})
    [assembly] = assembled(records_of([payload]))
    [exchange] = assembly.exchanges
    return exchange


@pytest.mark.parametrize(
    ("name", "agent"),
    [
        ("harbour.run", "harbour"),
        ("Harbour Master._execute_core", "Harbour Master"),
        ("harbour.on_messages_stream", "harbour"),
        ("harbour.v2", "harbour.v2"),
        ("registrar._execute_core", "desk"),
        ("CodeAgent.run", "desk"),
        ("AssistantAgent.on_messages_stream", "desk"),
        ("run", "run"),
    ],
)
def test_a_method_is_not_part_of_an_agents_name(name: str, agent: str) -> None:
    """`a.run` and `a.arun` must not be two agents. A framework's class name is not an agent, so the service is used."""
    assert exchange_of(name).agent == agent


def test_a_node_names_its_agent_before_the_span_does() -> None:
    """CrewAI names spans after a framework method, and nodes after the role."""
    attributes = {"graph.node.id": "harbour master"}
    assert exchange_of("registrar._execute_core", **attributes).agent == "harbour master"


@pytest.mark.parametrize("write", [json.dumps, dict])
def test_metadata_names_agent_and_session(write: Any) -> None:
    """LangChain passes both on only in its metadata."""
    attributes = {
        "session.id": None,
        "metadata": write({"lc_agent_name": "pilot", "thread_id": "t-7", "langgraph_node": "model"}),
    }
    exchange = exchange_of("LangGraph", **attributes)
    assert exchange.agent == "pilot"
    assert exchange.session_id == "t-7"


@pytest.mark.parametrize("metadata", ["[1, 2]", "{broken", "text", "null"])
def test_metadata_of_another_shape_is_ignored(metadata: str) -> None:
    """Users may put anything into this attribute."""
    assert exchange_of("harbour", metadata=metadata).session_id == "s1"
