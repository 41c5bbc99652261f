"""Admission: records are validated and encoded before they are accepted. Refused records become dead letters, which keep their bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from analytics.identity.duplicate_matching import CONTENT_COLUMNS
from audit.diagnosis.duplicate_rules import describe_differences
from audit.fingerprints import canonical_json, stable_id
from audit.redaction import Redactor
from audit.surrogates import json_bytes
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.single_object import encode
from schemas.contract import check_record
from schemas.errors import BoundsError, RecordError
from schemas.records import DeadLetter, Record
from schemas.registry import schema_of

DEAD_LETTERS = "dead-letters"
MAX_BODY_BYTES = 64 * 1024
"""Bytes of a refused record that a dead letter keeps; its digest and size are those of the complete record."""
MAX_REDACTED_BYTES = 1024 * 1024
"""Bodies up to this size are redacted completely. Of a longer body, only its start is redacted."""
MAX_DETAIL_LENGTH = 1000
"""Characters of a reason that a dead letter keeps."""
CONFLICT_ADVICE = "If it is the same record, do nothing. If it is a different one, give it its own id and send it again."
"""Advice to the sender of a record in conflict with the log."""
_OVERLAP_BYTES = 16 * 1024
"""Bytes after the kept start of a body that are searched, too, so that a secret across the cut is recognized."""
_MAX_MARKER_LENGTH = 64
"""Characters of the longest marker that the redactor puts in the place of a secret, rounded up."""
_INCOMPLETE_TOKEN = re.compile(rb"[A-Za-z0-9+/=_.~%-]*$")
_INCOMPLETE_MARKER = re.compile(r"\[(?:S(?:E(?:C(?:R(?:E(?:T(?::[a-z0-9_]{0,32}(?::[0-9a-f]{0,8})?)?)?)?)?)?)?)?$")


@dataclass(frozen=True)
class RecordOrigin:
    """The origin of a record: a topic with partition and offset, or a file with a line."""

    source: str
    position: int
    partition: int | None = None


@dataclass(frozen=True)
class Refusal:
    """The reason why a stage refused a record: the stage, the reason's code, and its text."""

    stage: str
    reason: str
    detail: str


@dataclass
class EncodedRecords:
    """Encoded records by topic, with their number and their size in bytes."""

    messages: dict[str, list[bytes]] = field(default_factory=dict)
    records: int = 0
    size: int = 0

    def add(self, topic: str, message: bytes) -> None:
        """Add an encoded record to a topic."""
        self.messages.setdefault(topic, []).append(message)
        self.records += 1
        self.size += len(message)

    def extend(self, other: EncodedRecords) -> None:
        """Add other encoded records, topic by topic."""
        for topic, messages in other.messages.items():
            self.messages.setdefault(topic, []).extend(messages)
        self.records += other.records
        self.size += other.size


