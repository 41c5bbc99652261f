"""The OpenAI Agents SDK, under OpenTelemetry's own instrumentations: one of the agents, one of the client below them."""

from __future__ import annotations

from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor
from programs.exporting import export_logs, export_spans
from programs.openai_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    export_logs()
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    talk()
