"""The agent of `google_adk`, instrumented by OpenInference."""

from __future__ import annotations

import asyncio

from openinference.instrumentation.google_adk import GoogleADKInstrumentor
from programs.exporting import export_spans

if __name__ == "__main__":
    provider = export_spans()
    GoogleADKInstrumentor().instrument(tracer_provider=provider)
    from programs.frameworks.google_adk import talk

    asyncio.run(talk())
    provider.shutdown()