class Admission:
    """Admits records into topics. A record that breaks its contract becomes a dead letter; no record is dropped."""

    def __init__(self, redactor: Redactor, now: datetime) -> None:
        self._redactor = redactor
        self._now = now

    def admit(self, accepted: EncodedRecords, topic: str, records: Iterable[Record], source: str) -> None:
        """Encode records into `accepted`. A record that breaks its contract becomes a dead letter from `source` instead."""
        for position, record in enumerate(records):
            try:
                accepted.add(topic, encode_validated(record))
            except RecordError as error:
                origin = RecordOrigin(source, position)
                self.add_dead_letter(accepted, origin, Refusal("admission", error.code, str(error)), json_bytes(record))

    def add_dead_letter(
        self,
        accepted: EncodedRecords,
        origin: RecordOrigin,
        refusal: Refusal,
        body: bytes,
        *,
        size: int | None = None,
        digest: str | None = None,
    ) -> None:
        """Add a dead letter for the bytes of a refused record: redacted, with origin and reason.

        If `body` is only the start of the record, `size` and `digest` (SHA-256, hexadecimal) are those of the complete record.
        """
        digest = digest or hashlib.sha256(body).hexdigest()
        source, _ = self._redactor.redact(origin.source)
        detail, _ = self._redactor.redact(refusal.detail[: MAX_DETAIL_LENGTH + _OVERLAP_BYTES])
        if len(detail) > MAX_DETAIL_LENGTH:
            detail = _strip_incomplete_marker(detail[:MAX_DETAIL_LENGTH])
        dead_letter = DeadLetter(
            dead_letter_id=stable_id(
                "dead-letter", origin.source, origin.partition or 0, origin.position, refusal.stage, digest
            ),
            source=source,
            partition=origin.partition,
            position=origin.position,
            stage=refusal.stage,
            reason=refusal.reason,
            detail=detail,
            digest=digest,
            size=len(body) if size is None else size,
            body=self._redact_body(body, is_complete=size in (None, len(body))),
            rejected_at=self._now,
        )
        accepted.add(DEAD_LETTERS, encode(dead_letter))

    def add_conflict(self, accepted: EncodedRecords, topic: str, record: Record, differing: Sequence[str]) -> None:
        """Add a dead letter for a record whose identity the topic has with other content; `differing` names the differing fields.

        The dead letter's id is derived from the record's identity and content, because the origin is not always known and the time of
        arrival differs between deliveries.
        """
        name = type(record).__name__
        identity = {field: getattr(record, field) for field in schema_of(name).identity}
        key = ", ".join(f"{field} {value!r}" for field, value in identity.items())
        detail = (
            f"{name} {key}: the log has it with other content{describe_differences(differing)}, which stays. {CONFLICT_ADVICE}"
        )
        content = canonical_json([name, *identity.values(), getattr(record, CONTENT_COLUMNS[name])])
        digest = hashlib.sha256(content.encode()).hexdigest()
        refusal = Refusal("admission", "conflicting_id", detail)
        self.add_dead_letter(accepted, RecordOrigin(topic, 0), refusal, msgspec.json.encode(record), digest=digest)

    def _redact_body(self, body: bytes, *, is_complete: bool) -> bytes:
        """Return the bytes that a dead letter keeps of a body: redacted, and at most `MAX_BODY_BYTES`."""
        if is_complete and len(body) <= MAX_REDACTED_BYTES:
            redacted = self._redact_json_or_text(body)
        else:
            redacted = self._redact_text(_cut_start(body))
        if len(redacted) > MAX_BODY_BYTES:
            redacted = _strip_incomplete_marker(redacted[:MAX_BODY_BYTES].decode("utf-8", "ignore")).encode()
        return redacted

    def _redact_json_or_text(self, body: bytes) -> bytes:
        """Return the body without its secrets: parsed as JSON if possible, because keys identify secrets, otherwise as text.

        Text without secrets is returned unchanged, so that an encoded record can be put back.
        """
        try:
            value, _ = self._redactor.redact_json(msgspec.json.decode(body))
            return msgspec.json.encode(value)
        except (msgspec.MsgspecError, BoundsError, UnicodeError, OverflowError, RecursionError):
            return self._redact_text(body)

    def _redact_text(self, body: bytes) -> bytes:
        text, secrets = self._redactor.redact(body.decode("utf-8", "replace"))
        return text.encode("utf-8", "replace") if secrets else body


def encode_validated(record: Record) -> bytes:
    """Return the encoding of a record from outside.

    Raises RecordError, which names the field, if the record breaks its contract, and BoundsError if it is too large.
    """
    message = encode(record)
    check_record(record)
    if len(message) > MAX_ADMITTED_BYTES:
        raise BoundsError(f"{type(record).__name__}: {len(message)} bytes, {MAX_ADMITTED_BYTES} allowed")
    return message


def encode_each(records: Sequence[Record]) -> list[bytes | RecordError]:
    """Return the encoding of each record from outside, or its error if it breaks its contract."""
    messages: list[bytes | RecordError] = []
    for record in records:
        try:
            messages.append(encode_validated(record))
        except RecordError as error:
            messages.append(error)
    return messages


def encode_all(records: Sequence[tuple[str, Record]]) -> EncodedRecords:
    """Encode the records of a stage, given with their topics. A record that breaks its contract is a bug and raises."""
    encoded = EncodedRecords()
    for topic, record in records:
        encoded.add(topic, encode(record))
    return encoded


def _cut_start(body: bytes) -> bytes:
    """Return the start of a long body, cut before a token: the redactor would not recognize half a secret."""
    start = body[: MAX_BODY_BYTES + _OVERLAP_BYTES]
    token = _INCOMPLETE_TOKEN.search(start, max(0, len(start) - _OVERLAP_BYTES))
    return start[: token.start()] if token else start


def _strip_incomplete_marker(text: str) -> str:
    """Return a truncated redacted text without an incomplete marker at its end."""
    return text[:-_MAX_MARKER_LENGTH] + _INCOMPLETE_MARKER.sub("", text[-_MAX_MARKER_LENGTH:])
