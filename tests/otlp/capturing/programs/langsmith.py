"""The agent of `langchain_agent`, traced by LangSmith's client, which exports to OpenTelemetry."""

from __future__ import annotations

from langchain_core.tracers.langchain import wait_for_all_tracers
from langsmith.run_trees import get_cached_client
from programs.exporting import export_spans
from programs.langchain_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    talk()
    wait_for_all_tracers()
    get_cached_client().flush()
    provider.shutdown()
