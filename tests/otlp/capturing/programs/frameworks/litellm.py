"""A loop over LiteLLM, whose own callback exports each request in a trace of its own."""

from __future__ import annotations

import json
import time
from typing import Any

import litellm
from opentelemetry import trace
from programs import numbers

TOOL = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Double a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


def ask(messages: list[Any], *, stream: bool) -> Any:
    """One request; a stream is put together again."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = litellm.completion(f"openai/{numbers.MODEL}", messages, tools=[TOOL], **options)
    whole = litellm.stream_chunk_builder(list(answer), messages=messages) if stream else answer
    return whole.choices[0].message


def turn(messages: list[Any], question: str) -> None:
    """The answer to a question, after as many calls of the tool as it takes."""
    messages.append({"role": "user", "content": question})
    while True:
        message = ask(messages, stream=question == numbers.STREAMED_QUESTION)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            try:
                content = numbers.double(**json.loads(call.function.arguments))
            except ValueError as error:
                content = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            return


if __name__ == "__main__":
    litellm.callbacks = ["otel"]
    conversation: list[Any] = [{"role": "system", "content": numbers.INSTRUCTIONS}]
    for asked in numbers.QUESTIONS:
        turn(conversation, asked)
    time.sleep(2.0)  # callbacks run in threads that a program cannot wait for
    trace.get_tracer_provider().shutdown()
