"""The signals of OTLP: how a request of each is read and what answers it. Traces and logs are taken; of metrics none are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from streams.sources.otlp.request import ReadItems, read_logs, read_metrics, read_traces

EXPLAINED = 3
"""Reasons that an answer names; it counts all."""


class Read(Protocol):
    """Reads a request."""

    def __call__(self, body: bytes, now: datetime, *, is_json: bool) -> ReadItems:
        """The spans or records of a request; InputError when the whole of it cannot be read."""
        ...


class Rejection(NamedTuple):
    """The reason why so many `items` were not taken; of none, what the sender should know."""

    reason: str
    items: int = 1


class Signal(NamedTuple):
    """A signal: `read` reads a request, `build_answer` makes the answer of so many that were not taken, in which words."""

    read: Read
    build_answer: Callable[[int, str], Message]

    def answer(self, rejections: Sequence[Rejection]) -> Message:
        """The answer to a request of which these were not taken: how many, and the first reasons with how often each came."""
        counts: dict[str, int] = {}
        for rejection in rejections:
            counts[rejection.reason] = counts.get(rejection.reason, 0) + rejection.items
        reasons = [f"{reason} ({count} of them)" if count > 1 else reason for reason, count in counts.items()]
        more = f"; and {len(reasons) - EXPLAINED} more reasons" if len(reasons) > EXPLAINED else ""
        return self.build_answer(sum(counts.values()), "; ".join(reasons[:EXPLAINED]) + more)


def as_json(answer: Message) -> bytes:
    """An answer in OTLP's JSON."""
    text: str = MessageToJson(answer, indent=None)
    return text.encode()


def _traces(count: int, words: str) -> Message:
    partial = ExportTracePartialSuccess(rejected_spans=count, error_message=words) if words else None
    return ExportTraceServiceResponse(partial_success=partial)


def _logs(count: int, words: str) -> Message:
    partial = ExportLogsPartialSuccess(rejected_log_records=count, error_message=words) if words else None
    return ExportLogsServiceResponse(partial_success=partial)


def _metrics(count: int, words: str) -> Message:
    partial = ExportMetricsPartialSuccess(rejected_data_points=count, error_message=words) if words else None
    return ExportMetricsServiceResponse(partial_success=partial)


SIGNALS = {
    "traces": Signal(read_traces, _traces),
    "logs": Signal(read_logs, _logs),
    "metrics": Signal(read_metrics, _metrics),
}
"""The signals by name."""
