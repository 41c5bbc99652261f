"""OTLP requests: protobuf or JSON to spans and log records with the attributes of their resource, each checked by itself.

In OTLP's JSON ids are hexadecimal digits and 64-bit integers are texts; unknown fields are ignored, as the protocol asks for.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from audit.surrogates import json_bytes
from schemas.bounds.limits import CLOCK_TOLERANCE, EARLIEST
from schemas.errors import InputError
from streams.sources.lines import decode_json, json_type
from streams.sources.otlp.attributes import MAX_ATTRIBUTES, attributes_of, plain

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRACE_ID, SPAN_ID = 16, 8
"""Bytes of an id."""
SEND = "Send what an OTLP exporter sends: an ExportTraceServiceRequest or ExportLogsServiceRequest."
Json = dict[str, Any]
Item = TypeVar("Item", Span, LogRecord)


class Event(NamedTuple):
    """Something that happened within a span, or beside it as a record of a log."""

    name: str
    attributes: Mapping[str, Any]


class Observed(NamedTuple):
    """A span, or a record of a log that belongs to one: what it says, before any convention is known.

    Ids are hexadecimal digits; `parent_id` of a record is its span. `failed` says that its status is an error, `message` in which words.
    `lost` says that the SDK left attributes out.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    scope: str
    started_at: datetime
    ended_at: datetime
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    events: tuple[Event, ...]
    is_log: bool = False
    failed: bool = False
    message: str = ""
    lost: bool = False
    trace_state: str = ""


class Refused(NamedTuple):
    """A span or record that cannot be read, why, and its bytes."""

    reason: str
    body: bytes = b""


Found = Iterator[Observed | Refused]


class _Part(NamedTuple, Generic[Item]):
    resource: Mapping[str, Any]
    scope: str
    item: Item | Refused


def read_traces(body: bytes, now: datetime, *, is_json: bool) -> Found:
    """The spans of a request; InputError when the whole of it cannot be read."""
    return _observed(_json_parts(body, _TRACES) if is_json else _traces(body), _span, now)


def read_logs(body: bytes, now: datetime, *, is_json: bool) -> Found:
    """The records of a request for logs; InputError when the whole of it cannot be read."""
    return _observed(_json_parts(body, _LOGS) if is_json else _logs(body), _record, now)


def _observed(
    parts: Iterator[_Part[Item]], read: Callable[[_Part[Item], datetime], Observed | Refused | None], now: datetime
) -> Found:
    for part in parts:
        found = part.item if isinstance(part.item, Refused) else read(part, now)
        if found is not None:
            yield found


def _decoded(request: Message, body: bytes) -> None:
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise InputError("the body is not a protobuf message of OTLP", hint=SEND) from error


def _traces(body: bytes) -> Iterator[_Part[Span]]:
    request = ExportTraceServiceRequest()
    _decoded(request, body)
    for group in request.resource_spans:
        resource = attributes_of(group.resource.attributes)
        for scoped in group.scope_spans:
            for span in scoped.spans:
                yield _Part(resource, scoped.scope.name, span)


def _logs(body: bytes) -> Iterator[_Part[LogRecord]]:
    request = ExportLogsServiceRequest()
    _decoded(request, body)
    for group in request.resource_logs:
        resource = attributes_of(group.resource.attributes)
        for scoped in group.scope_logs:
            for record in scoped.log_records:
                yield _Part(resource, scoped.scope.name, record)


class _Form(NamedTuple):
    """The names of a request's levels in JSON, and the message that stands on the last."""

    groups: str
    scopes: str
    items: str
    make: Callable[[], Any]


_TRACES = _Form("resourceSpans", "scopeSpans", "spans", Span)
_LOGS = _Form("resourceLogs", "scopeLogs", "logRecords", LogRecord)


def _json_parts(body: bytes, form: _Form) -> Iterator[_Part[Any]]:
    try:
        request = decode_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}", hint=SEND) from error
    if not isinstance(request, dict):
        raise InputError(f"the body is {json_type(request)}, not an object", hint=SEND)
    for group in _list(request, form.groups):
        resource = _json_attributes(_object(group, "resource"))
        for scoped in _list(group, form.scopes):
            name = _object(scoped, "scope").get("name", "")
            for item in _list(scoped, form.items):
                yield _Part(resource, name if isinstance(name, str) else "", _json_item(item, form))


