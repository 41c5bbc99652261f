"""The agent of `langchain_agent`, told of by LangSmith's client, which exports to OpenTelemetry."""

from __future__ import annotations

from langsmith import Client
from programs.exporting import export_spans
from programs.langchain_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    talk()
    Client().flush()
    provider.shutdown()
