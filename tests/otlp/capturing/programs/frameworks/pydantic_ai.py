"""Pydantic AI, which traces itself."""

from __future__ import annotations

import asyncio

from programs import numbers
from programs.exporting import export_spans
from pydantic_ai import Agent, ModelRetry


def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number to double.
    """
    try:
        return numbers.double(number)
    except ValueError as error:
        raise ModelRetry(str(error)) from error


async def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    agent = Agent(f"openai-chat:{numbers.MODEL}", name=numbers.AGENT, instructions=numbers.INSTRUCTIONS, tools=[double])
    history = None
    for question in numbers.QUESTIONS:
        about = {"message_history": history, "conversation_id": numbers.SESSION}
        if question == numbers.STREAMED_QUESTION:
            async with agent.run_stream(question, **about) as result:
                await result.get_output()
        else:
            result = await agent.run(question, **about)
        history = result.all_messages()


if __name__ == "__main__":
    provider = export_spans()
    Agent.instrument_all()
    asyncio.run(talk())
    provider.shutdown()
