"""LangChain's ready-made agent on LangGraph, its thread by OpenInference's session and by LangGraph's own `thread_id`."""

from __future__ import annotations

from contextlib import suppress

from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import BadRequestError
from openinference.instrumentation import using_session
from openinference.instrumentation.langchain import LangChainInstrumentor
from programs import scenario
from programs.exporting import export_spans


def book_boat(destination: str) -> str:
    """Book a boat."""
    try:
        return scenario.book_boat(destination)
    except ValueError as error:
        raise ToolException(str(error)) from error


if __name__ == "__main__":
    LangChainInstrumentor().instrument(tracer_provider=export_spans())
    boat = tool(book_boat)
    boat.handle_tool_error = True  # by default a tool that fails ends the run
    agent = create_agent(
        ChatOpenAI(model=scenario.MODEL, max_retries=0, use_responses_api=False),
        tools=[tool(scenario.get_weather), boat],
        system_prompt=scenario.SYSTEM,
        checkpointer=InMemorySaver(),
        name=scenario.AGENT,
    )
    for session, question in (
        (scenario.SESSION, scenario.WEATHER),
        (scenario.SESSION, scenario.BOAT),
        (scenario.REFUSED_SESSION, scenario.REFUSED),
    ):
        config = {"configurable": {"thread_id": session}, "metadata": {"agent_version": scenario.VERSION}}
        with using_session(session), suppress(BadRequestError):
            agent.invoke({"messages": [{"role": "user", "content": question}]}, config)
