"""Stored states of sessions, and the detection of values that no stage could go on from.

1. A state must be readable, outside and inside, and go no farther than the source had come when the topic was read.
2. What is none counts for nothing, is logged and becomes a dead letter, the same from any finder. Its session goes on from the right
   state where the topic has one, else it begins again.
3. One that goes too far may be anybody's mistake. Where more of them do, the source is another topic of that name.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from audit.redaction.redactor import Redactor
from streams.kafka.state.deduplication import ENTRY_BYTES
from streams.kafka.values.decoding import time_of
from streams.kafka.worker.processing import RawRecord
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal
from streams.log.dead_letters import NO_STATE, STATE

FEW = 100
"""Of so many values one more may go too far before the source is taken for another topic."""
log = logging.getLogger(__name__)


class StoredState(msgspec.Struct, frozen=True, array_like=True):
    """The value for one session in a state topic."""

    next_offset: Annotated[int, msgspec.Meta(ge=0)]
    """Offset in the source topic up to which records are in it, exclusive."""
    identities: bytes
    """Hashes of the newest records' identities and contents (see `streams.kafka.state.deduplication`)."""
    state: bytes
    """The state of the stage's step."""


ENCODE = msgspec.msgpack.Encoder().encode
DECODE = msgspec.msgpack.Decoder(StoredState).decode


class NoStateError(Exception):
    """A value is no state; the words say why. `ahead` is the offset that it claims, where that is what is wrong."""

    def __init__(self, words: str, ahead: int = 0) -> None:
        super().__init__(words)
        self.ahead = ahead


@dataclass
class _Reading:
    """One reading of a partition."""

    end: int | None
    """The end of the source; None if it is not looked at."""
    values: int = 0
    ahead: dict[bytes, int] = field(default_factory=dict)
    refused: list[tuple[RawRecord, NoStateError]] = field(default_factory=list)


class StateValues:
    """Reads the values of one state topic, partition by partition.

    `holds` is the type of the stage's own states, None where these are not looked at. `redactor` is for dead letters; without one there are none.
    """

    def __init__(self, topic: str, holds: type[Any] | None, redactor: Redactor | None) -> None:
        self._topic = topic
        self._decode = (lambda state: state) if holds is None else msgspec.msgpack.Decoder(holds).decode
        self._redactor = redactor
        self._readings: dict[int, _Reading] = defaultdict(lambda: _Reading(None))

    def begin(self, partition: int, end: int | None) -> None:
        """A reading of a partition begins, whose source has come to this end."""
        self._readings[partition] = _Reading(end)

    def next_offset(self, partition: int, record: RawRecord) -> int | None:
        """Up to which offset of the source a record's value goes; None for what is no state, of which note is taken."""
        reading = self._readings[partition]
        reading.values += 1
        try:
            return self._checked(record.value or b"", reading.end)
        except NoStateError as error:
            log.warning(
                "%s, partition %d, offset %d: this is no state and is passed over: %s",
                self._topic,
                partition,
                record.offset,
                error,
            )
            reading.refused.append((record, error))
            if error.ahead:
                reading.ahead[record.key or b""] = error.ahead
        return None

    def farthest(self, partition: int) -> int:
        """The farthest offset that states claim beyond the end, where those are more than a few; else 0."""
        reading = self._readings[partition]
        return max(reading.ahead.values()) if len(reading.ahead) > 1 + reading.values // FEW else 0

    def letters(self, partition: int) -> list[bytes]:
        """The dead letters of what was no state in this reading."""
        accepted = Accepted()
        if self._redactor is None:
            return []
        for record, error in self._readings[partition].refused:
            place, detail = Place(self._topic, record.offset, partition), f"{_session(record)}: {error}"
            admission = Admission(self._redactor, time_of(record))
            admission.set_aside(accepted, place, Refusal(STATE, NO_STATE, detail), record.value or b"")
        return accepted.messages.get(DEAD_LETTERS, [])

    def _checked(self, value: bytes, end: int | None) -> int:
        try:
            stored = DECODE(value)
            inside = getattr(self._decode(stored.state), "next_offset", 0)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NoStateError(f"it cannot be read: {error}") from error
        if len(stored.identities) % ENTRY_BYTES:
            raise NoStateError(f"its identities are {len(stored.identities)} bytes, which is no multiple of {ENTRY_BYTES}")
        if inside > stored.next_offset:
            raise NoStateError(f"it goes to offset {stored.next_offset}, and what it holds to {inside}")
        if end is not None and stored.next_offset > end:
            raise NoStateError(
                f"it goes to offset {stored.next_offset}, and its source ends at {end}", ahead=stored.next_offset
            )
        return stored.next_offset


def _session(record: RawRecord) -> str:
    return f"session {(record.key or b'').decode('utf-8', 'replace')[:600]!r}"
