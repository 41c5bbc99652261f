"""OTLP requests and responses: reads the spans and log records of protobuf or JSON requests, with their resource attributes.

Traces and logs are read, metrics are rejected. Each span or record is checked separately.

In OTLP's JSON, ids are hexadecimal and 64-bit integers are strings. Unknown fields are ignored, as the protocol requires. Protobuf's field names
(`resource_spans`) and Base64 ids are accepted as well, because its JSON printers write them. An object that has other members instead of the
expected lists is rejected with a message, because its content would be lost.

Protobuf rejects a whole message for one text that is not UTF-8, and SDKs that cut texts can split a character. Such a request is parsed again with
message classes whose text fields accept any bytes, and each text is repaired. Valid requests never take this path.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from audit.surrogates import decode_leniently, json_bytes, repair_text, repair_value
from schemas.bounds import CLOCK_TOLERANCE, EARLIEST
from schemas.errors import InputError
from streams.sources.lines import decode_json, json_type
from streams.sources.otlp.attributes import MAX_ATTRIBUTES, read_attributes, to_python
from streams.sources.otlp.conventions import SESSION

MAX_EXPLAINED_REASONS = 3
"""Maximum number of reasons that a response explains; all are counted."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
METRICS_REJECTED = "metrics are not stored, only traces and logs; set OTEL_METRICS_EXPORTER=none to stop sending them"
SEND_HINT = "Send an ExportTraceServiceRequest or ExportLogsServiceRequest, as an OTLP exporter does."
Json = dict[str, Any]
Item = TypeVar("Item", Span, LogRecord)
_SCOPE = ("scope", "instrumentation_library")
_EARLIEST = (EARLIEST - EPOCH) // timedelta(microseconds=1) * 1000
_MAX_EVENTS = 1_024
_GEN_AI_PREFIX = "gen_ai."
_MAX_SHOWN = 200
Strict = TypeVar("Strict", bound=Message)


class RequestReader(Protocol):
    """A function that reads the requests of one signal."""

    def __call__(self, body: bytes, now: datetime, *, is_json: bool) -> ReadItems:
        """Return the spans or records of a request. Raises InputError if the whole request cannot be read."""
        ...


class Rejection(NamedTuple):
    """The reason why `items` were rejected. Without items, it is only a warning to the sender."""

    reason: str
    items: int = 1


class Signal(NamedTuple):
    """A signal of OTLP. `read` reads a request, `build_answer` builds the response, given the number of rejected items and a message."""

    read: RequestReader
    build_answer: Callable[[int, str], Message]

    def answer(self, rejections: Sequence[Rejection]) -> Message:
        """Return the response to a request with these rejections: their number, and the first reasons with their counts."""
        counts: dict[str, int] = {}
        for rejection in rejections:
            counts[rejection.reason] = counts.get(rejection.reason, 0) + rejection.items
        reasons = [f"{reason} ({count} of them)" if count > 1 else reason for reason, count in counts.items()]
        message = "; ".join(reasons[:MAX_EXPLAINED_REASONS])
        if len(reasons) > MAX_EXPLAINED_REASONS:
            message += f"; and {len(reasons) - MAX_EXPLAINED_REASONS} more reasons"
        return self.build_answer(sum(counts.values()), message)


def encode_json(answer: Message) -> bytes:
    """Return a response in OTLP's JSON."""
    text: str = MessageToJson(answer, indent=None)
    return text.encode()


class Event(NamedTuple):
    """An event of a span, or a log record beside it."""

    name: str
    attributes: Mapping[str, Any]


