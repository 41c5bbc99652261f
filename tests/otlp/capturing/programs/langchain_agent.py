"""LangChain's ready-made agent on LangGraph, with its conversation kept by LangGraph under a thread's id."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import BadRequestError
from programs import scenario


def book_boat(destination: str) -> str:
    """Book a boat."""
    try:
        return scenario.book_boat(destination)
    except ValueError as error:
        raise ToolException(str(error)) from error


def weather_agent(checkpointer: InMemorySaver | None = None) -> Any:
    """The agent; with a checkpointer each call needs the id of a thread."""
    boat = tool(book_boat)
    boat.handle_tool_error = True  # by default a tool that fails ends the run
    return create_agent(
        ChatOpenAI(model=scenario.MODEL, max_retries=0, use_responses_api=False),
        tools=[tool(scenario.get_weather), boat],
        system_prompt=scenario.SYSTEM,
        checkpointer=checkpointer,
        name=scenario.AGENT,
    )


def talk(session_of: Callable[[str], AbstractContextManager[object]] = nullcontext) -> None:
    """Have the conversation; `session_of` is what an instrumentor knows a session by."""
    agent = weather_agent(InMemorySaver())
    for session, question in (
        (scenario.SESSION, scenario.WEATHER),
        (scenario.SESSION, scenario.BOAT),
        (scenario.REFUSED_SESSION, scenario.REFUSED),
    ):
        config = {"configurable": {"thread_id": session}, "metadata": {"agent_version": scenario.VERSION}}
        with session_of(session), suppress(BadRequestError):
            agent.invoke({"messages": [{"role": "user", "content": question}]}, config)
