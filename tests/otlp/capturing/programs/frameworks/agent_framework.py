"""Microsoft's Agent Framework, which traces itself."""

from __future__ import annotations

import asyncio

from agent_framework import Agent, tool
from agent_framework.observability import configure_otel_providers
from agent_framework.openai import OpenAIChatCompletionClient
from opentelemetry import trace
from programs import numbers


async def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    agent = Agent(
        client=OpenAIChatCompletionClient(model=numbers.MODEL),
        name=numbers.AGENT,
        instructions=numbers.INSTRUCTIONS,
        tools=[tool(numbers.double)],
    )
    session = agent.create_session(session_id=numbers.SESSION)
    for question in numbers.QUESTIONS:
        if question == numbers.STREAMED_QUESTION:
            async for _ in agent.run(question, session=session, stream=True):
                pass
        else:
            await agent.run(question, session=session)


if __name__ == "__main__":
    configure_otel_providers(enable_sensitive_data=True)
    asyncio.run(talk())
    trace.get_tracer_provider().shutdown()
