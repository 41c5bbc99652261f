"""OpenInference's instrumentation of LangChain, its session in the context."""

from __future__ import annotations

from openinference.instrumentation import using_session
from openinference.instrumentation.langchain import LangChainInstrumentor
from programs.exporting import export_spans
from programs.langchain_agent import talk

if __name__ == "__main__":
    LangChainInstrumentor().instrument(tracer_provider=export_spans())
    talk(using_session)
