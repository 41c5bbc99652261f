"""OTLP/JSON of what an exporter sent: ids in hex, 64-bit integers as strings, and nothing that is one machine's alone."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.receivers import Post

Json = dict[str, Any]

REQUESTS: Mapping[str, type[Message]] = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest}
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})
_OF_A_MACHINE = ("host.", "os.", "process.", "container.", "service.instance.id", "thread.")
"""Beginnings of the names of attributes that are left out."""


def readable(post: Post, replaced: Mapping[str, str]) -> Json | None:
    """The line of a capture that an export makes, or none where it is no signal that is read.

    `replaced` are texts of this machine, as paths, and what stands for them.
    """
    signal = post.path.rpartition("/")[2]
    if signal not in REQUESTS:
        return None
    body = gzip.decompress(post.body) if post.headers.get("content-encoding") == "gzip" else post.body
    content_type = post.headers["content-type"].partition(";")[0]
    request = json.loads(body) if content_type == "application/json" else _decoded(signal, body)
    return {"signal": signal, "content_type": content_type, "request": _without_machine(request, replaced)}


def to_protobuf(signal: str, request: Json) -> Message:
    """Return a request in OTLP/JSON as a protobuf message."""
    return ParseDict(_with_ids(request, _base64_of_hex), REQUESTS[signal]())


def _decoded(signal: str, body: bytes) -> Any:
    parsed = REQUESTS[signal].FromString(body)
    return _with_ids(MessageToDict(parsed, use_integers_for_enums=True), _hex_of_base64)


def _hex_of_base64(text: str) -> str:
    return base64.b64decode(text).hex()


def _base64_of_hex(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


def _with_ids(value: Any, convert: Any) -> Any:
    if isinstance(value, list):
        return [_with_ids(element, convert) for element in value]
    if isinstance(value, dict):
        return {name: convert(part) if name in _IDS else _with_ids(part, convert) for name, part in value.items()}
    return value


def _without_machine(value: Any, replaced: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for text, other in replaced.items():
            value = value.replace(text, other)
        return value
    if isinstance(value, list):
        return [_without_machine(element, replaced) for element in value if not _is_of_machine(element)]
    if isinstance(value, dict):
        return {name: _without_machine(part, replaced) for name, part in value.items()}
    return value


def _is_of_machine(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("key", "")).startswith(_OF_A_MACHINE)
