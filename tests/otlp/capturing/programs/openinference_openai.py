"""OpenInference's instrumentation of the OpenAI client, its session in the context, an agent and tools by its decorators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from openai import BadRequestError
from openinference.instrumentation import TracerProvider, using_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor

from programs import scenario
from programs.exporting import export_spans
from programs.loop import Conversation

if __name__ == "__main__":
    provider = export_spans(TracerProvider())
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    tracer = provider.get_tracer("weather")
    tools = {name: tracer.tool(tool) for name, tool in scenario.TOOLS.items()}

    def traced_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool in a span of its own."""
        return str(tools[name](**arguments))

    def agent(conversation: Conversation) -> Callable[..., str]:
        """Ask the agent in a span of its own."""
        return tracer.agent(name=scenario.AGENT)(conversation.turn)

    answer = agent(Conversation(traced_call))
    with using_attributes(session_id=scenario.SESSION, user_id=scenario.USER, metadata={"agent_version": scenario.VERSION}):
        answer(scenario.WEATHER)
        answer(scenario.BOAT, stream=True)
    with using_attributes(session_id=scenario.REFUSED_SESSION), suppress(BadRequestError):
        agent(Conversation(traced_call))(scenario.REFUSED)
