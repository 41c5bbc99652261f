"""LangChain's ready-made agent on LangGraph, its conversation kept by LangGraph under a thread's id."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from programs import numbers


def double(number: int) -> str:
    """Double a number."""
    try:
        return numbers.double(number)
    except ValueError as error:
        raise ToolException(str(error)) from error


def talk(**config: object) -> None:
    """Have the conversation; the second answer is streamed. `config` is LangChain's."""
    tools = [tool(double)]
    tools[0].handle_tool_error = True  # by default a tool that fails ends the run
    agent = create_agent(
        ChatOpenAI(model=numbers.MODEL, use_responses_api=False, stream_usage=True),
        tools=tools,
        system_prompt=numbers.INSTRUCTIONS,
        checkpointer=InMemorySaver(),
        name=numbers.AGENT,
    )
    for question in numbers.QUESTIONS:
        message = {"messages": [{"role": "user", "content": question}]}
        options = {"configurable": {"thread_id": numbers.SESSION}, **config}
        if question == numbers.STREAMED_QUESTION:
            list(agent.stream(message, options, stream_mode="messages"))
        else:
            agent.invoke(message, options)
