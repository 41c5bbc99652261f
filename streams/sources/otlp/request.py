"""OTLP requests and responses: reads the spans and log records of protobuf or JSON requests, with their resource attributes.

Traces and logs are read, metrics are rejected. Each span or record is checked separately.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from audit.surrogates import json_bytes
from schemas.bounds import CLOCK_TOLERANCE, EARLIEST
from streams.sources.otlp.attributes import MAX_ATTRIBUTES, read_attributes, to_python
from streams.sources.otlp.conventions import SESSION
from streams.sources.otlp.received import Event, ReceivedItems, ReceivedSpan, RejectedItem
from streams.sources.otlp.request_formats import (
    LOGS,
    MAX_EVENTS,
    METRICS,
    METRICS_REJECTED,
    TRACES,
    Item,
    RequestFormat,
    RequestItem,
)
from streams.sources.otlp.request_json import read_json_items
from streams.sources.otlp.request_protobuf import read_protobuf_items

MAX_EXPLAINED_REASONS = 3
"""Maximum number of reasons that a response explains; all are counted."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
_EARLIEST = (EARLIEST - EPOCH) // timedelta(microseconds=1) * 1000
_GEN_AI_PREFIX = "gen_ai."


class Signal(NamedTuple):
    """A signal of OTLP: how to read its requests, and how to build a response from the number of rejected items and a message."""

    read: RequestReader
    build_answer: Callable[[int, str], Message]

    def answer(self, rejections: Sequence[Rejection]) -> Message:
        """Return the response to a request: the number of rejected items, and the first reasons with their counts."""
        counts: dict[str, int] = {}
        for rejection in rejections:
            counts[rejection.reason] = counts.get(rejection.reason, 0) + rejection.items
        reasons = [f"{reason} ({count} of them)" if count > 1 else reason for reason, count in counts.items()]
        message = "; ".join(reasons[:MAX_EXPLAINED_REASONS])
        if len(reasons) > MAX_EXPLAINED_REASONS:
            message += f"; and {len(reasons) - MAX_EXPLAINED_REASONS} more reasons"
        return self.build_answer(sum(counts.values()), message)


class RequestReader(Protocol):
    """A function that reads the requests of one signal."""

    def __call__(self, body: bytes, now: datetime, *, is_json: bool) -> ReceivedItems:
        """Return the spans or records of a request. Raises InputError if the whole request cannot be read."""
        ...


class Rejection(NamedTuple):
    """The reason why `items` were rejected. Without items, it is only a warning to the sender."""

    reason: str
    items: int = 1


def encode_json(answer: Message) -> bytes:
    """Return a response in OTLP's JSON."""
    text: str = MessageToJson(answer, indent=None)
    return text.encode()


def read_traces(body: bytes, now: datetime, *, is_json: bool) -> ReceivedItems:
    """Return the spans of a request. Raises InputError if the whole request cannot be read."""
    return _convert_items(_read_items(body, TRACES, is_json=is_json), _build_span, now)


def read_logs(body: bytes, now: datetime, *, is_json: bool) -> ReceivedItems:
    """Return the records of a request for logs. Raises InputError if the whole request cannot be read."""
    return _convert_items(_read_items(body, LOGS, is_json=is_json), _build_log, now)


def read_metrics(body: bytes, now: datetime, *, is_json: bool) -> ReceivedItems:
    """Reject all metrics of a request. Raises InputError if the whole request cannot be read."""
    del now
    yield RejectedItem(METRICS_REJECTED, items=0)  # reported even if there are no metrics, so that a first test shows it
    for entry in _read_items(body, METRICS, is_json=is_json):
        yield entry.item if isinstance(entry.item, RejectedItem) else RejectedItem(METRICS_REJECTED)


def _convert_items(
    entries: Iterator[RequestItem[Item]],
    build: Callable[[RequestItem[Item], datetime], ReceivedSpan | RejectedItem | None],
    now: datetime,
) -> ReceivedItems:
    """Yield the items of a request, converted by `build`."""
    for entry in entries:
        received = entry.item if isinstance(entry.item, RejectedItem) else build(entry, now)
        if entry.is_repaired and isinstance(received, ReceivedSpan):
            yield _reject_repaired_session(received) or received
        else:
            yield received


def _reject_repaired_session(received: ReceivedSpan) -> RejectedItem | None:
    """Reject a span whose session id was repaired: two different ids may be equal after the repair."""
    for values in (received.attributes, received.resource, *(event.attributes for event in received.events)):
        for name in SESSION:
            if "\ufffd" in str(values.get(name, "")):
                reason = f"{name}: is not UTF-8; repaired, it could be another session"
                return RejectedItem(reason, json_bytes(received._asdict()))
    return None


def _read_items(body: bytes, request_format: RequestFormat, *, is_json: bool) -> Iterator[RequestItem[Any]]:
    return read_json_items(body, request_format) if is_json else read_protobuf_items(body, request_format)


