"""The Claude Agent SDK, which runs Claude Code, instrumented by OpenInference; Claude Code's session is the session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKError, create_sdk_mcp_server, tool
from openinference.instrumentation.claude_agent_sdk import ClaudeAgentSDKInstrumentor
from programs import scenario
from programs.exporting import export_spans


@tool("get_weather", "Tell the weather in a town.", {"town": str})
async def get_weather(arguments: dict[str, Any]) -> dict[str, Any]:
    """Tell the weather in a town."""
    return {"content": [{"type": "text", "text": scenario.get_weather(**arguments)}]}


@tool("book_boat", "Book a boat.", {"destination": str})
async def book_boat(arguments: dict[str, Any]) -> dict[str, Any]:
    """Book a boat."""
    return {"content": [{"type": "text", "text": scenario.book_boat(**arguments)}]}


def weather_options(**options: Any) -> ClaudeAgentOptions:
    """The agent."""
    return ClaudeAgentOptions(
        model=scenario.CLAUDE,
        system_prompt=scenario.SYSTEM,
        tools=[],
        mcp_servers={"weather": create_sdk_mcp_server("weather", tools=[get_weather, book_boat])},
        allowed_tools=["mcp__weather__get_weather", "mcp__weather__book_boat"],
        **options,
    )


async def ask(question: str, **options: Any) -> str | None:
    """One turn; the id of its session."""
    session = None
    async for message in claude_agent_sdk.query(prompt=question, options=weather_options(**options)):
        session = getattr(message, "session_id", session)
    return session


async def talk() -> None:
    """Have the conversation."""
    session = await ask(scenario.WEATHER)
    await ask(scenario.BOAT, resume=session)
    with suppress(ClaudeSDKError):
        await ask(scenario.REFUSED)


if __name__ == "__main__":
    ClaudeAgentSDKInstrumentor().instrument(tracer_provider=export_spans())
    asyncio.run(talk())
