"""Traces of a fleet for the benchmarks: what an agent does in a turn, as OpenTelemetry's conventions write it down."""

import hashlib
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

START = datetime(2026, 6, 1, tzinfo=UTC)
SPANS = 5
"""Spans of a trace: the agent, two requests to a model, a tool, and a query of a database."""
TURNS = 20
"""Traces of a session."""
QUESTION = "Where is order {number}, and when does it arrive? I asked for it to be delivered to the office in the old town. "
ANSWER = "Order {number} left the depot this morning and is on its way. The driver says it arrives between two and four. "
Attributes = dict[str, Any]


def requests(traces: int, together: int) -> Iterator[bytes]:
    """Requests with so many spans each, as protobuf; the same ones every time."""
    chance, per_request = random.Random(7), together // SPANS
    for start in range(0, traces, per_request):
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        for name, value in {
            "service.name": "orders",
            "service.version": "1.4.0",
            "deployment.environment.name": "live",
        }.items():
            group.resource.attributes.add(key=name).value.string_value = value
        scoped = group.scope_spans.add()
        scoped.scope.name = "benchmarks"
        for number in range(start, min(traces, start + per_request)):
            for span in trace(number, chance):
                scoped.spans.append(span)
        yield request.SerializeToString()


def trace(number: int, chance: random.Random) -> Iterator[Span]:
    """Return the spans of one turn, in the order in which they end."""
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    session = f"session-{number // TURNS:06}"
    call, region = f"call_{digest[:24]}", f"region-{chance.randrange(50)}"
    question = message("user", {"type": "text", "content": QUESTION.format(number=number) * 3})
    tool_call = message(
        "assistant", {"type": "tool_call", "id": call, "name": "track", "arguments": {"order": number, "at": region}}
    )
    tool_response = message(
        "tool", {"type": "tool_call_response", "id": call, "response": json.dumps({"state": "on its way", "at": region})}
    )
    answer = message("assistant", {"type": "text", "content": ANSWER.format(number=number) * 3})
    model = {"gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5.1", "gen_ai.response.model": "gpt-5.1-2026-03-05"}
    common = {"gen_ai.conversation.id": session, "gen_ai.agent.name": f"agent-{number % 40}"}
    chat = common | model | {"gen_ai.operation.name": "chat"}
    first_chat = chat | {"gen_ai.response.id": f"resp_{digest[:48]}", "gen_ai.response.finish_reasons": "tool_call"}
    last_chat = chat | {"gen_ai.response.id": f"resp_{digest[8:56]}", "gen_ai.response.finish_reasons": "stop"}
    spans = (
        ("chat gpt-5.1", first_chat | usage_attributes(300, 40) | message_attributes([question], [tool_call])),
        ("SELECT orders", {"db.system.name": "postgresql", "db.query.text": "SELECT * FROM orders WHERE id = $1"}),
        (
            "execute_tool track",
            common
            | {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "track", "gen_ai.tool.call.id": call}
            | {
                "gen_ai.tool.call.arguments": json.dumps({"order": number, "at": region}),
                "gen_ai.tool.call.result": tool_response["parts"][0]["response"],
            },
        ),
        (
            "chat gpt-5.1",
            last_chat | usage_attributes(420, 90) | message_attributes([question, tool_call, tool_response], [answer]),
        ),
        (
            "invoke_agent",
            common
            | {"gen_ai.operation.name": "invoke_agent"}
            | usage_attributes(720, 130)
            | message_attributes([question], [answer]),
        ),
    )
    for step, (name, attributes) in enumerate(spans):
        at = START + timedelta(seconds=10 * number, milliseconds=200 * step)
        is_root = step == len(spans) - 1
        yield span(digest, 0 if is_root else step + 1, name, at, attributes)


def span(digest: str, step: int, name: str, at: datetime, attributes: Attributes) -> Span:
    """Return a span of a trace; step 0 is its root."""
    new_span = Span(
        trace_id=bytes.fromhex(digest[:32]),
        span_id=bytes.fromhex(digest[32:46]) + bytes([step]),
        parent_span_id=b"" if not step else bytes.fromhex(digest[32:46]) + b"\0",
        name=name,
        start_time_unix_nano=int(at.timestamp() * 1e6) * 1000,
        end_time_unix_nano=int(at.timestamp() * 1e6) * 1000 + 150_000_000,
    )
    for key, value in attributes.items():
        target = new_span.attributes.add(key=key).value
        if isinstance(value, int):
            target.int_value = value
        else:
            target.string_value = value
    return new_span


def message(role: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a message of one part."""
    return {"role": role, "parts": [part]}


def message_attributes(input_messages: list[dict[str, Any]], output_messages: list[dict[str, Any]]) -> Attributes:
    """What was sent and what came back."""
    return {"gen_ai.input.messages": json.dumps(input_messages), "gen_ai.output.messages": json.dumps(output_messages)}


def usage_attributes(input_tokens: int, output_tokens: int) -> Attributes:
    """Return the tokens of a request."""
    return {"gen_ai.usage.input_tokens": input_tokens, "gen_ai.usage.output_tokens": output_tokens}