class ReceivedSpan(NamedTuple):
    """A span, or a log record that belongs to a span, before conventions are applied.

    Ids are hexadecimal. The `parent_id` of a log record is its span. `failed` is True if the status is an error, which `message` describes.
    `lost` is True if the SDK dropped attributes or events. `is_server` is True if the span has the kind SERVER.
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
    scope_version: str = ""
    is_server: bool = False


class RejectedItem(NamedTuple):
    """A span or record that cannot be read, with the reason and its content; or any other content that replaces `items` items."""

    reason: str
    body: bytes = b""
    items: int = 1


def read_traces(body: bytes, now: datetime, *, is_json: bool) -> ReadItems:
    """Return the spans of a request. Raises InputError if the whole request cannot be read."""
    return _convert_items(_read_items(body, _TRACES, is_json=is_json), _build_span, now)


def _convert_items(
    parts: Iterator[_RequestItem[Item]],
    read: Callable[[_RequestItem[Item], datetime], ReceivedSpan | RejectedItem | None],
    now: datetime,
) -> ReadItems:
    for part in parts:
        received = part.item if isinstance(part.item, RejectedItem) else read(part, now)
        if part.is_cut and isinstance(received, ReceivedSpan) and (name := _find_repaired_session(received)):
            yield RejectedItem(f"{name}: is not UTF-8; repaired, it could be another session", json_bytes(received._asdict()))
        else:
            yield received


class _RequestItem(NamedTuple, Generic[Item]):
    resource: Mapping[str, Any]
    scope: _Scope
    item: Item | RejectedItem
    is_cut: bool = False
    """True if texts of the item or its resource were repaired, because they were not valid Unicode."""


class _Scope(NamedTuple):
    name: str = ""
    version: str = ""


def _find_repaired_session(received: ReceivedSpan) -> str:
    """Return the name of a session attribute that was repaired; an empty text if there is none. Repairing could item_class two ids equal."""
    for values in (received.attributes, received.resource, *(event.attributes for event in received.events)):
        for name in SESSION:
            if "\ufffd" in str(values.get(name, "")):
                return name
    return ""


def _read_items(body: bytes, request_format: _RequestFormat, *, is_json: bool) -> Iterator[_RequestItem[Any]]:
    return _read_json_items(body, request_format) if is_json else _read_protobuf_items(body, request_format)


class _RequestFormat(NamedTuple):
    """The format of a signal's requests: the request's message class, its nested lists, and the message class of an item."""

    request: type[Message]
    groups: _ListField
    scopes: _ListField
    items: _ListField
    item_class: type[Any]


class _ListField(NamedTuple):
    """A list in a request: its protobuf field, its JSON names (the current ones first), and the other members allowed beside it."""

    field: str
    names: tuple[str, ...]
    other_members: frozenset[str]


def _read_json_items(body: bytes, request_format: _RequestFormat) -> Iterator[_RequestItem[Any]]:
    request, is_whole = _decode_request(body)
    if not isinstance(request, dict):
        raise InputError(f"the body is {json_type(request)}, not an object", hint=SEND_HINT)
    for name in _SIGNAL_BY_LIST.keys() & request.keys() - set(request_format.groups.names):
        yield _RequestItem({}, _Scope(), _reject_other_signal(name, request[name]))
    for group in _list_members(request, request_format.groups):
        resource, rejected, is_cut = _read_json_resource(group, is_whole=is_whole)
        yield from (_RequestItem(resource, _Scope(), rejected_item) for rejected_item in rejected)
        for scoped in _list_members(group, request_format.scopes):
            scope = _read_json_scope(scoped)
            for item in _list_members(scoped, request_format.items):
                repaired = item if is_whole else _repair_json(item)
                yield _RequestItem(resource, scope, _parse_json_item(repaired, request_format), is_cut or repaired != item)


def _decode_request(body: bytes) -> tuple[Any, bool]:
    """Return the value of a body, and whether all its texts are valid Unicode. Other texts hold lone surrogates."""
    try:
        return msgspec.json.decode(body), True
    except UnicodeDecodeError:
        body = decode_leniently(body).encode("utf-8", "backslashreplace")
    except (msgspec.DecodeError, RecursionError):
        pass  # parsed again below, with lone surrogates allowed
    try:
        return decode_json(body), False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}", hint=SEND_HINT) from error


def _reject_other_signal(name: str, groups: Any) -> RejectedItem:
    """Reject the items of another signal's request."""
    request_format, message = _SIGNAL_BY_LIST[name]
    scopes = (
        scope
        for group in _list_members({name: groups}, request_format.groups)
        for scope in _list_members(group, request_format.scopes)
    )
    return RejectedItem(
        f"{name}: {message}", json_bytes(groups), sum(1 for scope in scopes for _ in _list_members(scope, request_format.items))
    )


