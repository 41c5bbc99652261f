"""Requests of OTLP for tests: what real instrumentors sent, and spans of one's own, as JSON or as protobuf."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp.captured import requests_of

_MESSAGES = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest}
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})
Json = dict[str, Any]


class Sent(NamedTuple):
    """A request: its signal, and what it says in OTLP's JSON."""

    signal: str
    request: Json

    @property
    def as_json(self) -> bytes:
        """The request as JSON."""
        return json.dumps(self.request).encode()

    @property
    def as_protobuf(self) -> bytes:
        """The request as protobuf."""
        message: Message = _MESSAGES[self.signal]()
        return bytes(ParseDict(_binary(self.request), message).SerializeToString())


def captured(name: str) -> list[Sent]:
    """The requests of a capture, in their order."""
    return [Sent(one.signal, one.request) for one in requests_of(name)]


def traces(*spans: Json, service: str | None = "checkout") -> Sent:
    """A request with spans of one service."""
    named = {} if service is None else {"service.name": service}
    scoped = [{"scope": {"name": "tests"}, "spans": list(spans)}]
    return Sent("traces", {"resourceSpans": [{"resource": {"attributes": attributes(named)}, "scopeSpans": scoped}]})


def turn(trace: int, at: datetime, *, session: str = "", **given: str) -> Json:
    """The span of an agent that answers one question."""
    said = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": session or f"session-{trace}",
        "gen_ai.input.messages": _message("user", f"Where is order {trace}?"),
        "gen_ai.output.messages": _message("assistant", f"Order {trace} left the depot this morning."),
    }
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{trace:016x}",
        "name": "invoke_agent clerk",
        "startTimeUnixNano": nanoseconds(at),
        "endTimeUnixNano": nanoseconds(at + timedelta(seconds=1)),
        "attributes": attributes({**said, **given}),
    }


def attributes(values: Mapping[str, str]) -> list[Json]:
    """Attributes as OTLP's JSON has them."""
    return [{"key": name, "value": {"stringValue": value}} for name, value in values.items()]


def nanoseconds(at: datetime) -> str:
    """A time as OTLP's JSON has it."""
    return f"{int(at.timestamp())}000000000"


def spans_of(requests: list[Sent]) -> Iterator[Json]:
    """The spans of requests."""
    for sent in requests:
        for group in sent.request.get("resourceSpans", ()):
            for scoped in group["scopeSpans"]:
                yield from scoped["spans"]


def _message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _binary(value: Any) -> Any:
    """The value with ids in Base64, as protobuf's own JSON has them."""
    if isinstance(value, list):
        return [_binary(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in _IDS else _binary(one) for name, one in value.items()
    }
