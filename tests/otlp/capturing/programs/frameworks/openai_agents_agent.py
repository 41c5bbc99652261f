"""An agent of the OpenAI Agents SDK, its conversation kept by the SDK's session."""

from __future__ import annotations

import asyncio

from agents import Agent, Model, Runner, SQLiteSession, function_tool, trace
from programs import numbers


def talk(model: str | Model = numbers.MODEL) -> None:
    """Have the conversation; the second answer is streamed."""
    asyncio.run(_talk(model))


async def _talk(model: str | Model) -> None:
    agent = Agent(name=numbers.AGENT, instructions=numbers.INSTRUCTIONS, model=model, tools=[function_tool(numbers.double)])
    session = SQLiteSession(numbers.SESSION)
    for question in numbers.QUESTIONS:
        with trace("Numbers", group_id=numbers.SESSION):
            if question == numbers.STREAMED_QUESTION:
                async for _ in Runner.run_streamed(agent, question, session=session).stream_events():
                    pass
            else:
                await Runner.run(agent, question, session=session)
