"""The door: records are encoded before they are accepted, and what may not come in is set aside with its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from audit.fingerprints import stable_id
from audit.redaction import Redactor
from schemas.codec import encode
from schemas.errors import BoundsError, RecordError
from schemas.limits import MAX_ADMITTED_BYTES
from schemas.records import DeadLetter, Record

DEAD_LETTERS = "dead-letters"
MAX_BODY_BYTES = 64 * 1024
"""How much of a rejected record is kept; its digest and size are of the whole."""


@dataclass(frozen=True)
class Place:
    """Where a record came from: a topic with partition and offset, or a file with a line."""

    source: str
    position: int
    partition: int | None = None


@dataclass(frozen=True)
class Refusal:
    """Why something was not taken: who refused it, the code of the reason, and the reason in words."""

    stage: str
    reason: str
    detail: str


@dataclass
class Accepted:
    """Encoded records by topic, ready to be appended: how many, and their size in bytes."""

    messages: dict[str, list[bytes]] = field(default_factory=dict)
    records: int = 0
    size: int = 0

    def add(self, topic: str, message: bytes) -> None:
        """Add one encoded record to a topic."""
        self.messages.setdefault(topic, []).append(message)
        self.records += 1
        self.size += len(message)

    def extend(self, other: Accepted) -> None:
        """Add what was accepted elsewhere, topic by topic."""
        for topic, messages in other.messages.items():
            self.messages.setdefault(topic, []).extend(messages)
        self.records += other.records
        self.size += other.size


class Door:
    """Admits records into topics. What breaks its contract becomes a dead letter; nothing is dropped."""

    def __init__(self, redactor: Redactor, now: datetime) -> None:
        self._redactor = redactor
        self._now = now

    def admit(self, accepted: Accepted, topic: str, records: Iterable[Record], source: str) -> None:
        """Encode records into `accepted`; those that may not be written are set aside as dead letters of `source`."""
        for position, record in enumerate(records):
            try:
                message = encode(record)
                if len(message) > MAX_ADMITTED_BYTES:
                    raise BoundsError(f"{type(record).__name__}: {len(message)} bytes, {MAX_ADMITTED_BYTES} allowed")
                accepted.add(topic, message)
            except RecordError as error:
                body = msgspec.json.encode(record)
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
        """Keep the bytes of something that cannot be taken, redacted, with place and reason.

        `size` and `digest` (SHA-256, hexadecimal) are given where `body` is only the start of it.
        """
        digest = digest or hashlib.sha256(body).hexdigest()
        text, _ = self._redactor.redact(body[:MAX_BODY_BYTES].decode("utf-8", "replace"))
        words, _ = self._redactor.redact(refusal.detail[:1000])
        letter = DeadLetter(
            dead_letter_id=stable_id("dead-letter", place.source, place.partition or 0, place.position, refusal.stage, digest),
            source=place.source,
            partition=place.partition,
            position=place.position,
            stage=refusal.stage,
            reason=refusal.reason,
            detail=words,
            digest=digest,
            size=len(body) if size is None else size,
            body=text.encode("utf-8", "replace")[:MAX_BODY_BYTES],
            rejected_at=self._now,
        )
        accepted.add(DEAD_LETTERS, encode(letter))


def encode_all(records: Sequence[tuple[str, Record]]) -> Accepted:
    """Encode records that our own stages made; one that breaks its contract is a fault of ours and raises."""
    accepted = Accepted()
    for topic, record in records:
        accepted.add(topic, encode(record))
    return accepted
