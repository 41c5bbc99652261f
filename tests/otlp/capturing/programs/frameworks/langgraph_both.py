"""The agent of `langgraph_agent`, instrumented by OpenInference and OpenLLMetry at once."""

from __future__ import annotations

from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from programs.exporting import export_spans
from programs.frameworks.langgraph_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    LangChainInstrumentor().instrument(tracer_provider=provider)
    LangchainInstrumentor().instrument(tracer_provider=provider)
    talk()
    provider.shutdown()
