"""The agent of `langgraph_agent`, instrumented by OpenLLMetry."""

from __future__ import annotations

from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from programs.exporting import export_spans
from programs.frameworks.langgraph_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    LangchainInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
