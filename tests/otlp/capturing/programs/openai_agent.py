"""An agent of the OpenAI Agents SDK, its conversation kept by the SDK's session; the second answer is streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

from agents import Agent, ModelSettings, Runner, SQLiteSession, function_tool, set_default_openai_client, trace
from openai import AsyncOpenAI, BadRequestError
from openai.types.shared import Reasoning
from programs import scenario

SessionOf = Callable[[str], AbstractContextManager[object]]


def talk(session_of: SessionOf = nullcontext) -> None:
    """Have the conversation; `session_of` is what an instrumentor knows a session by, beside the SDK's group."""
    set_default_openai_client(AsyncOpenAI(max_retries=0), use_for_tracing=False)
    asyncio.run(_talk(session_of))


def weather_agent() -> Agent:
    """The agent, with the model of the environment's client."""
    return Agent(
        name=scenario.AGENT,
        instructions=scenario.SYSTEM,
        model=scenario.MODEL,
        model_settings=ModelSettings(reasoning=Reasoning(effort="low", summary="auto")),
        tools=[function_tool(scenario.get_weather), function_tool(scenario.book_boat)],
    )


async def _talk(session_of: SessionOf) -> None:
    agent = weather_agent()
    session = SQLiteSession(scenario.SESSION)
    with session_of(scenario.SESSION):
        with trace("Weather", group_id=scenario.SESSION, metadata={"agent_version": scenario.VERSION}):
            await Runner.run(agent, scenario.WEATHER, session=session)
        with trace("Weather", group_id=scenario.SESSION):
            streamed = Runner.run_streamed(agent, scenario.BOAT, session=session)
            async for _ in streamed.stream_events():
                pass
    group = trace("Weather", group_id=scenario.REFUSED_SESSION)
    with session_of(scenario.REFUSED_SESSION), suppress(BadRequestError), group:
        await Runner.run(agent, scenario.REFUSED)
