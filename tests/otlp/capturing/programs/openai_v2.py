"""OpenTelemetry's instrumentation of the OpenAI client, by the conventions that it has unless told otherwise.

It has no word for a session, so its users write one on the span of their own that is around a turn; a program without such a span
makes a trace of each call of the model, as the refused question here does.
"""

from __future__ import annotations

from contextlib import suppress

from openai import BadRequestError
from opentelemetry import trace
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from programs import scenario
from programs.exporting import export_logs, export_spans
from programs.loop import Conversation

if __name__ == "__main__":
    export_spans()
    export_logs()
    OpenAIInstrumentor().instrument()
    tracer = trace.get_tracer("weather")
    conversation = Conversation()
    for question, stream in ((scenario.WEATHER, False), (scenario.BOAT, True)):
        with tracer.start_as_current_span("POST /chat", attributes={"session.id": scenario.SESSION}):
            conversation.turn(question, stream=stream)
    with suppress(BadRequestError):
        Conversation().turn(scenario.REFUSED)
