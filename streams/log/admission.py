"""Admission: records are encoded before they are accepted, and rejected ones become dead letters with their bytes.

Spans are admitted from OTLP requests, whichever way these arrived.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import msgspec

from analytics.identity.duplicate_matching import CONTENT
from audit.diagnosis.duplicate_rules import named_differences
from audit.fingerprints import canonical_json, stable_id
from audit.redaction import Redactor
from audit.surrogates import json_bytes
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.single_object import encode
from schemas.contract import check_record
from schemas.errors import BoundsError, RecordError
from schemas.records import DeadLetter, Record, Score, ScoringTask, Span
from schemas.registry import schema_of
from streams.log.log import Commit
from streams.sources.otlp.kept_spans import SpanDraft, SpanOwner, draft_of, record_of
from streams.sources.otlp.reading import FactReader
from streams.sources.otlp.request import Observed, ReadItems, Refused

if TYPE_CHECKING:
    from audit.policy import Policy
    from streams.judging.judged_stages import Subject

DEAD_LETTERS = "dead-letters"
MAX_BODY_BYTES = 64 * 1024
"""Bytes of a rejected record that are kept; its digest and size cover the whole."""
MAX_REDACTED_BYTES = 1024 * 1024
"""Of a longer body only the start is redacted: the kept bytes and `_OVERLAP` more, so that a secret at the cut is seen whole."""
MAX_DETAIL = 1000
"""Characters of a reason that are kept."""
TO_DO = "Where it is the same thing, there is nothing to do; where it is another one, give it an id of its own and deliver it again."
"""Advice to the sender of a record in conflict with the log."""
_OVERLAP = 16 * 1024
_LONGEST_MARKER = 64
_UNFINISHED_TOKEN = re.compile(rb"[A-Za-z0-9+/=_.~%-]*$")
_UNFINISHED_MARKER = re.compile(r"\[(?:S(?:E(?:C(?:R(?:E(?:T(?::[a-z0-9_]{0,32}(?::[0-9a-f]{0,8})?)?)?)?)?)?)?)?$")


@dataclass(frozen=True)
class Place:
    """The origin of a record: a topic with partition and offset, or a file with a line."""

    source: str
    position: int
    partition: int | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a record was refused: the refusing stage, the code of the reason, and its text."""

    stage: str
    reason: str
    detail: str


@dataclass
class Accepted:
    """Encoded records by topic, ready to be appended, with their number and their size in bytes."""

    messages: dict[str, list[bytes]] = field(default_factory=dict)
    records: int = 0
    size: int = 0

    def add(self, topic: str, message: bytes) -> None:
        """Add one encoded record to a topic."""
        self.messages.setdefault(topic, []).append(message)
        self.records += 1
        self.size += len(message)

    def extend(self, other: Accepted) -> None:
        """Add other accepted records, topic by topic."""
        for topic, messages in other.messages.items():
            self.messages.setdefault(topic, []).extend(messages)
        self.records += other.records
        self.size += other.size


WRITTEN, KNOWN, CONFLICT = "written", "known", "conflict"


@dataclass(frozen=True)
class Submission:
    """Records to be committed: from outside, without those that turn out to be known, or from a stage, with its states and position."""

    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Records from outside, by topic."""
    messages: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """The same, encoded."""
    commit: Commit = field(default_factory=Commit)
    """From a stage: its records with its states and positions. Offsets are assigned when they are committed."""


@dataclass(frozen=True)
class Committed:
    """The result of a submission."""

    outcomes: Mapping[str, Sequence[str]]
    """For each topic and each of its records from outside: written, known (the log has it) or conflict (with other content)."""
    decisions: Mapping[Subject, ScoringTask | Score]
    """Intake's decisions on exchanges of the whole group: judged (a task) or left out (a score)."""
    spent: Mapping[str, int]
    """Nano-USD that the sessions of the tasks have spent, by session key; sessions that have spent nothing are missing."""