def _list_members(parent: Any, list_field: _ListField) -> Iterator[Any]:
    """Yield the items of a list under any of its names, and a RejectedItem for any other value in its place."""
    if isinstance(parent, RejectedItem):
        yield parent
        return
    if not isinstance(parent, dict):
        yield RejectedItem(f"{list_field.names[0]}: {json_type(parent)} stands around it, not an object", json_bytes(parent))
        return
    for name in list_field.names:
        value = parent.get(name)
        if isinstance(value, list):
            yield from value
        elif value is not None:
            yield RejectedItem(f"{name}: is {json_type(value)}, not an array", json_bytes(value))
    others = [name for name in parent if name not in list_field.other_members and name not in _SIGNAL_BY_LIST]
    if others and parent.keys().isdisjoint(list_field.names):
        message = f"{list_field.names[0]}: is missing; these members are not read: {', '.join(others)[:_MAX_SHOWN]}"
        yield RejectedItem(message, json_bytes(parent))


def _read_json_resource(group: Any, *, is_whole: bool) -> tuple[Mapping[str, Any], list[RejectedItem], bool]:
    """Return the attributes of a group's resource, the rejected ones, and whether any attribute was repaired."""
    resource = group.get("resource") if isinstance(group, dict) else None
    pairs = resource.get("attributes") if isinstance(resource, dict) else None
    listed = pairs if isinstance(pairs, list) else []
    repaired = listed if is_whole else [_repair_json(attribute) for attribute in listed]
    attributes: list[KeyValue] = []
    rejected: list[RejectedItem] = []
    for attribute in repaired[:MAX_ATTRIBUTES]:
        try:
            attributes.append(ParseDict(attribute, KeyValue(), ignore_unknown_fields=True))
        except (ParseError, AttributeError, TypeError, RecursionError) as error:
            # No span is lost, so this counts as no item.
            rejected.append(RejectedItem(f"resource.attributes: {str(error)[:_MAX_SHOWN]}", json_bytes(attribute), 0))
    return read_attributes(attributes), rejected, repaired != listed


def _repair_json(value: Any) -> Any:
    try:
        return repair_value(value)
    except RecursionError:
        return RejectedItem("it nests too deep")


def _read_json_scope(scoped: Any) -> _Scope:
    for field in _list_spellings(*_SCOPE) if isinstance(scoped, dict) else ():
        scope = scoped.get(field)
        if isinstance(scope, dict):
            texts = [scope.get(name) for name in ("name", "version")]
            return _Scope(*(repair_text(text) if isinstance(text, str) else "" for text in texts))
    return _Scope()


def _list_spellings(*fields: str) -> dict[str, None]:
    """Return the JSON name and the protobuf name of each field, in order. Both are legal."""
    return dict.fromkeys(name for field in fields for name in (_to_camel_case(field), field))


def _to_camel_case(field: str) -> str:
    first_word, *other_words = field.split("_")
    return first_word + "".join(map(str.capitalize, other_words))


