"""The signals of OTLP that are taken, traces and logs: how a request is read and what answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from streams.sources.otlp.request import Found, read_logs, read_traces

EXPLAINED = 3
"""Reasons that an answer names; it counts all."""


class Read(Protocol):
    """Reads a request."""

    def __call__(self, body: bytes, now: datetime, *, is_json: bool) -> Found:
        """The spans or records of a request; InputError when the whole of it cannot be read."""
        ...


class Signal(NamedTuple):
    """A signal: `read` reads a request, `answered` makes the answer of so many that were not taken, in which words."""

    read: Read
    answered: Callable[[int, str], Message]

    def answer(self, refused: Sequence[str]) -> Message:
        """The answer to a request of which these could not be taken, by the reason of each."""
        more = f"; and {len(refused) - EXPLAINED} more" if len(refused) > EXPLAINED else ""
        return self.answered(len(refused), "; ".join(refused[:EXPLAINED]) + more)


def as_json(answer: Message) -> bytes:
    """An answer in OTLP's JSON."""
    text: str = MessageToJson(answer, indent=None)
    return text.encode()


def _traces(count: int, words: str) -> Message:
    partial = ExportTracePartialSuccess(rejected_spans=count, error_message=words) if count else None
    return ExportTraceServiceResponse(partial_success=partial)


def _logs(count: int, words: str) -> Message:
    partial = ExportLogsPartialSuccess(rejected_log_records=count, error_message=words) if count else None
    return ExportLogsServiceResponse(partial_success=partial)


SIGNALS = {"traces": Signal(read_traces, _traces), "logs": Signal(read_logs, _logs)}
"""The signals by name."""
