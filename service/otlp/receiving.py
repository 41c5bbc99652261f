"""Receiving: from the body of a request of OTLP to durable spans, whichever transport brought it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import anyio.to_thread
from google.protobuf.message import Message

from schemas.errors import InputError
from service.access.access import Holder
from service.http.bounds import MAX_SPANS, MAX_UNPACKED
from service.http.context import ApiContext, durable_or_refused
from service.http.errors import ApiError
from service.http.routes.ingest import require_audit
from streams.engine.record_intake import RecordIntake
from streams.log.span_admission import AdmittedSpan, admitted
from streams.sources.otlp.kept_spans import SpanOwner
from streams.sources.otlp.request import Found, Observed, Refused
from streams.sources.otlp.signals import SIGNALS, Signal

TOPIC = "spans"
_WINDOW = 16 + zlib.MAX_WBITS
"""zlib's word for gzip."""
_PIECE = 1024 * 1024


class Body(NamedTuple):
    """The body of a request, and how it is written."""

    content: bytes
    is_json: bool = False
    is_packed: bool = False


async def receive(signal: str, body: Body, caller: Holder, services: ApiContext) -> Message:
    """Take the spans or records of a request; return the answer that the protocol asks for, once they are durable.

    ApiError where the whole of the request cannot be read.
    """
    engine = services.engine
    require_audit(engine, caller)
    told = SIGNALS[signal]
    spans, refused = await anyio.to_thread.run_sync(_spans, told, body, caller, engine)
    with durable_or_refused():
        published = await engine.publish_admitted(TOPIC, [span.record for span in spans], [span.message for span in spans])
    refused += [f"{spans[place].record.span_id}: is known with other content" for place in published.conflicts]
    services.metrics.spans({"accepted": published.written, "known": published.known, "refused": len(refused)})
    return told.answer(refused)


def _spans(signal: Signal, body: Body, caller: Holder, engine: RecordIntake) -> tuple[list[AdmittedSpan], list[str]]:
    """Return the spans of a request, and why others could not be taken."""
    now, owner = engine.now(), SpanOwner(caller.name, caller.project or "", caller.agent)
    spans, refused = list[AdmittedSpan](), list[str]()
    try:
        content = unpacked(body.content) if body.is_packed else body.content
        found = _at_most(signal.read(content, now, is_json=body.is_json))
        for one in admitted(found, lambda _: owner, engine.policy, engine.redactor, now):
            if isinstance(one, Refused):
                refused.append(one.reason)
            else:
                spans.append(one)
    except InputError as error:
        raise ApiError(400, "invalid", f"{error}. {error.hint}") from None
    return spans, refused


def _at_most(found: Found) -> Iterator[Observed | Refused]:
    for count, one in enumerate(found):
        if count == MAX_SPANS:
            raise ApiError(413, "too_large", f"more than {MAX_SPANS} spans in one request; export smaller batches")
        yield one


def unpacked(body: bytes) -> bytes:
    """Return what a gzip body unpacks to; ApiError if that is too much (413), or the body is not gzip or not whole (400)."""
    unpacker = zlib.decompressobj(_WINDOW)
    try:
        content = unpacker.decompress(body, MAX_UNPACKED + 1)
    except zlib.error as error:
        raise ApiError(400, "not_gzip", f"the body is not gzip: {error}") from None
    if len(content) > MAX_UNPACKED:
        raise ApiError(413, "too_large", f"the body unpacks to more than {MAX_UNPACKED} bytes; export smaller batches")
    if not unpacker.eof or unpacker.unused_data:
        raise ApiError(400, "not_gzip", "the body is not one whole gzip stream")
    return content
