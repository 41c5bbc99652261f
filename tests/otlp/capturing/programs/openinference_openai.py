"""OpenInference's instrumentation of the OpenAI client."""

from __future__ import annotations

from openai import BadRequestError
from openinference.instrumentation import TracerProvider
from openinference.instrumentation.openai import OpenAIInstrumentor
from programs.exporting import export_spans
from programs.loop import Conversation
from programs.openinference_agent import talk

if __name__ == "__main__":
    provider = export_spans(TracerProvider())
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    talk(provider, Conversation, BadRequestError)
