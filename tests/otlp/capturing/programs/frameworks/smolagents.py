"""Hugging Face's smolagents, instrumented by OpenInference; its answer is a call of a tool, too."""

from __future__ import annotations

import os

from openinference.instrumentation import using_session
from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from programs import numbers
from programs.exporting import export_spans
from smolagents import OpenAIModel, ToolCallingAgent, tool


def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    model = OpenAIModel(numbers.MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = ToolCallingAgent(tools=[tool(numbers.double)], model=model, name="numbers_agent", max_steps=4)
    for question in numbers.QUESTIONS:
        with using_session(numbers.SESSION):
            if question == numbers.STREAMED_QUESTION:
                list(agent.run(question, reset=False, stream=True))
            else:
                agent.run(question, reset=False)


if __name__ == "__main__":
    provider = export_spans()
    SmolagentsInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