def _build_span(entry: RequestItem[Span], now: datetime) -> ReceivedSpan | RejectedItem:
    """Return the span; a RejectedItem if its ids or its start are invalid."""
    span = entry.item
    if isinstance(span, RejectedItem):
        return span
    start = span.start_time_unix_nano
    end = span.end_time_unix_nano
    problem = _find_id_problem(span.trace_id, span.span_id) or _find_time_problem("start_time_unix_nano", start, now)
    if problem:
        return RejectedItem(problem, _encode_rejected(span, span.name))
    started_at = _to_time(start)
    has_valid_end = end > start and not _find_time_problem("end_time_unix_nano", end, now)
    events = span.events
    attributes = span.attributes
    has_lost_content = (
        entry.is_repaired
        or bool(span.dropped_attributes_count or span.dropped_events_count)
        or len(events) > MAX_EVENTS
        or len(attributes) > MAX_ATTRIBUTES
    )
    # Positional arguments take half the time of keyword arguments.
    return ReceivedSpan(
        span.trace_id.hex(),
        span.span_id.hex(),
        _parent_id(span.parent_span_id),
        span.name,
        entry.scope.name,
        started_at,
        _to_time(end) if has_valid_end else started_at,
        read_attributes(attributes),
        entry.resource,
        _read_events(events) if events else (),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        message=span.status.message,
        lost=has_lost_content,
        trace_state=span.trace_state,
        scope_version=entry.scope.version,
        is_server=span.kind == Span.SPAN_KIND_SERVER,
    )


def _read_events(events: Sequence[Any]) -> tuple[Event, ...]:
    return tuple(Event(event.name, read_attributes(event.attributes)) for event in events[:MAX_EVENTS])


def _build_log(entry: RequestItem[LogRecord], now: datetime) -> ReceivedSpan | RejectedItem | None:
    """Return the record; None if it is not about a model, because a request may hold the whole log of an application."""
    record = entry.item
    if isinstance(record, RejectedItem):
        return record
    attributes = read_attributes(record.attributes)
    name = record.event_name or str(attributes.get("event.name", ""))
    if not name.startswith(_GEN_AI_PREFIX):
        return None
    time = record.time_unix_nano or record.observed_time_unix_nano
    problem = _find_id_problem(record.trace_id, record.span_id) or _find_time_problem("time_unix_nano", time, now)
    if problem:
        return RejectedItem(problem, _encode_rejected(record, name))
    body = to_python(record.body)
    content = body if isinstance(body, dict) else {"content": body}
    occurred_at = _to_time(time)
    return ReceivedSpan(
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        parent_id=record.span_id.hex(),
        name=name,
        scope=entry.scope.name,
        started_at=occurred_at,
        ended_at=occurred_at,
        attributes={},
        resource=entry.resource,
        events=(Event(name, {**attributes, **content}),),
        is_log=True,
        lost=entry.is_repaired or bool(record.dropped_attributes_count),
    )


def _find_id_problem(trace_id: bytes, span_id: bytes) -> str:
    """Return what is wrong with the ids of a span or record; an empty text if they are valid."""
    if len(trace_id) != TRACE_ID_BYTES or not any(trace_id):
        return f"trace_id: is missing, or does not have {TRACE_ID_BYTES} bytes"
    if len(span_id) != SPAN_ID_BYTES or not any(span_id):
        return f"span_id: is missing, or does not have {SPAN_ID_BYTES} bytes"
    return ""


def _find_time_problem(field: str, nanoseconds: int, now: datetime) -> str:
    """Return what is wrong with the time in a field; an empty text if it is valid."""
    if not nanoseconds:
        return f"{field}: is missing"
    if nanoseconds < _EARLIEST or nanoseconds > _latest_time(now):
        return f"{field}: is before the year 2000 or more than a day in the future"
    return ""


@functools.lru_cache(16)
def _latest_time(now: datetime) -> int:
    """Return the latest accepted time in nanoseconds. Cached because it is the same for every span of a request."""
    return (now + CLOCK_TOLERANCE - EPOCH) // timedelta(microseconds=1) * 1000


def _encode_rejected(item: Any, name: str) -> bytes:
    """Return a span or record as JSON with attributes by name, because redaction finds some secrets by the name."""
    ids = {"trace_id": item.trace_id.hex(), "span_id": item.span_id.hex(), "name": name}
    events = [event._asdict() for event in _read_events(getattr(item, "events", ()))]
    return json_bytes({**ids, "attributes": read_attributes(item.attributes), "events": events})


def _to_time(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(0, 0, nanoseconds // 1000)


def _parent_id(span_id: bytes) -> str | None:
    """Return the id of a span's parent; None if it is all zeros."""
    return span_id.hex() if any(span_id) else None


def _answer_traces(count: int, message: str) -> Message:
    partial = ExportTracePartialSuccess(rejected_spans=count, error_message=message) if message else None
    return ExportTraceServiceResponse(partial_success=partial)


def _answer_logs(count: int, message: str) -> Message:
    partial = ExportLogsPartialSuccess(rejected_log_records=count, error_message=message) if message else None
    return ExportLogsServiceResponse(partial_success=partial)


def _answer_metrics(count: int, message: str) -> Message:
    partial = ExportMetricsPartialSuccess(rejected_data_points=count, error_message=message) if message else None
    return ExportMetricsServiceResponse(partial_success=partial)


SIGNALS = {
    "traces": Signal(read_traces, _answer_traces),
    "logs": Signal(read_logs, _answer_logs),
    "metrics": Signal(read_metrics, _answer_metrics),
}
"""The signals, by name."""
