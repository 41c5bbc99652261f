"""Topics of an OpenTelemetry Collector: its messages become spans on our own topic, under that topic's keys.

1. A message is an OTLP request, as protobuf or as JSON, which begins with a brace. Its key and its partition are ignored.
2. The policy assigns a span to its project (`audit.policy`). Spans of projects whose audit is off are skipped.
3. An offset is committed when the broker has acknowledged all spans of the message. After a kill the same spans are produced again,
   with the same ids, and readers of their topic drop the duplicates. So the stage has no state, and two workers may read one message.
4. An unreadable message becomes a dead letter. So does each span that cannot be stored, up to `MAX_DEAD_LETTERS` per message; one more dead
   letter counts the rest. All other spans go on.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from audit.policy import Origin, Policy
from audit.redaction import Redactor
from schemas.errors import InputError
from streams.engine.embedded import stage_failure
from streams.kafka.decoding import time_of
from streams.kafka.partitions import KafkaStage
from streams.kafka.producing import Message, Sender, key_of, keyed
from streams.kafka.reading import Chunk, RawRecord
from streams.kafka.topics import COLLECTOR, SPANS
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal
from streams.log.span_admission import AdmittedSpan, admit_spans, readers_of
from streams.sources.otlp.conventions import SERVICE
from streams.sources.otlp.received import ReceivedSpan, RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.stored_spans import SpanOwner

NOT_OTLP, REFUSED_SPAN, TOO_MANY = "not_otlp", "refused_span", "too_many_spans"
GROUPS = {"traces": (b'"resourceSpans"', b'"resource_spans"'), "logs": (b'"resourceLogs"', b'"resource_logs"')}
"""The names of the one member of a request in JSON, by signal."""
FIELD = b"\x0a"
"""The first byte of a request in protobuf: the tag of its one field."""
CHUNK_MESSAGES = 20
"""Messages in a chunk; each may hold many spans."""
MAX_SPANS = 100_000
"""Spans of a message; a message with more becomes a dead letter."""
MAX_DEAD_LETTERS = 50
"""Spans of a message that get a dead letter of their own."""
MAX_SERVICES = 10_000
"""Sources and services whose owners are cached."""
log = logging.getLogger(__name__)


@dataclass
class CollectorOutput:
    """The spans and dead letters of some messages."""

    spans: list[Message] = field(default_factory=list)
    dead_letters: EncodedRecords = field(default_factory=EncodedRecords)


class RejectedMessage(NamedTuple):
    """A span or a whole message that cannot be stored: the reason, and its bytes."""

    refusal: Refusal
    body: bytes


class _Source(NamedTuple):
    """Source of a message: its topic, and the headers that routes refer to."""

    topic: str
    headers: tuple[tuple[str, str], ...]


class CollectorProcessor:
    """See the module; the `streams.kafka.partitions.PartitionWork` of every partition of a topic, whose `signal` is traces or logs."""

    def __init__(
        self, signal: str, *, policy: Policy, redactor: Redactor, now: Callable[[], datetime], producer: Sender
    ) -> None:
        self._read = SIGNALS[signal].read
        self._groups = GROUPS[signal]
        self._policy = policy
        self._readers = readers_of(policy)
        self._redactor = redactor
        self._now = now
        self._producer = producer
        self._header_names = frozenset(name for route in policy.collector.routes for name in route.headers)
        self._owner = functools.lru_cache(MAX_SERVICES)(self._find_owner)

    async def take(self, chunk: Chunk, done: Callable[[], None]) -> None:
        """Turn a chunk into spans; returns when all of them are durable."""
        output = await asyncio.to_thread(self._make_spans, chunk)
        await asyncio.gather(
            self._producer.send(SPANS, output.spans),
            self._producer.send(DEAD_LETTERS, keyed(output.dead_letters.messages.get(DEAD_LETTERS, ()))),
        )
        done()

    async def end(self, grace: float) -> None:
        """Return at once: all work is done when `take` returns."""

    def _make_spans(self, chunk: Chunk) -> CollectorOutput:
        output = CollectorOutput()
        for record in chunk.records:
            admission = Admission(self._redactor, time_of(record))
            origin = RecordOrigin(chunk.topic, record.offset, chunk.partition)
            for outcome in self._read_message(chunk, record):
                if isinstance(outcome, AdmittedSpan):
                    output.spans.append((key_of(outcome.record), outcome.message))
                else:
                    admission.add_dead_letter(output.dead_letters, origin, outcome.refusal, outcome.body)
        return output

    def _read_message(self, chunk: Chunk, record: RawRecord) -> Sequence[AdmittedSpan | RejectedMessage]:
        """Return the outcome of each span of a message, or of the whole message if it is unreadable."""
        body = record.value or b""
        try:
            spans = list(islice(self._admit_message(chunk.topic, record), MAX_SPANS + 1))
        except InputError as error:
            return [RejectedMessage(Refusal(COLLECTOR, NOT_OTLP, f"{error}. {error.hint}".strip()), body)]
        except MemoryError:
            raise
        except Exception as error:
            log.exception(
                "the message at offset %d of %s, partition %d, becomes a dead letter",
                record.offset,
                chunk.topic,
                chunk.partition,
            )
            return [RejectedMessage(stage_failure(COLLECTOR, error), body)]
        if len(spans) > MAX_SPANS:
            reason = f"more than {MAX_SPANS} spans in one message; let the Collector send smaller batches"
            return [RejectedMessage(Refusal(COLLECTOR, TOO_MANY, reason), body)]
        admitted_spans = [span for span in spans if isinstance(span, AdmittedSpan)]
        return [*admitted_spans, *_refusals([span for span in spans if isinstance(span, RejectedItem)])]

    def _admit_message(self, topic: str, record: RawRecord) -> Iterable[AdmittedSpan | RejectedItem]:
        body = record.value or b""
        source = _Source(topic, self._routing_headers(record))
        is_json = body.startswith(b"{")
        # Both decoders skip unknown fields, so arbitrary bytes may well decode to an empty request.
        has_request = any(name in body for name in self._groups) if is_json else body.startswith(FIELD)
        if not has_request:
            raise InputError("the message is not an OTLP request")
        now = self._now()
        observed_spans = self._read(body, now, is_json=is_json)
        return admit_spans(
            observed_spans, lambda observed: self._owner(source, _service(observed)), self._readers, self._redactor, now
        )

    def _routing_headers(self, record: RawRecord) -> tuple[tuple[str, str], ...]:
        if not self._header_names:
            return ()
        return tuple((name, value.decode("utf-8", "replace")) for name, value in record.headers if name in self._header_names)

    def _find_owner(self, source: _Source, service: str) -> SpanOwner | None:
        """Find the owner of a service's spans; None if the policy switches the project's audit off."""
        filing = self._policy.collector.filing(Origin(source.topic, dict(source.headers), service))
        if not self._policy.for_project(filing.project).settings.enabled:
            return None
        return SpanOwner(*filing)


def collector_stages(
    topics: Mapping[str, str], *, policy: Policy, redactor: Redactor, now: Callable[[], datetime], producer: Sender
) -> list[KafkaStage]:
    """Return a stage for each topic; `topics` are their names on the cluster, with the signal of each."""
    processors = {
        topic: CollectorProcessor(signal, policy=policy, redactor=redactor, now=now, producer=producer)
        for topic, signal in topics.items()
    }
    return [
        KafkaStage(topic, lambda _, processor=processor: processor, records_at_once=CHUNK_MESSAGES, is_foreign=True)  # type: ignore[misc]
        for topic, processor in processors.items()
    ]


def _service(observed: ReceivedSpan) -> str:
    service = observed.resource.get(SERVICE)
    return service if isinstance(service, str) else ""


def _refusals(refused: Sequence[RejectedItem]) -> Iterator[RejectedMessage]:
    for span in refused[:MAX_DEAD_LETTERS]:
        yield RejectedMessage(Refusal(COLLECTOR, REFUSED_SPAN, span.reason), span.body)
    if (more := len(refused) - MAX_DEAD_LETTERS) > 0:
        yield RejectedMessage(Refusal(COLLECTOR, REFUSED_SPAN, f"{more} more spans of this message cannot be taken"), b"")
