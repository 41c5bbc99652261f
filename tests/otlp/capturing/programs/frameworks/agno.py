"""Agno, instrumented by OpenInference."""

from __future__ import annotations

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from openinference.instrumentation.agno import AgnoInstrumentor
from programs import numbers
from programs.exporting import export_spans


def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    agent = Agent(
        name=numbers.AGENT,
        model=OpenAIChat(numbers.MODEL),
        instructions=numbers.INSTRUCTIONS,
        tools=[numbers.double],
        db=InMemoryDb(),
        add_history_to_context=True,
        telemetry=False,
    )
    for question in numbers.QUESTIONS:
        if question == numbers.STREAMED_QUESTION:
            list(agent.run(question, session_id=numbers.SESSION, stream=True))
        else:
            agent.run(question, session_id=numbers.SESSION)


if __name__ == "__main__":
    provider = export_spans()
    AgnoInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
