"""The agent of `haystack_agent`, traced by Haystack itself."""

from __future__ import annotations

from haystack import tracing
from haystack_integrations.tracing.opentelemetry import OpenTelemetryTracer
from opentelemetry import trace
from programs.exporting import export_spans
from programs.frameworks.haystack_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    tracing.enable_tracing(OpenTelemetryTracer(trace.get_tracer("haystack")))
    tracing.tracer.is_content_tracing_enabled = True
    talk()
    provider.shutdown()