def _parse_json_item(item: Any, request_format: _RequestFormat) -> Any:
    if isinstance(item, RejectedItem):
        return item
    name = request_format.items.names[0]
    if not isinstance(item, dict):
        return RejectedItem(f"{name}: is {json_type(item)}, not an object", json_bytes(item))
    try:
        return ParseDict(_convert_ids(item), request_format.item_class(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        return RejectedItem(f"{name}: {str(error)[:_MAX_SHOWN]}", json_bytes(item))


def _convert_ids(item: Json) -> Json:
    """Return a span with ids in protobuf's JSON encoding, and without links, which are not read."""
    fields = {name: value for name, value in item.items() if name != "links"}
    for name in _IDS & fields.keys():
        try:
            fields[name] = _to_base64(fields[name] or "")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: is not hexadecimal digits") from error
    return fields


def _to_base64(text: Any) -> str:
    """Return an id in Base64. An id that is already Base64 ends in `=`, which is not a hexadecimal digit."""
    return text if isinstance(text, str) and text.endswith("=") else base64.b64encode(binascii.unhexlify(text)).decode()


def _read_protobuf_items(body: bytes, request_format: _RequestFormat) -> Iterator[_RequestItem[Any]]:
    try:
        request: Any = request_format.request.FromString(body)
    except DecodeError:
        yield from _read_repaired_items(body, request_format)
        return
    for group in getattr(request, request_format.groups.field):
        resource = read_attributes(group.resource.attributes)
        for scoped in getattr(group, request_format.scopes.field):
            scope = _Scope(scoped.scope.name, scoped.scope.version)
            for item in getattr(scoped, request_format.items.field):
                yield _RequestItem(resource, scope, item)


def _read_repaired_items(body: bytes, request_format: _RequestFormat) -> Iterator[_RequestItem[Any]]:
    """Yield the items of a request that protobuf rejected, perhaps only because a text is not UTF-8."""
    try:
        request = read_lenient(request_format.request, body)
    except DecodeError as error:
        raise InputError(
            f"the body is not a protobuf message of OTLP's {request_format.request.DESCRIPTOR.name}", hint=SEND_HINT
        ) from error
    for group in getattr(request, request_format.groups.field):
        resource = repair(group.resource, Resource)
        attributes = read_attributes(resource.message.attributes)
        for scoped in getattr(group, request_format.scopes.field):
            repaired = repair(scoped.scope, InstrumentationScope).message
            scope = _Scope(repaired.name, repaired.version)
            for item in getattr(scoped, request_format.items.field):
                _drop_unread_fields(item)
                part = repair(item, request_format.item_class)
                yield _RequestItem(attributes, scope, part.message, resource.is_cut or part.is_cut)


def _drop_unread_fields(item: Any) -> None:
    """Drop the fields that are not read, so that they need no repair."""
    for name, limit in (("attributes", MAX_ATTRIBUTES + 1), ("events", _MAX_EVENTS + 1), ("links", 0)):
        if name in item.DESCRIPTOR.fields_by_name:
            del getattr(item, name)[limit:]


def _build_span(part: _RequestItem[Span], now: datetime) -> ReceivedSpan | RejectedItem:
    span = part.item
    if isinstance(span, RejectedItem):
        return span
    trace_id, span_id, began, ended = span.trace_id, span.span_id, span.start_time_unix_nano, span.end_time_unix_nano
    problem = _id_problem(trace_id, span_id) or _time_problem(began, now)
    if problem:
        return RejectedItem(problem, _encode_rejected(span, span.name))
    started, events, attributes, status = _to_time(began), span.events, span.attributes, span.status
    # Positional arguments take half the time of keyword arguments.
    return ReceivedSpan(
        trace_id.hex(),
        span_id.hex(),
        _parent_id(span.parent_span_id),
        span.name,
        part.scope.name,
        started,
        started if ended <= began or _time_problem(ended, now) else _to_time(ended),
        read_attributes(attributes),
        part.resource,
        tuple(Event(event.name, read_attributes(event.attributes)) for event in events[:_MAX_EVENTS]) if events else (),
        failed=status.code == Status.STATUS_CODE_ERROR,
        message=status.message,
        lost=part.is_cut
        or bool(span.dropped_attributes_count or span.dropped_events_count)
        or len(events) > _MAX_EVENTS
        or len(attributes) > MAX_ATTRIBUTES,
        trace_state=span.trace_state,
        scope_version=part.scope.version,
        is_server=span.kind == Span.SPAN_KIND_SERVER,
    )


def _id_problem(trace_id: bytes, span_id: bytes) -> str:
    if len(trace_id) != TRACE_ID_BYTES or not any(trace_id):
        return f"trace_id: is missing, or does not have {TRACE_ID_BYTES} bytes"
    if len(span_id) != SPAN_ID_BYTES or not any(span_id):
        return f"span_id: is missing, or does not have {SPAN_ID_BYTES} bytes"
    return ""


def _time_problem(nanoseconds: int, now: datetime) -> str:
    if not nanoseconds:
        return "start_time_unix_nano: is missing"
    if nanoseconds < _EARLIEST or nanoseconds > _latest_time(now):
        return "start_time_unix_nano: is before the year 2000 or more than a day in the future"
    return ""


@functools.lru_cache(16)
def _latest_time(now: datetime) -> int:
    """Return the latest accepted time in nanoseconds. Cached because it is the same for every span of a request."""
    return (now + CLOCK_TOLERANCE - EPOCH) // timedelta(microseconds=1) * 1000


def _encode_rejected(item: Any, name: str) -> bytes:
    """Return a span or record as JSON with attributes by name, because redaction finds some secrets by the name."""
    ids = {"trace_id": item.trace_id.hex(), "span_id": item.span_id.hex(), "name": name}
    events = [
        {"name": event.name, "attributes": read_attributes(event.attributes)}
        for event in getattr(item, "events", ())[:_MAX_EVENTS]
    ]
    return json_bytes({**ids, "attributes": read_attributes(item.attributes), "events": events})


def _to_time(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(0, 0, nanoseconds // 1000)


def _parent_id(span_id: bytes) -> str | None:
    """Return the id of a span's parent; None if it is all zeros."""
    return span_id.hex() if any(span_id) else None


def read_logs(body: bytes, now: datetime, *, is_json: bool) -> ReadItems:
    """Return the records of a request for logs. Raises InputError if the whole request cannot be read."""
    return _convert_items(_read_items(body, _LOGS, is_json=is_json), _build_log, now)


def _build_log(part: _RequestItem[LogRecord], now: datetime) -> ReceivedSpan | RejectedItem | None:
    """Return the record; None if it is not about a model, because a request may hold the whole log of an application."""
    record = part.item
    if isinstance(record, RejectedItem):
        return record
    attributes = read_attributes(record.attributes)
    name = record.event_name or str(attributes.get("event.name", ""))
    if not name.startswith(_GEN_AI_PREFIX):
        return None
    at = record.time_unix_nano or record.observed_time_unix_nano
    problem = _id_problem(record.trace_id, record.span_id) or _time_problem(at, now)
    if problem:
        return RejectedItem(problem, _encode_rejected(record, name))
    body = to_python(record.body)
    values = {**attributes, **body} if isinstance(body, dict) else {**attributes, "content": body}
    moment = _to_time(at)
    return ReceivedSpan(
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        parent_id=record.span_id.hex(),
        name=name,
        scope=part.scope.name,
        started_at=moment,
        ended_at=moment,
        attributes={},
        resource=part.resource,
        events=(Event(name, values),),
        is_log=True,
        lost=part.is_cut or bool(record.dropped_attributes_count),
    )


def read_metrics(body: bytes, now: datetime, *, is_json: bool) -> ReadItems:
    """Reject all metrics of a request. Raises InputError if the whole request cannot be read."""
    del now
    yield RejectedItem(METRICS_REJECTED, items=0)  # reported even if there are no metrics, so that a first test shows it
    for part in _read_items(body, _METRICS, is_json=is_json):
        yield part.item if isinstance(part.item, RejectedItem) else RejectedItem(METRICS_REJECTED)


class RepairedMessage(NamedTuple):
    """A message with valid UTF-8. `is_cut` is True if some texts were repaired and lost characters."""

    message: Any
    is_cut: bool


def read_lenient(request: type[Message], body: bytes) -> Any:
    """Return the request with its texts as bytes. Raises DecodeError if it is not such a message."""
    lenient: Any = _lenient_class
    return lenient(request).FromString(body)


@functools.cache
def _lenient_class(strict: Any) -> type[Message]:
    """Return a copy of a message class in which text fields hold bytes."""
    pool = DescriptorPool()
    for file in _list_imports(strict.DESCRIPTOR.file):
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        for message in copy.message_type:
            _make_lenient(message)
        pool.Add(copy)
    return GetMessageClass(pool.FindMessageTypeByName(strict.DESCRIPTOR.full_name))


def _list_imports(file: Any) -> Iterator[Any]:
    """Return the file preceded by its imports, each once."""
    ordered: dict[str, Any] = {}

    def visit(imported: Any) -> None:
        for dependency in imported.dependencies:
            visit(dependency)
        ordered.setdefault(imported.name, imported)

    visit(file)
    return iter(ordered.values())


def _make_lenient(message: DescriptorProto) -> None:
    for field in message.field:
        if field.type == FieldDescriptorProto.TYPE_STRING:
            field.type = FieldDescriptorProto.TYPE_BYTES
    for nested in message.nested_type:
        _make_lenient(nested)


def repair(message: Message, strict: type[Strict]) -> RepairedMessage:
    """Return a part of a lenient request as a strict message. Texts that are not UTF-8 are repaired."""
    try:
        return RepairedMessage(strict.FromString(message.SerializeToString()), is_cut=False)
    except DecodeError:
        _repair_texts(message, strict.DESCRIPTOR)
        return RepairedMessage(strict.FromString(message.SerializeToString()), is_cut=True)


def _repair_texts(message: Message, strict: Any) -> None:
    # Recursion is safe, because protobuf limits the depth of messages.
    for field, value in message.ListFields():
        intended = strict.fields_by_number[field.number]
        if intended.message_type is not None:
            for child in value if isinstance(value, MutableSequence) else (value,):
                _repair_texts(child, intended.message_type)
        elif intended.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _repair(value))
            else:
                value[:] = map(_repair, value)


def _repair(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return repair_text(decode_leniently(text)).encode()
    return text


def _answer_traces(count: int, message: str) -> Message:
    partial = ExportTracePartialSuccess(rejected_spans=count, error_message=message) if message else None
    return ExportTraceServiceResponse(partial_success=partial)


def _answer_logs(count: int, message: str) -> Message:
    partial = ExportLogsPartialSuccess(rejected_log_records=count, error_message=message) if message else None
    return ExportLogsServiceResponse(partial_success=partial)


def _answer_metrics(count: int, message: str) -> Message:
    partial = ExportMetricsPartialSuccess(rejected_data_points=count, error_message=message) if message else None
    return ExportMetricsServiceResponse(partial_success=partial)


def _build_format(signal: str, request: type[Message], item_class: type[Any], items: str, *older_items: str) -> _RequestFormat:
    """Return the format of a signal's requests, with the current names and those before OTLP 0.15."""
    groups = _build_list_field(f"resource_{signal}")
    scopes = _build_list_field(f"scope_{signal}", f"instrumentation_library_{signal}", other_members=("resource",))
    return _RequestFormat(request, groups, scopes, _build_list_field(items, *older_items, other_members=_SCOPE), item_class)


def _build_list_field(field: str, *older: str, other_members: Sequence[str] = ()) -> _ListField:
    return _ListField(field, tuple(_list_spellings(field, *older)), frozenset(_list_spellings("schema_url", *other_members)))


SIGNALS = {
    "traces": Signal(read_traces, _answer_traces),
    "logs": Signal(read_logs, _answer_logs),
    "metrics": Signal(read_metrics, _answer_metrics),
}
"""The signals, by name."""
ReadItems = Iterator[ReceivedSpan | RejectedItem | None]
"""The items of a request, in order; None for a log record that is not about a model."""
_TRACES = _build_format("spans", ExportTraceServiceRequest, Span, "spans")
_LOGS = _build_format("logs", ExportLogsServiceRequest, LogRecord, "log_records", "logs")
_METRICS = _build_format("metrics", ExportMetricsServiceRequest, Metric, "metrics")
_SIGNAL_BY_LIST = {
    name: (request_format, message)
    for request_format, message in (
        (_TRACES, "spans belong in a trace request: /v1/traces"),
        (_LOGS, "log records belong in a log request: /v1/logs"),
        (_METRICS, METRICS_REJECTED),
    )
    for name in request_format.groups.names
}
"""The request format of the signal with this list, and a message that tells where its requests belong."""
_IDS = frozenset(_list_spellings("trace_id", "span_id", "parent_span_id"))
