"""The agent of `haystack_agent`, instrumented by OpenInference."""

from __future__ import annotations

from openinference.instrumentation import using_session
from openinference.instrumentation.haystack import HaystackInstrumentor
from programs import numbers
from programs.exporting import export_spans
from programs.frameworks.haystack_agent import talk

if __name__ == "__main__":
    provider = export_spans()
    HaystackInstrumentor().instrument(tracer_provider=provider)
    with using_session(numbers.SESSION):
        talk()
    provider.shutdown()
