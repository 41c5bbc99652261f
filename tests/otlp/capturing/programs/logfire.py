"""Logfire's SDK, which instruments the OpenAI client, exporting to another backend by OpenTelemetry's variables."""

from __future__ import annotations

from typing import Any

import logfire
from openai import BadRequestError
from programs import scenario
from programs.by_hand import talk
from programs.loop import Conversation


def traced_call(call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool in a span of its own."""
    with logfire.span("running tool: {tool}", tool=name, call_id=call_id, arguments=arguments) as span:
        result = scenario.TOOLS[name](**arguments)
        span.set_attribute("result", result)
        return result


def turn(conversation: Conversation, session: str, question: str, *, stream: bool = False) -> None:
    """One invocation of the agent, the session in baggage, from where it comes to every span."""
    with (
        logfire.set_baggage(**{"session.id": session}),
        logfire.span("{agent} run", agent=scenario.AGENT, agent_version=scenario.VERSION, question=question) as span,
    ):
        span.set_attribute("answer", conversation.turn(question, stream=stream))


if __name__ == "__main__":
    logfire.configure(send_to_logfire=False, console=False, add_baggage_to_attributes=True)
    logfire.instrument_openai()
    talk(lambda: Conversation(traced_call), turn, BadRequestError)
    logfire.force_flush()
