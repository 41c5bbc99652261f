"""Spans as tests write them: OTLP's JSON from plain Python values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from support.otlp_captures import Captured, Json

TRACE = "0af7651916cd43dd8448eb211c80319c"
START = int(datetime(2026, 10, 1, 11, 0, tzinfo=UTC).timestamp()) * 1_000_000_000
"""Nanoseconds at which the spans of tests begin: an hour before it is for a test's server."""


def attribute_value(value: Any) -> Json:
    """Return a value in the format of OTLP's JSON."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [attribute_value(one) for one in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes(value)}}
    if type(value) is int:
        return {"intValue": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"doubleValue": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    name = {bool: "boolValue", float: "doubleValue", str: "stringValue"}.get(type(value))
    return {} if name is None else {name: value}


def attributes(values: dict[str, Any]) -> list[Json]:
    """Return attributes in the format of OTLP's JSON."""
    return [{"key": name, "value": attribute_value(value)} for name, value in values.items()]


def span(number: int, parent: int | None = None, *, trace: str = TRACE, **fields: Any) -> Json:
    """Return the span `number` of a trace: it starts `number` seconds after the first and lasts as long. `attributes` are plain values."""
    plain = fields.pop("attributes", {})
    return {
        "traceId": trace,
        "spanId": span_id(number),
        **({} if parent is None else {"parentSpanId": span_id(parent)}),
        "name": f"span {number}",
        "startTimeUnixNano": str(START + number * 1_000_000_000),
        "endTimeUnixNano": str(START + 2 * number * 1_000_000_000 + 1_000_000),
        "attributes": attributes(plain),
        **fields,
    }


def span_id(number: int) -> str:
    """Return the id of a span."""
    return f"{number + 1:016x}"


def request(*spans: Json, resource: dict[str, Any] | None = None, scope: str = "tests") -> Captured:
    """Return a request with some spans."""
    return Captured("traces", body(spans, resource, scope))


def body(spans: Sequence[Json], resource: dict[str, Any] | None = None, scope: str = "tests") -> Json:
    """Return the body of a request as OTLP JSON."""
    scoped = [{"scope": {"name": scope}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": {"attributes": attributes(resource or {})}, "scopeSpans": scoped}]}


def agent(
    number: int = 0, parent: int | None = None, question: str = "Is it well?", answer: str = "It is.", **fields: Any
) -> Json:
    """Return the span of an agent that answered a question."""
    agent_attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "scout",
        "gen_ai.conversation.id": "s1",
        "gen_ai.input.messages": messages("user", question),
        "gen_ai.output.messages": messages("assistant", answer),
    }
    return span(number, parent, attributes={**agent_attributes, **fields.pop("attributes", {})}, **fields)


def tool(number: int, parent: int | None = 0, name: str = "exec", **fields: Any) -> Json:
    """Return the span of a tool call with its own id."""
    tool_attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": f"call-{number}",
        "gen_ai.tool.call.arguments": json.dumps({"n": number}),
        "gen_ai.tool.call.result": f"result {number}",
    }
    return span(number, parent, attributes={**tool_attributes, **fields.pop("attributes", {})}, **fields)


def chat(number: int, parent: int | None = 0, **fields: Any) -> Json:
    """Return the span of a model request, with tokens."""
    chat_attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "model-1",
        "gen_ai.response.id": f"answer-{number}",
        "gen_ai.usage.input_tokens": 10 + number,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.input.messages": messages("user", f"question {number}"),
        "gen_ai.output.messages": messages("assistant", f"answer {number}"),
    }
    return span(number, parent, attributes={**chat_attributes, **fields.pop("attributes", {})}, **fields)


def messages(role: str, text: str) -> str:
    """Return a list of one message, as JSON."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
