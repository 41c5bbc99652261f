"""Semantic Kernel's chat completion agent, which traces itself; its texts are in logs."""

from __future__ import annotations

import asyncio
import logging

from opentelemetry._logs import get_logger_provider
from opentelemetry.sdk._logs import LoggingHandler
from programs import numbers
from programs.exporting import export_logs, export_spans
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Numbers:
    """A plugin."""

    @kernel_function(name="double", description="Double a number.")
    def double(self, number: int) -> str:
        """Double a number."""
        return numbers.double(number)


async def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    agent = ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=numbers.MODEL),
        name=numbers.AGENT,
        instructions=numbers.INSTRUCTIONS,
        plugins=[Numbers()],
    )
    thread = ChatHistoryAgentThread(thread_id=numbers.SESSION)
    for question in numbers.QUESTIONS:
        if question == numbers.STREAMED_QUESTION:
            async for _ in agent.invoke_stream(messages=question, thread=thread):
                pass
        else:
            await agent.get_response(messages=question, thread=thread)


if __name__ == "__main__":
    provider = export_spans()
    export_logs()
    handler = LoggingHandler()
    handler.addFilter(logging.Filter("semantic_kernel"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    asyncio.run(talk())
    provider.shutdown()
    get_logger_provider().shutdown()
