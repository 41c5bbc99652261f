"""The crew of `crewai_crew`, instrumented by OpenInference."""

from __future__ import annotations

from openinference.instrumentation import using_session
from openinference.instrumentation.crewai import CrewAIInstrumentor
from programs import numbers
from programs.exporting import export_spans
from programs.frameworks.crewai_crew import talk

if __name__ == "__main__":
    provider = export_spans()
    CrewAIInstrumentor().instrument(tracer_provider=provider)
    with using_session(numbers.SESSION):
        talk()
    provider.shutdown()
