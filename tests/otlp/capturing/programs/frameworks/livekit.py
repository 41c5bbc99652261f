"""An agent of LiveKit Agents, talked to in text; it traces itself."""

from __future__ import annotations

import asyncio

from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.telemetry import set_tracer_provider
from livekit.plugins import openai
from programs import numbers
from programs.exporting import export_spans


class NumbersAgent(Agent):
    """The agent."""

    def __init__(self) -> None:
        super().__init__(instructions=numbers.INSTRUCTIONS, id=numbers.AGENT)

    @function_tool
    async def double(self, number: int) -> str:
        """Double a number.

        Args:
            number: The number to double.
        """
        return numbers.double(number)


async def talk() -> None:
    """Have the conversation; every answer is streamed, as is the framework's way."""
    async with openai.LLM(model=numbers.MODEL) as llm, AgentSession(llm=llm) as session:
        await session.start(NumbersAgent())
        for question in numbers.QUESTIONS:
            await session.run(user_input=question)


if __name__ == "__main__":
    provider = export_spans()
    set_tracer_provider(provider, metadata={"session.id": numbers.SESSION})
    asyncio.run(talk())
    provider.shutdown()
