"""The formats of OTLP requests for traces, logs and metrics: their message classes and the names of their nested lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from streams.sources.otlp.received import RejectedItem

METRICS_REJECTED = "metrics are not stored, only traces and logs; set OTEL_METRICS_EXPORTER=none to stop sending them"
SEND_HINT = "Send an ExportTraceServiceRequest or ExportLogsServiceRequest, as an OTLP exporter does."
MAX_EVENTS = 1_024
"""Most events of a span that are read."""
SCOPE_FIELDS = ("scope", "instrumentation_library")
"""The field of the instrumentation scope, and its name before OTLP 0.15."""
Item = TypeVar("Item", Span, LogRecord)


class RequestItem(NamedTuple, Generic[Item]):
    """A span or record of a request, with the attributes of its resource and its scope."""

    resource: Mapping[str, Any]
    scope: Scope
    item: Item | RejectedItem
    is_repaired: bool = False
    """True if texts of the item or its resource were repaired, because they were not valid Unicode."""


class Scope(NamedTuple):
    """The instrumentation library that made a span or record."""

    name: str = ""
    version: str = ""


class RequestFormat(NamedTuple):
    """The format of a signal's requests: the request's message class, its nested lists, and the message class of an item."""

    request: type[Message]
    groups: ListField
    scopes: ListField
    items: ListField
    item_class: type[Any]


class ListField(NamedTuple):
    """A list in a request: its protobuf field, its JSON names (the current ones first), and the other members allowed beside it."""

    field: str
    names: tuple[str, ...]
    other_members: frozenset[str]


def list_spellings(*fields: str) -> dict[str, None]:
    """Return the JSON name and the protobuf name of each field, in order. Both are legal."""
    return dict.fromkeys(name for field in fields for name in (_to_camel_case(field), field))


def _to_camel_case(field: str) -> str:
    first_word, *other_words = field.split("_")
    return first_word + "".join(map(str.capitalize, other_words))


def _build_format(signal: str, request: type[Message], item_class: type[Any], items: str, *older_items: str) -> RequestFormat:
    """Return the format of a signal's requests, with the current names and those before OTLP 0.15."""
    groups = _build_list_field(f"resource_{signal}")
    scopes = _build_list_field(f"scope_{signal}", f"instrumentation_library_{signal}", other_members=("resource",))
    return RequestFormat(
        request, groups, scopes, _build_list_field(items, *older_items, other_members=SCOPE_FIELDS), item_class
    )


def _build_list_field(field: str, *older: str, other_members: Sequence[str] = ()) -> ListField:
    return ListField(field, tuple(list_spellings(field, *older)), frozenset(list_spellings("schema_url", *other_members)))


TRACES = _build_format("spans", ExportTraceServiceRequest, Span, "spans")
LOGS = _build_format("logs", ExportLogsServiceRequest, LogRecord, "log_records", "logs")
METRICS = _build_format("metrics", ExportMetricsServiceRequest, Metric, "metrics")
SIGNALS_BY_LIST = {
    name: (request_format, message)
    for request_format, message in (
        (TRACES, "spans belong in a trace request: /v1/traces"),
        (LOGS, "log records belong in a log request: /v1/logs"),
        (METRICS, METRICS_REJECTED),
    )
    for name in request_format.groups.names
}
"""The request format of the signal with this list, and a message that tells where its requests belong."""
