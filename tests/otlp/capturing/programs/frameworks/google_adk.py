"""Google's Agent Development Kit, which traces itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from google.adk.agents import Agent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai import types
from programs import numbers
from programs.exporting import export_spans


async def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    agent = Agent(
        name=numbers.AGENT.replace("-", "_"), model=numbers.GEMINI, instruction=numbers.INSTRUCTIONS, tools=[numbers.double]
    )
    runner = InMemoryRunner(agent, app_name="numbers")
    await runner.session_service.create_session(app_name="numbers", user_id="user-42", session_id=numbers.SESSION)
    for question in numbers.QUESTIONS:
        mode = StreamingMode.SSE if question == numbers.STREAMED_QUESTION else StreamingMode.NONE
        with suppress(ValueError):
            async for _ in runner.run_async(
                user_id="user-42",
                session_id=numbers.SESSION,
                new_message=types.Content(role="user", parts=[types.Part(text=question)]),
                run_config=RunConfig(streaming_mode=mode),
            ):
                pass


if __name__ == "__main__":
    provider = export_spans()
    asyncio.run(talk())
    provider.shutdown()
