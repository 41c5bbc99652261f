"""AutoGen's AgentChat, instrumented by OpenInference."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openinference.instrumentation import using_session
from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor
from programs import numbers
from programs.exporting import export_spans


async def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    client = OpenAIChatCompletionClient(
        model=numbers.MODEL,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "family": "unknown",
            "structured_output": False,
        },
    )
    agent = AssistantAgent(
        numbers.AGENT.replace("-", "_"),
        client,
        tools=[numbers.double],
        system_message=numbers.INSTRUCTIONS,
        reflect_on_tool_use=True,
        model_client_stream=True,
    )
    for question in numbers.QUESTIONS:
        with using_session(numbers.SESSION):
            if question == numbers.STREAMED_QUESTION:
                async for _ in agent.run_stream(task=question):
                    pass
            else:
                await agent.run(task=question)


if __name__ == "__main__":
    provider = export_spans()
    AutogenAgentChatInstrumentor().instrument(tracer_provider=provider)
    asyncio.run(talk())
    provider.shutdown()
