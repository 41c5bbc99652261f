"""Receiving: from the body of a request of OTLP to durable spans, whichever transport brought it."""

from __future__ import annotations

from typing import NamedTuple

import anyio.to_thread
import msgspec
from google.protobuf.message import Message

from audit.surrogates import json_bytes
from schemas.codec.single_object import decode
from schemas.records import Record
from service.access.access import Holder
from service.http.context import ApiContext, durable_or_refused
from service.http.errors import ApiError
from service.http.routes.ingest import require_audit
from service.otlp.mapping import (
    CONFLICTING_ID,
    MappedSpans,
    MappingTask,
    ProcessAnswer,
    ProcessTask,
    Redaction,
    mapped,
    set_aside,
)
from streams.log.admission import DEAD_LETTERS
from streams.log.span_admission import labels_of
from streams.sources.otlp.kept_spans import SpanOwner
from streams.sources.otlp.request import Refused
from streams.sources.otlp.signals import SIGNALS, Rejection

TOPIC, METRICS = "spans", "metrics"
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
        conflicts = [_conflict(decode(spans.messages[index])) for index in published.conflicts]
        letters = [*spans.letters, *set_aside(task, conflicts, engine.redactor, CONFLICTING_ID)]
        if letters:
            await engine.publish(DEAD_LETTERS, [decode(letter) for letter in letters])
    refused = [*spans.refused, *(Rejection(conflict.reason) for conflict in conflicts)]
    count = sum(rejection.items for rejection in refused)
    if signal == METRICS:
        services.metrics.refused_metrics(count)
    else:
        outcomes = {"accepted": published.written, "known": published.known, "refused": count, "passed_over": spans.passed_over}
        services.metrics.spans(outcomes)
    return SIGNALS[signal].answer(refused)


def _conflict(record: Record) -> Refused:
    """The refusal of a span whose id the log has with other content, which stays."""
    return Refused(f"{getattr(record, 'span_id', '')}: is known with other content", json_bytes(record))


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