class Admission:
    """Admits records into topics. A record that breaks its contract becomes a dead letter; nothing is dropped."""

    def __init__(self, redactor: Redactor, now: datetime) -> None:
        self._redactor = redactor
        self._now = now

    def admit(self, accepted: Accepted, topic: str, records: Iterable[Record], source: str) -> None:
        """Encode records into `accepted`; records that may not be written become dead letters of `source`."""
        for position, record in enumerate(records):
            try:
                accepted.add(topic, admissible(record))
            except RecordError as error:
                body = json_bytes(record)
                self.set_aside(accepted, Place(source, position), Refusal("admission", error.code, str(error)), body)

    def set_aside(
        self,
        accepted: Accepted,
        place: Place,
        refusal: Refusal,
        body: bytes,
        *,
        size: int | None = None,
        digest: str | None = None,
    ) -> None:
        """Keep the bytes of something that cannot be stored as a dead letter: redacted, with origin and reason.

        `size` and `digest` (SHA-256, hexadecimal) are given if `body` is only the start of the bytes.
        """
        digest = digest or hashlib.sha256(body).hexdigest()
        source, _ = self._redactor.redact(place.source)
        detail, _ = self._redactor.redact(refusal.detail[: MAX_DETAIL + _OVERLAP])
        whole = len(body) <= MAX_REDACTED_BYTES and size in (None, len(body))
        kept = self._redacted(body) if whole else self._redacted_text(_start(body))
        if len(kept) > MAX_BODY_BYTES:
            kept = _without_unfinished_marker(kept[:MAX_BODY_BYTES].decode("utf-8", "ignore")).encode()
        letter = DeadLetter(
            dead_letter_id=stable_id("dead-letter", place.source, place.partition or 0, place.position, refusal.stage, digest),
            source=source,
            partition=place.partition,
            position=place.position,
            stage=refusal.stage,
            reason=refusal.reason,
            detail=detail if len(detail) <= MAX_DETAIL else _without_unfinished_marker(detail[:MAX_DETAIL]),
            digest=digest,
            size=len(body) if size is None else size,
            body=kept,
            rejected_at=self._now,
        )
        accepted.add(DEAD_LETTERS, encode(letter))

    def set_aside_conflict(self, accepted: Accepted, topic: str, record: Record, differing: Sequence[str]) -> None:
        """Keep a record whose identity the topic has with other content as a dead letter; `differing` are the fields that differ.

        The dead letter's id is derived from the record's identity and content: its origin is not always known, and its time of arrival
        differs between deliveries.
        """
        name = type(record).__name__
        identity = {field: getattr(record, field) for field in schema_of(name).identity}
        named = ", ".join(f"{field} {value!r}" for field, value in identity.items())
        detail = f"{name} {named}: the log holds it with other content{named_differences(differing)}, which stays. {TO_DO}"
        content = canonical_json([name, *identity.values(), getattr(record, CONTENT[name])])
        digest = hashlib.sha256(content.encode()).hexdigest()
        refusal = Refusal("admission", "conflicting_id", detail)
        self.set_aside(accepted, Place(topic, 0), refusal, msgspec.json.encode(record), digest=digest)

    def _redacted(self, body: bytes) -> bytes:
        """The body without its secrets: parsed as JSON if possible, so that keys identify secrets; else as text.

        Bytes without secrets stay unchanged: an encoded record can then be put back.
        """
        try:
            value, _ = self._redactor.redact_json(msgspec.json.decode(body))
            return msgspec.json.encode(value)
        except (msgspec.MsgspecError, BoundsError, UnicodeError, OverflowError, RecursionError):
            return self._redacted_text(body)

    def _redacted_text(self, body: bytes) -> bytes:
        text, secrets = self._redactor.redact(body.decode("utf-8", "replace"))
        return text.encode("utf-8", "replace") if secrets else body


def admissible(record: Record) -> bytes:
    """The encoding of a record from outside; RecordError naming the field when the record breaks its contract or is too large."""
    message = encode(record)
    check_record(record)
    if len(message) > MAX_ADMITTED_BYTES:
        raise BoundsError(f"{type(record).__name__}: {len(message)} bytes, {MAX_ADMITTED_BYTES} allowed")
    return message


def encode_each(records: Sequence[Record]) -> list[bytes | RecordError]:
    """The encoding of each record from outside, or why the record may not be written."""
    messages: list[bytes | RecordError] = []
    for record in records:
        try:
            messages.append(admissible(record))
        except RecordError as error:
            messages.append(error)
    return messages


