"""Messages in the form that OpenTelemetry's conventions give them, parts and nothing else: read by their schema, in a third of the time.

Whatever has another field or another type is left to `streams.sources.otlp.messages`, which says the same of these.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streams.sources.otlp.attributes import MAX_PARSED, parsed
from streams.sources.otlp.messages import ROLES, Message, text_of
from streams.sources.otlp.span_facts import ToolCall, ToolResult
from streams.sources.otlp.tool_errors import failed_by_result


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    content: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    response: Any = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    parts: list[_Part]
    finish_reason: str | None = None


_decode = msgspec.json.Decoder(list[_Message]).decode


def messages_of_parts(text: str) -> list[Message] | None:
    """The messages of a text; None where it has not this form."""
    if not text.startswith('[{"') or len(text) > MAX_PARSED:
        return None
    try:
        return [_message(one) for one in _decode(text)]
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError):
        return None


def _message(given: _Message) -> Message:
    """The message; KeyError where its role or a part has another name than the conventions give it."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for part in given.parts:
        kind = _KINDS[part.type]
        if kind == "text":
            if part.content:
                texts.append(part.content)
        elif kind == "call":
            calls.append(ToolCall(part.name or None, part.id or None, parsed(part.arguments).value))
        elif kind == "result":
            output = part.content if part.response is None else part.response
            results.append(ToolResult(text_of(output), part.name or None, part.id or None, failed_by_result(output)))
        elif part.content:
            thoughts.append(part.content)
    role = ROLES[given.role]
    if role == "tool" and not results:
        results, texts = [ToolResult("\n".join(texts))], []
    return Message(role, texts, thoughts, calls, results, False, given.finish_reason or None)


_KINDS = {"text": "text", "reasoning": "thought", "tool_call": "call", "tool_call_response": "result"}
