"""Traceloop's SDK (OpenLLMetry): its decorators for workflow, agent and tools, the session as an association property."""

from __future__ import annotations

from typing import Any

from openai import BadRequestError
from programs import scenario
from programs.by_hand import talk
from programs.loop import Conversation
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent, tool, workflow

TOOLS = {name: tool(name=name)(function) for name, function in scenario.TOOLS.items()}


def traced_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool in a span of its own."""
    return str(TOOLS[name](**arguments))


def turn(conversation: Conversation, session: str, question: str, *, stream: bool = False) -> None:
    """One run of the workflow, which invokes the agent."""

    @agent(name=scenario.AGENT)
    def answer(question: str) -> str:
        return conversation.turn(question, stream=stream)

    @workflow(name="chat")
    def chat(question: str) -> str:
        Traceloop.set_association_properties({"session_id": session, "user_id": scenario.USER})
        return answer(question)

    chat(question)


if __name__ == "__main__":
    Traceloop.init(app_name="weather-service")
    talk(lambda: Conversation(traced_call), turn, BadRequestError)
