"""The agent of `openai_agents_agent` over the Responses API, instrumented by OpenLLMetry."""

from __future__ import annotations

from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from programs.exporting import export_spans
from programs.frameworks.openai_agents_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
