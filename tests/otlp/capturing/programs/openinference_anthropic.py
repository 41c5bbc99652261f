"""OpenInference's instrumentation of the Anthropic client."""

from __future__ import annotations

from anthropic import BadRequestError
from openinference.instrumentation import TracerProvider
from openinference.instrumentation.anthropic import AnthropicInstrumentor
from programs.exporting import export_spans
from programs.messages_loop import Conversation
from programs.openinference_agent import talk

if __name__ == "__main__":
    provider = export_spans(TracerProvider())
    AnthropicInstrumentor().instrument(tracer_provider=provider)
    talk(provider, Conversation, BadRequestError)
