"""Receiving: from the body of a request of OTLP to durable spans, whichever transport brought it."""

from __future__ import annotations

from typing import NamedTuple

import anyio.to_thread
import msgspec
from google.protobuf.message import Message

from service.access.access import Holder
from service.http.context import ApiContext, durable_or_refused
from service.http.errors import ApiError
from service.http.routes.ingest import require_audit
from service.otlp.mapping import MappedSpans, MappingTask, ProcessAnswer, ProcessTask, Redaction, mapped
from streams.log.span_admission import labels_of
from streams.sources.otlp.kept_spans import SpanOwner
from streams.sources.otlp.signals import SIGNALS

TOPIC = "spans"
_answers = msgspec.msgpack.Decoder(ProcessAnswer)


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
    owner = SpanOwner(caller.name, caller.project or "", caller.agent)
    labels = labels_of(engine.policy)(owner.project)
    task = MappingTask(signal, body.is_json, body.is_packed, owner, labels, engine.now())
    spans = await _mapped_beside(task, body, services)
    if spans is None:
        spans = await anyio.to_thread.run_sync(mapped, task, body.content, engine.redactor)
    if spans.problem is not None:
        raise ApiError(spans.problem.status, spans.problem.code, spans.problem.message)
    with durable_or_refused():
        published = await engine.publish_admitted(TOPIC, spans.records, spans.messages)
    refused = [*spans.refused]
    refused += [f"{spans.records[place].span_id}: is known with other content" for place in published.conflicts]
    services.metrics.spans({"accepted": published.written, "known": published.known, "refused": len(refused)})
    return SIGNALS[signal].answer(refused)


async def _mapped_beside(task: MappingTask, body: Body, services: ApiContext) -> MappedSpans | None:
    """Return what a process beside the server makes of a large request; None if it is to be mapped here."""
    process = services.mapping
    if not process.is_large(body.content, is_packed=body.is_packed):
        return None
    # Told anew each time: another policy or key is in force with the next request.
    given = msgspec.msgpack.encode(ProcessTask(task, Redaction.of(services.engine.redactor)))
    told = await process.ask(given, body.content)
    if told is None:
        return None
    try:
        answer = _answers.decode(told)
    except msgspec.DecodeError:  # the installation was upgraded below a running server: the process is of the new version
        return None
    for line in answer.logged:
        line.write()
    return answer.spans
