"""Traces over HTTP in OpenTelemetry's protocol, as protobuf or JSON, compressed or not. A rejected span does not affect the others.

`receive` turns the body of a request into durable spans. OTLP over gRPC calls it as well (`service.http.otlp_grpc`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from google.protobuf.message import Message

from audit.redaction import Redactor
from audit.surrogates import json_bytes
from schemas.codec.single_object import decode
from schemas.errors import InputError
from schemas.records import Record, Span
from service.http.routes.ingest import require_audit
from service.setup.access import Holder
from service.text.links import LOGS, METRICS, TRACES
from service.web.authentication import Connection
from service.web.bounds import MAX_SPANS, MAX_UNPACKED, OTLP_LETTERS
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented
from service.web.middleware import GZIP, JSON, PROTOBUF, body_kind, header_values
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal
from streams.log.span_admission import ReaderOf, admit_spans, readers_of
from streams.sources.otlp.received import ReceivedItems, ReceivedSpan, RejectedItem
from streams.sources.otlp.request import SIGNALS, Rejection
from streams.sources.otlp.stored_spans import SpanOwner

TOPIC = "spans"
METRICS_SIGNAL = "metrics"
REFUSED_SPAN = "refused_span"
CONFLICTING_ID = "conflicting_id"
MAX_LETTERS = 50
"""Maximum number of dead letters per request; the answer counts all rejected spans."""
_GZIP = 16 + zlib.MAX_WBITS
"""The window size by which zlib recognises gzip."""


class Body(NamedTuple):
    """The body of a request and its encoding."""

    content: bytes
    is_json: bool = False
    is_compressed: bool = False


class Origin(NamedTuple):
    """The signal of a request, the owner of its spans, the maker of their reader, and the time of intake."""

    signal: str
    owner: SpanOwner
    readers: ReaderOf
    now: datetime


@dataclass
class MappedSpans:
    """The spans of a request: records with their encodings, and rejected spans with their dead letters."""

    records: list[Span] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    refused: list[RejectedItem] = field(default_factory=list)
    dead_letters: list[bytes] = field(default_factory=list)
    passed_over: int = 0
    """Number of log records that are not about a model."""


async def receive(signal: str, body: Body, caller: Holder, services: ApiContext) -> Message:
    """Ingest the spans or log records of a request, and return the protocol's answer once they are durable.

    Raises ApiError if the request cannot be read.
    """
    engine = services.engine
    require_audit(engine, caller)
    owner = SpanOwner(caller.name, caller.project or "", caller.agent)
    origin = Origin(signal, owner, readers_of(engine.policy), engine.now())
    # Mapping 500 spans takes 25 ms, during which other callers would wait.
    spans = await to_thread.run_sync(map_spans, origin, body, engine.redactor)
    with durable_or_refused():
        published = await engine.publish_admitted(TOPIC, spans.records, spans.messages)
        conflicts = [_describe_conflict(spans.records[index]) for index in published.conflicts]
        dead_letters = [*spans.dead_letters, *_build_dead_letters(origin, conflicts, engine.redactor, CONFLICTING_ID)]
        if dead_letters:
            await engine.publish(DEAD_LETTERS, [decode(message) for message in dead_letters])
    refused = [Rejection(item.reason, item.items) for item in (*spans.refused, *conflicts)]
    count = sum(rejection.items for rejection in refused)
    if signal == METRICS_SIGNAL:
        services.metrics.refused_metrics(count)
    else:
        outcomes = {"accepted": published.written, "known": published.known, "refused": count, "passed_over": spans.passed_over}
        services.metrics.spans(outcomes)
    return SIGNALS[signal].answer(refused)


def map_spans(origin: Origin, body: Body, redactor: Redactor) -> MappedSpans:
    """Return the spans of a request. Raises ApiError if the request cannot be read."""
    spans = MappedSpans()
    content = _decompress(body.content) if body.is_compressed else body.content
    try:
        items = _limit_items(SIGNALS[origin.signal].read(content, origin.now, is_json=body.is_json), spans)
        for outcome in admit_spans(items, lambda _: origin.owner, origin.readers, redactor, origin.now):
            if isinstance(outcome, RejectedItem):
                spans.refused.append(outcome)
            else:
                spans.records.append(outcome.record)
                spans.messages.append(outcome.message)
    except InputError as error:
        raise ApiError(400, "invalid", f"{error}. {error.hint}") from None
    spans.dead_letters = _build_dead_letters(origin, spans.refused, redactor, REFUSED_SPAN)
    return spans


def _limit_items(items: ReceivedItems, spans: MappedSpans) -> Iterator[ReceivedSpan | RejectedItem]:
    """Yield the items of a request without the ignored ones. Raises ApiError if there are too many."""
    count = 0
    for item in items:
        if item is None:
            spans.passed_over += 1
            continue
        if count == MAX_SPANS:
            raise ApiError(413, "too_large", f"more than {MAX_SPANS} spans in one request; export smaller batches")
        count += 1
        yield item


def _decompress(body: bytes) -> bytes:
    """Decompress a gzip body. Raises ApiError if the result is too large, or if the body is truncated or not gzip."""
    decompressor = zlib.decompressobj(_GZIP)
    try:
        content = decompressor.decompress(body, MAX_UNPACKED + 1)
    except zlib.error as error:
        raise ApiError(400, "not_gzip", f"the body is not gzip: {error}") from None
    if len(content) > MAX_UNPACKED:
        raise ApiError(413, "too_large", f"the body unpacks to more than {MAX_UNPACKED} bytes; export smaller batches")
    if not decompressor.eof or decompressor.unused_data:
        raise ApiError(400, "not_gzip", "the body is not one complete gzip stream")
    return content


def _describe_conflict(record: Record) -> RejectedItem:
    """Return the rejection of a span whose id is stored with other content. The stored span is kept."""
    return RejectedItem(f"{getattr(record, 'span_id', '')}: is stored with other content", json_bytes(record))


def _build_dead_letters(origin: Origin, refused: Iterable[RejectedItem], redactor: Redactor, reason: str) -> list[bytes]:
    """Return dead letters for rejected spans. Few exporters report rejections in the answer, so operators see them here."""
    admission = Admission(redactor, origin.now)
    records = EncodedRecords()
    source = RecordOrigin(f"{OTLP_LETTERS}:{origin.owner.connection}/{origin.signal}", 0)
    for item in islice((item for item in refused if item.body), MAX_LETTERS):
        admission.add_dead_letter(records, source, Refusal(OTLP_LETTERS, reason, item.reason), item.body)
    return records.messages.get(DEAD_LETTERS, [])


router = APIRouter(tags=["traces"])
_CONTENT: dict[str, Any] = {
    "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
    "application/json": {"schema": {"type": "object"}},
}
_BODY = {"requestBody": {"required": True, "description": "An OTLP export request; gzip is accepted.", "content": _CONTENT}}
_DESCRIPTION = "Accepted records are durable. `partialSuccess` has the number of rejected records and the reason."
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"description": _DESCRIPTION, "content": _CONTENT}}


@router.post(TRACES, responses=_ANSWER | documented(400, 408, 413, 415), response_class=Response, openapi_extra=_BODY)
async def take_traces(request: Request, caller: Connection, services: Services) -> Response:
    """Accept OpenTelemetry spans.

    They are durable once the request is answered, and become exchanges and events when their trace is complete.
    """
    return await _accept("traces", request, caller, services)


@router.post(LOGS, responses=_ANSWER | documented(400, 408, 413, 415), response_class=Response, openapi_extra=_BODY)
async def take_logs(request: Request, caller: Connection, services: Services) -> Response:
    """Accept OpenTelemetry log records with a model's input and output. Other records are ignored."""
    return await _accept("logs", request, caller, services)


@router.post(METRICS, responses=_ANSWER | documented(400, 408, 413, 415), response_class=Response, openapi_extra=_BODY)
async def refuse_metrics(request: Request, caller: Connection, services: Services) -> Response:
    """Reject OpenTelemetry metrics in the protocol's answer: SDKs send metrics by default, and would log an HTTP error each time."""
    return await _accept("metrics", request, caller, services)


async def _accept(signal: str, request: Request, caller: Holder, services: ApiContext) -> Response:
    # Imported late: protobuf takes time and memory to load, and many installations do not need it.
    from service.http.routes.traces import Body, receive  # noqa: PLC0415
    from streams.sources.otlp.request import encode_json  # noqa: PLC0415

    is_json = body_kind(request.scope) == JSON
    is_compressed = any(value.strip().lower() == GZIP for value in header_values(request.scope, b"content-encoding"))
    answer = await receive(signal, Body(await request.body(), is_json, is_compressed), caller, services)
    if is_json:
        return Response(encode_json(answer), media_type=JSON.decode())
    return Response(answer.SerializeToString(), media_type=PROTOBUF.decode())
