"""Captures of real instrumentors as requests, as spans, and as the exchanges and events that come out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from otlp.capturing.readable import to_protobuf

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.records import Span
from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.stored_spans import SpanOwner, build_span_record
from streams.sources.otlp.trace_records import Assembly, Decision, assemble

CAPTURES = Path(__file__).parents[1] / "otlp" / "captures"
NOW = datetime(2027, 11, 26, 12, 0, tzinfo=UTC)
"""When the spans come: later than all captures, as what lies in the future is refused."""
OWNER = SpanOwner("north", "ops")
REDACTOR = Redactor(RedactionSettings())
LABELS = {"agent_version": ("gen_ai.agent.version", "service.version")}
Json = dict[str, Any]


class Captured(NamedTuple):
    """A request of a capture: its signal, and its body as OTLP JSON."""

    signal: str
    request: Json

    @property
    def as_json(self) -> bytes:
        """The request as JSON."""
        return json.dumps(self.request).encode()

    @property
    def as_protobuf(self) -> bytes:
        """The request as protobuf."""
        return bytes(to_protobuf(self.signal, self.request).SerializeToString())


def dialects() -> list[str]:
    """Return the names of the captures."""
    return sorted(file.stem for file in CAPTURES.glob("*.jsonl") if file.stat().st_size)


def requests_of(dialect: str) -> list[Captured]:
    """Return the requests of a capture in order of arrival."""
    lines = (CAPTURES / f"{dialect}.jsonl").read_bytes().splitlines()
    return [Captured(line["signal"], line["request"]) for line in map(json.loads, lines)]


def records_of(requests: Iterable[Captured]) -> list[Span]:
    """Return the records of the spans of some requests; no span may be refused."""
    records = []
    for captured in requests:
        for observed in SIGNALS[captured.signal].read(captured.as_json, NOW, is_json=True):
            assert not isinstance(observed, RejectedItem), observed
            if observed is not None:
                records.append(build_span_record(observed, OWNER, REDACTOR, NOW, LABELS))
    return records


def assembled(records: Iterable[Span]) -> list[Assembly]:
    """Assemble the traces of some spans, in the order of their first spans; duplicates are dropped."""
    once = {(record.trace_id, record.span_id): record for record in records}
    traces: dict[str, list[Span]] = {}
    for record in once.values():
        traces.setdefault(record.trace_id, []).append(record)
    assembled_traces = [assemble(spans, Decision("settled", NOW)) for spans in traces.values()]
    return sorted(assembled_traces, key=lambda one: (one.decision.started_at, one.decision.trace_id))
