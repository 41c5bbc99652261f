"""From records as the broker has them to columns: one way for the sink and the workers, so that both reject the same.

A record is rejected when its value is no record of ours, breaks a bound, or is of a type that does not travel on its topic. What is
kept of it as a dead letter depends on the record alone, its time included: whoever rejects it, and however often, the letter is the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

from audit.redaction import Redactor
from schemas.arrow import INDEX, DecodedBatch, Rejected, decode_batch
from schemas.errors import RecordError, UnexpectedTypeError
from schemas.limits import EARLIEST, LATEST
from schemas.registry import topics
from streams.admission import Accepted, Door, Place, Refusal
from streams.batches import OFFSET
from streams.kafka.processing import RawRecord

Reframe = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]
"""Brings values that were framed in another way into single-object encoding."""
DECODING = "decoding"
"""Stage of the dead letters of records that cannot be decoded."""
CONFLICT = Refusal(
    "admission",
    "conflicting_id",
    "the log has a record of this identity with other content: give it an id of its own, and produce it again",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RejectedRecord:
    """A record that is not taken, and why."""

    record: RawRecord
    error: RecordError


@dataclass(frozen=True)
class DecodedChunk:
    """Records of one partition as columns: a frame a record type, rows by offset, with the offset as column `_offset`."""

    frames: Mapping[str, pl.DataFrame]
    rejected: Sequence[RejectedRecord]


def decode_values(topic: str, values: Sequence[bytes]) -> DecodedBatch:
    """Decode values of a topic, named without prefix; those of a type that does not travel on it are rejected, too."""
    batch = decode_batch(values)
    for name in batch.frames.keys() - set(topics()[topic]):
        error = UnexpectedTypeError(f"{name}: does not travel on the topic {topic}")
        batch.rejected += [Rejected(place, error) for place in batch.frames.pop(name)[INDEX].to_list()]
    batch.rejected.sort(key=lambda rejected: rejected.index)
    return batch


def decode_chunk(topic: str, records: Sequence[RawRecord], values: Sequence[bytes] | None = None) -> DecodedChunk:
    """Decode records of one partition of a topic, named without prefix.

    `values` are given where those of the records were framed in another way: one for each record. Nothing raises for bad input.
    """
    batch = decode_values(topic, values_of(records) if values is None else values)
    offsets = pl.Series(OFFSET, [record.offset for record in records], dtype=pl.Int64)
    return DecodedChunk(
        {name: frame.with_columns(offsets.gather(frame[INDEX])).drop(INDEX) for name, frame in batch.frames.items()},
        [RejectedRecord(records[one.index], one.error) for one in batch.rejected],
    )


def values_of(records: Sequence[RawRecord]) -> Sequence[bytes]:
    """The values; a tombstone counts as an empty one, which is no record."""
    return [record.value or b"" for record in records]


def letter_of(topic: str, partition: int, rejected: RejectedRecord, redactor: Redactor) -> Accepted:
    """The dead letter of a rejected record: its bytes without secrets, its place and the reason."""
    return _letter_of(topic, partition, rejected.record, Refusal(DECODING, rejected.error.code, str(rejected.error)), redactor)


def conflict_of(topic: str, partition: int, record: RawRecord, redactor: Redactor) -> Accepted:
    """The dead letter of a record whose identity the log has with other content: the same from whoever finds it out."""
    return _letter_of(topic, partition, record, CONFLICT, redactor)


def _letter_of(topic: str, partition: int, record: RawRecord, refusal: Refusal, redactor: Redactor) -> Accepted:
    letters = Accepted()
    door = Door(redactor, time_of(record))
    door.set_aside(letters, Place(topic, record.offset, partition), refusal, record.value or b"")
    return letters


def time_of(record: RawRecord) -> datetime:
    """When the broker took the record in; at the bounds of what a record may say where the broker says anything beyond."""
    milliseconds = max(0, min(record.timestamp, int((LATEST - _EPOCH) / timedelta(milliseconds=1))))
    return min(max(_EPOCH + timedelta(milliseconds=milliseconds), EARLIEST), LATEST)
