"""The agent of `openai_agents_agent` over Chat Completions, instrumented by OpenInference."""

from __future__ import annotations

from agents import OpenAIChatCompletionsModel
from openai import AsyncOpenAI
from openinference.instrumentation import using_session
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from programs import numbers
from programs.exporting import export_spans
from programs.frameworks.openai_agents_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
    with using_session(numbers.SESSION):
        talk(OpenAIChatCompletionsModel(numbers.MODEL, AsyncOpenAI()))
    provider.shutdown()
