"""The OpenAI Agents SDK, instrumented by OpenInference: its own tracing goes to a processor that makes spans of it."""

from __future__ import annotations

from openinference.instrumentation import using_session
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from programs.exporting import export_spans
from programs.openai_agent import talk

if __name__ == "__main__":
    OpenAIAgentsInstrumentor().instrument(tracer_provider=export_spans())
    talk(using_session)
