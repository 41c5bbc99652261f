"""Pydantic AI, which has its instrumentation built in."""

from __future__ import annotations

from contextlib import suppress

from openai import AsyncOpenAI
from programs import scenario
from programs.exporting import export_spans
from pydantic_ai import Agent, ModelHTTPError, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def book_boat(destination: str) -> str:
    """Book a boat."""
    try:
        return scenario.book_boat(destination)
    except ValueError as error:
        raise ModelRetry(str(error)) from error


def weather_agent() -> Agent:
    """The agent."""
    return Agent(
        OpenAIChatModel(scenario.MODEL, provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0))),
        name=scenario.AGENT,
        instructions=scenario.SYSTEM,
        tools=[scenario.get_weather, book_boat],
        metadata={"agent_version": scenario.VERSION},
    )


if __name__ == "__main__":
    export_spans()
    Agent.instrument_all()
    agent = weather_agent()
    first = agent.run_sync(scenario.WEATHER, conversation_id=scenario.SESSION)
    agent.run_sync(scenario.BOAT, message_history=first.all_messages(), conversation_id=scenario.SESSION)
    with suppress(ModelHTTPError):
        agent.run_sync(scenario.REFUSED, conversation_id=scenario.REFUSED_SESSION)
