"""Langfuse's SDK: its OpenAI client for the model, its decorator for agent and tools, sessions by its propagated attributes."""

from __future__ import annotations

from typing import Any

from langfuse import get_client, observe, propagate_attributes
from langfuse.openai import OpenAI
from openai import BadRequestError
from programs import scenario
from programs.by_hand import talk
from programs.loop import Conversation

TOOLS = {name: observe(name=name, as_type="tool")(tool) for name, tool in scenario.TOOLS.items()}


def traced_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool in an observation of its own."""
    return str(TOOLS[name](**arguments))


def begun() -> Conversation:
    """A new conversation."""
    return Conversation(traced_call, OpenAI(max_retries=0))


def observed(conversation: Conversation, question: str, *, stream: bool = False) -> None:
    """One invocation of the agent."""

    @observe(name=scenario.AGENT, as_type="agent")
    def answer(question: str) -> str:
        return conversation.turn(question, stream=stream)

    answer(question)


def turn(conversation: Conversation, session: str, question: str, *, stream: bool = False) -> None:
    """One invocation of the agent, with the names that its observations have."""
    with propagate_attributes(session_id=session, user_id=scenario.USER, version=scenario.VERSION, tags=["demo"]):
        observed(conversation, question, stream=stream)


if __name__ == "__main__":
    talk(begun, turn, BadRequestError)
    get_client().flush()
