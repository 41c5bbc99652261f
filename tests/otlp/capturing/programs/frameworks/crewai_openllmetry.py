"""The crew of `crewai`, instrumented by OpenLLMetry."""

from __future__ import annotations

from opentelemetry.instrumentation.crewai import CrewAIInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from programs.exporting import export_spans
from programs.frameworks.crewai_crew import talk

if __name__ == "__main__":
    provider = export_spans()
    CrewAIInstrumentor().instrument(tracer_provider=provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
