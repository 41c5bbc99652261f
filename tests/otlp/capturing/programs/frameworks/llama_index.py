"""LlamaIndex's agent workflow, instrumented by OpenInference."""

from __future__ import annotations

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike
from openinference.instrumentation import using_session
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
from programs import numbers
from programs.exporting import export_spans


async def talk() -> None:
    """Have the conversation; every answer is streamed, as is the framework's way."""
    llm = OpenAILike(
        model=numbers.MODEL,
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        additional_kwargs={"stream_options": {"include_usage": True}},
    )
    agent = FunctionAgent(name=numbers.AGENT, tools=[numbers.double], llm=llm, system_prompt=numbers.INSTRUCTIONS)
    context = Context(agent)
    for question in numbers.QUESTIONS:
        with using_session(numbers.SESSION):
            await agent.run(question, ctx=context)


if __name__ == "__main__":
    provider = export_spans()
    LlamaIndexInstrumentor().instrument(tracer_provider=provider)
    asyncio.run(talk())
    provider.shutdown()
