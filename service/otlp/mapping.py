"""Mapping: from the body of a request to encoded records. Pure, so that it is the same in the server and in a process beside it.

A process beside the server hands back the records without their content, which is in their encodings: what takes records in asks for
identity, session and digest alone, and a whole record takes ten times as long to hand over.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

import msgspec

from audit.redaction.redactor import Redactor
from schemas.errors import InputError
from schemas.records import Span
from service.http.bounds import MAX_SPANS, MAX_UNPACKED, OTLP_LETTERS
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal
from streams.log.span_admission import admitted
from streams.sources.otlp.kept_spans import SpanOwner
from streams.sources.otlp.request import Observed, ReadItems, Refused
from streams.sources.otlp.signals import SIGNALS, Rejection

REFUSED_SPAN, CONFLICTING_ID = "refused_span", "conflicting_id"
"""Reasons of dead letters."""
MAX_LETTERS = 50
"""Spans of one request that are set aside; the answer counts all."""
_WINDOW = 16 + zlib.MAX_WBITS
"""zlib's word for gzip."""


class SecretPattern(msgspec.Struct, frozen=True):
    """A kind of secret of a policy."""

    kind: str
    pattern: str


class Redaction(msgspec.Struct, frozen=True):
    """The settings of a redactor and its key: another process makes the same one of them."""

    enabled: bool
    patterns: tuple[SecretPattern, ...]
    key: bytes

    @classmethod
    def of(cls, redactor: Redactor) -> Redaction:
        """Return what a redactor was made of."""
        patterns = tuple(SecretPattern(one.kind, one.pattern) for one in redactor.settings.patterns)
        return cls(redactor.settings.enabled, patterns, redactor.key)


class MappingTask(msgspec.Struct, frozen=True):
    """A request to be mapped: how its body is written, whose spans it has, and which attributes tell the labels of the project."""

    signal: str
    is_json: bool
    is_packed: bool
    owner: SpanOwner
    labels: Mapping[str, Sequence[str]]
    now: datetime


class RequestProblem(msgspec.Struct, frozen=True):
    """The reason why the whole of a request cannot be taken, as the API answers it."""

    status: int
    code: str
    message: str


class MappedSpans(msgspec.Struct, frozen=True):
    """The spans of a request: their records, each with its encoding, and why others cannot be taken; or the problem of the whole.

    `letters` are encoded dead letters of those that cannot, the first MAX_LETTERS of them. `passed_over` is the number of records of a log
    that are of anything else than a model.
    """

    records: Sequence[Span] = ()
    messages: Sequence[bytes] = ()
    refused: Sequence[Rejection] = ()
    letters: Sequence[bytes] = ()
    passed_over: int = 0
    problem: RequestProblem | None = None

    def without_content(self) -> MappedSpans:
        """Return the same with records that lack their content."""
        records = [msgspec.structs.replace(record, content="") for record in self.records]
        return msgspec.structs.replace(self, records=records)


class LogLine(msgspec.Struct, frozen=True):
    """A line of a log that was written in another process."""

    logger: str
    level: int
    message: str
    trace: str | None = None

    def write(self) -> None:
        """Write it into the log of this process."""
        logger = logging.getLogger(self.logger)
        if logger.isEnabledFor(self.level):
            record = logger.makeRecord(self.logger, self.level, __file__, 0, self.message, (), None)
            record.exc_text = self.trace
            logger.handle(record)


class ProcessTask(msgspec.Struct, frozen=True):
    """A task for a process beside the server, which is handed the body as it is."""

    task: MappingTask
    redaction: Redaction


class ProcessAnswer(msgspec.Struct, frozen=True):
    """The answer of a process beside the server: the spans, and what was logged on the way."""

    spans: MappedSpans
    logged: Sequence[LogLine] = ()


class _ProblemError(Exception):
    """The whole of a request cannot be taken."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = RequestProblem(status, code, message)


def mapped(task: MappingTask, body: bytes, redactor: Redactor) -> MappedSpans:
    """Return the spans of a request. One that cannot be taken costs itself alone."""
    records, messages, refused, passed_over = list[Span](), list[bytes](), list[Refused](), Counter[str]()
    try:
        content = _unpacked(body) if task.is_packed else body
        items = _at_most(SIGNALS[task.signal].read(content, task.now, is_json=task.is_json), passed_over)
        for outcome in admitted(items, lambda _: task.owner, lambda _: task.labels, redactor, task.now):
            if isinstance(outcome, Refused):
                refused.append(outcome)
            else:
                records.append(outcome.record)
                messages.append(outcome.message)
    except InputError as error:
        return MappedSpans(problem=RequestProblem(400, "invalid", f"{error}. {error.hint}"))
    except _ProblemError as error:
        return MappedSpans(problem=error.problem)
    letters = set_aside(task, refused, redactor)
    return MappedSpans(
        records, messages, [Rejection(item.reason, item.items) for item in refused], letters, passed_over.total()
    )


def set_aside(task: MappingTask, refused: Iterable[Refused], redactor: Redactor, reason: str = REFUSED_SPAN) -> list[bytes]:
    """Return dead letters of what was refused: few exporters report what the answer says, so an operator has to see it here."""
    admission, letters = Admission(redactor, task.now), Accepted()
    place = Place(f"{OTLP_LETTERS}:{task.owner.connection}/{task.signal}", 0)
    for item in islice((item for item in refused if item.body), MAX_LETTERS):
        admission.set_aside(letters, place, Refusal(OTLP_LETTERS, reason, item.reason), item.body)
    return letters.messages.get(DEAD_LETTERS, [])


def _at_most(items: ReadItems, passed_over: Counter[str]) -> Iterator[Observed | Refused]:
    count = 0
    for item in items:
        if item is None:
            passed_over["log"] += 1
            continue
        if count == MAX_SPANS:
            raise _ProblemError(413, "too_large", f"more than {MAX_SPANS} spans in one request; export smaller batches")
        count += 1
        yield item


def _unpacked(body: bytes) -> bytes:
    """Return what a gzip body unpacks to; a problem if that is too much, or the body is not gzip or not whole."""
    unpacker = zlib.decompressobj(_WINDOW)
    try:
        content = unpacker.decompress(body, MAX_UNPACKED + 1)
    except zlib.error as error:
        raise _ProblemError(400, "not_gzip", f"the body is not gzip: {error}") from None
    if len(content) > MAX_UNPACKED:
        raise _ProblemError(413, "too_large", f"the body unpacks to more than {MAX_UNPACKED} bytes; export smaller batches")
    if not unpacker.eof or unpacker.unused_data:
        raise _ProblemError(400, "not_gzip", "the body is not one whole gzip stream")
    return content