def _json_item(item: Any, form: _Form) -> Any:
    if not isinstance(item, dict):
        return Refused(f"{form.items}: is {json_type(item)}, not an object", json_bytes(item))
    try:
        return ParseDict(_with_binary_ids(item), form.make(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        return Refused(f"{form.items}: {str(error)[:_SHOWN]}", json_bytes(item))


def _with_binary_ids(item: Json) -> Json:
    """The span with ids as protobuf's JSON has them. Links are left out: nothing is read of them."""
    found = {name: value for name, value in item.items() if name != "links"}
    for name in _IDS & found.keys():
        try:
            found[name] = base64.b64encode(binascii.unhexlify(found[name] or "")).decode()
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: is not hexadecimal digits") from error
    return found


def _json_attributes(resource: Json) -> Mapping[str, Any]:
    found: list[KeyValue] = []
    for one in _list(resource, "attributes"):
        try:
            found.append(ParseDict(one, KeyValue(), ignore_unknown_fields=True))
        except (ParseError, AttributeError, RecursionError):
            continue
    return attributes_of(found)


def _list(value: Any, name: str) -> list[Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _object(value: Any, name: str) -> Json:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _span(part: _Part[Span], now: datetime) -> Observed | Refused:
    span = part.item
    if isinstance(span, Refused):
        return span
    trace_id, span_id, began, ended = span.trace_id, span.span_id, span.start_time_unix_nano, span.end_time_unix_nano
    problem = _id_problem(trace_id, span_id) or _time_problem(began, now)
    if problem:
        return Refused(problem, span.SerializeToString())
    started, events, attributes, status = _moment(began), span.events, span.attributes, span.status
    # By place, which takes half the time.
    return Observed(
        trace_id.hex(),
        span_id.hex(),
        span.parent_span_id.hex() or None,
        span.name,
        part.scope,
        started,
        started if ended <= began or _time_problem(ended, now) else _moment(ended),
        attributes_of(attributes),
        part.resource,
        tuple(Event(event.name, attributes_of(event.attributes)) for event in events[:_MAX_EVENTS]) if events else (),
        failed=status.code == Status.STATUS_CODE_ERROR,
        message=status.message,
        lost=bool(span.dropped_attributes_count or span.dropped_events_count)
        or len(events) > _MAX_EVENTS
        or len(attributes) > MAX_ATTRIBUTES,
        trace_state=span.trace_state,
    )


def _record(part: _Part[LogRecord], now: datetime) -> Observed | Refused | None:
    """The record; None for one that is of anything else than a model: an application's whole log may come along."""
    record = part.item
    if isinstance(record, Refused):
        return record
    attributes = attributes_of(record.attributes)
    name = record.event_name or str(attributes.get("event.name", ""))
    if not name.startswith(_OURS):
        return None
    at = record.time_unix_nano or record.observed_time_unix_nano
    problem = _id_problem(record.trace_id, record.span_id) or _time_problem(at, now)
    if problem:
        return Refused(problem, record.SerializeToString())
    body = plain(record.body)
    given = {**attributes, **body} if isinstance(body, dict) else {**attributes, "content": body}
    moment = _moment(at)
    return Observed(
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        parent_id=record.span_id.hex(),
        name=name,
        scope=part.scope,
        started_at=moment,
        ended_at=moment,
        attributes={},
        resource=part.resource,
        events=(Event(name, given),),
        is_log=True,
        lost=bool(record.dropped_attributes_count),
    )


def _id_problem(trace_id: bytes, span_id: bytes) -> str:
    if len(trace_id) != TRACE_ID or not any(trace_id):
        return "trace_id: is missing, or not of 16 bytes"
    if len(span_id) != SPAN_ID or not any(span_id):
        return "span_id: is missing, or not of 8 bytes"
    return ""


def _time_problem(nanoseconds: int, now: datetime) -> str:
    if not nanoseconds:
        return "start_time_unix_nano: is missing"
    if nanoseconds < _EARLIEST or nanoseconds > _latest(now):
        return "start_time_unix_nano: lies before the year 2000 or more than a day in the future"
    return ""


@functools.lru_cache(16)
def _latest(now: datetime) -> int:
    """The latest time, in nanoseconds, that is taken at a moment; asked for every span of a request."""
    return (now + CLOCK_TOLERANCE - EPOCH) // timedelta(microseconds=1) * 1000


def _moment(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(0, 0, nanoseconds // 1000)


_EARLIEST = (EARLIEST - EPOCH) // timedelta(microseconds=1) * 1000
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})
_MAX_EVENTS = 1_024
_OURS = "gen_ai."
_SHOWN = 200