def _start(body: bytes) -> bytes:
    """The start of a truncated body, without its last, incomplete token: half a secret would not be recognised."""
    window = body[: MAX_BODY_BYTES + _OVERLAP]
    tail = _UNFINISHED_TOKEN.search(window, max(0, len(window) - _OVERLAP))
    return window[: tail.start()] if tail else window


def _without_unfinished_marker(text: str) -> str:
    """The start of a redacted text, without a truncated marker at its end."""
    return text[:-_LONGEST_MARKER] + _UNFINISHED_MARKER.sub("", text[-_LONGEST_MARKER:])


def encode_all(records: Sequence[tuple[str, Record]]) -> Accepted:
    """Encode records from our own stages; a record that breaks its contract is a bug and raises."""
    accepted = Accepted()
    for topic, record in records:
        accepted.add(topic, encode(record))
    return accepted


TOGETHER = 100
"""Spans that are prefiltered for secrets together."""
PROJECTS = 100
"""Projects whose readers are cached per request."""
Made = TypeVar("Made")
Given = ParamSpec("Given")
log = logging.getLogger(__name__)
OwnerOf = Callable[[Observed], SpanOwner | None]
"""Finds the owner of a span; None if the span is skipped."""
LabelsOf = Callable[[str], Mapping[str, Sequence[str]]]
"""Finds a project's labels, each with the attributes that give its value."""


class AdmittedSpan(NamedTuple):
    """A span's record, and its encoding."""

    record: Span
    message: bytes


def labels_of(policy: Policy) -> LabelsOf:
    """Return a function that finds a project's labels in a policy."""
    return lambda project: policy.for_project(project).settings.traces.labels


def admitted(
    items: ReadItems, owner_of: OwnerOf, labels: LabelsOf, redactor: Redactor, now: datetime
) -> Iterator[AdmittedSpan | Refused]:
    """Yield the outcome of each span, in order. A span that cannot be stored affects no other."""
    reader_of = lru_cache(PROJECTS)(lambda project: FactReader(labels(project)))
    while some := list(islice(items, TOGETHER)):
        drafts = [draft for observed in some if (draft := _draft(observed, owner_of, reader_of)) is not None]
        looked = _having_looked(redactor, drafts)
        for draft in drafts:
            yield draft if isinstance(draft, Refused) else _guarded(draft.observed, _admitted, draft, looked, now)


def _draft(
    observed: Observed | Refused | None, owner_of: OwnerOf, reader_of: Callable[[str], FactReader]
) -> SpanDraft | Refused | None:
    """The draft of a span; None if the span is skipped."""
    if observed is None or isinstance(observed, Refused):
        return observed
    owner = owner_of(observed)
    if owner is None:
        return None
    return _guarded(observed, draft_of, observed, owner, reader_of(owner.project))


def _having_looked(redactor: Redactor, drafts: Iterable[SpanDraft | Refused]) -> Redactor:
    """The redactor, prefiltered with the texts of the drafts: most texts are clean, and the same texts recur."""
    texts, named = list[str](), list[str]()
    for draft in drafts:
        if isinstance(draft, SpanDraft):
            texts += draft.texts
            named += draft.named
    return redactor.having_looked(texts, named=named)


def _admitted(draft: SpanDraft, redactor: Redactor, now: datetime) -> AdmittedSpan:
    record = record_of(draft, redactor, now)
    return AdmittedSpan(record, admissible(record))


def _guarded(observed: Observed, make: Callable[Given, Made], *given: Given.args, **named: Given.kwargs) -> Made | Refused:
    """The result for a span, or why the span is refused."""
    try:
        return make(*given, **named)
    except RecordError as error:
        return Refused(f"{observed.span_id}: {error}", json_bytes(observed._asdict()))
    except MemoryError:
        raise
    except Exception as error:
        log.exception("the span %s of the trace %s cannot be read", observed.span_id, observed.trace_id)
        return Refused(f"{observed.span_id}: cannot be read: {type(error).__name__}", json_bytes(observed._asdict()))
