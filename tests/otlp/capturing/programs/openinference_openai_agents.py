"""The OpenAI Agents SDK, told of by OpenInference: its own tracing goes to a processor that makes spans of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agents import Agent, ModelSettings, Runner, SQLiteSession, function_tool, set_default_openai_client, trace
from openai import AsyncOpenAI, BadRequestError
from openai.types.shared import Reasoning
from openinference.instrumentation import using_session
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from programs import scenario
from programs.exporting import export_spans


async def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    set_default_openai_client(AsyncOpenAI(max_retries=0), use_for_tracing=False)
    agent = Agent(
        name=scenario.AGENT,
        instructions=scenario.SYSTEM,
        model=scenario.MODEL,
        model_settings=ModelSettings(reasoning=Reasoning(effort="low", summary="auto")),
        tools=[function_tool(scenario.get_weather), function_tool(scenario.book_boat)],
    )
    session = SQLiteSession(scenario.SESSION)
    with using_session(scenario.SESSION):
        with trace("Weather", group_id=scenario.SESSION, metadata={"agent_version": scenario.VERSION}):
            await Runner.run(agent, scenario.WEATHER, session=session)
        with trace("Weather", group_id=scenario.SESSION):
            streamed = Runner.run_streamed(agent, scenario.BOAT, session=session)
            async for _ in streamed.stream_events():
                pass
    with using_session(scenario.REFUSED_SESSION), suppress(BadRequestError):
        await Runner.run(agent, scenario.REFUSED)


if __name__ == "__main__":
    OpenAIAgentsInstrumentor().instrument(tracer_provider=export_spans())
    asyncio.run(talk())
