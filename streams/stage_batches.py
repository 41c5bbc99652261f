"""Input and output of a stage: batches of one topic as columns, and the outcome of a step over them."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemas.codec.arrow import rows_as_records
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.lazy import pl
from schemas.records import Exchange, Record, ScoringTask
from schemas.registry import schema_of

OFFSET = "_offset"
MESSAGE = "_message"
"""Column with each row's record in its delivered encoding; a frame that was read from tables lacks it."""
KEY = "_key"
"""Column with the key of a row's session: connection, slash, session id. Connection names hold no slash."""


@functools.cache
def key_column() -> pl.Expr:
    """Return `KEY` of the rows of a frame that has both columns."""
    return pl.concat_str("connection", pl.lit("/"), "session_id")


@dataclass(frozen=True)
class StageBatch:
    """Consecutive records of one partition: one frame per record type with rows, with `_offset` and `_key`, sorted by offset."""

    topic: str
    frames: Mapping[str, pl.DataFrame]

    @classmethod
    def of(cls, topic: str, frames: Mapping[str, pl.DataFrame]) -> StageBatch:
        """Return a batch from frames with `connection`, `session_id` and `_offset`; empty frames are dropped."""
        return cls(topic, {name: frame.with_columns(key_column().alias(KEY)) for name, frame in frames.items() if frame.height})

    def keys(self) -> list[str]:
        """Return the keys of the sessions in the batch, each once, in no particular order."""
        return list({key for frame in self.frames.values() for key in frame[KEY].unique().to_list()})

    def of_session(self, key: str) -> StageBatch:
        """Return the records of one session."""
        return self.filtered(pl.col(KEY) == key)

    def unseen(self, seen: Mapping[str, int]) -> StageBatch:
        """Return the records that the states have not seen: those of each session from its offset in `seen` on."""
        first = min((frame[OFFSET][0] for frame in self.frames.values()), default=0)
        seen_here = {key: offset for key, offset in seen.items() if offset > first}
        if not seen_here:
            return self
        return self.filtered(pl.col(OFFSET) >= pl.col(KEY).replace_strict(seen_here, default=0, return_dtype=pl.Int64))

    def ends(self) -> dict[str, int]:
        """Return the offset after the last record of each session, by session key."""
        ends: dict[str, int] = {}
        for frame in self.frames.values():
            for key, last in frame.group_by(KEY).agg(pl.col(OFFSET).max()).iter_rows():
                ends[key] = max(ends.get(key, 0), last + 1)
        return ends

    def filtered(self, condition: pl.Expr) -> StageBatch:
        """Return the records for which the condition is true."""
        frames = {name: frame.filter(condition) for name, frame in self.frames.items()}
        return StageBatch(self.topic, {name: frame for name, frame in frames.items() if frame.height})

    def records(self) -> Iterator[tuple[int, str, Record]]:
        """Yield offset, session key and record, in the order of the topic, across record types."""
        streams = [
            zip(frame[OFFSET].to_list(), frame[KEY].to_list(), rows_as_records(name, frame), strict=True)
            for name, frame in self.frames.items()
        ]
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda row: row[0])

    def encodings(self) -> dict[int, bytes]:
        """Return the delivered encodings by offset, of the records whose delivered encoding is that of the current schema."""
        encodings: dict[int, bytes] = {}
        for name, frame in self.frames.items():
            if MESSAGE in frame.columns:
                current = frame.filter(pl.col(MESSAGE).bin.starts_with(schema_of(name).prefix))
                encodings |= zip(current[OFFSET].to_list(), current[MESSAGE].to_list(), strict=True)
        return encodings


@dataclass(frozen=True)
class RecordBatch:
    """Consecutive records of one partition that are not in columns: offset, session key and record of each, in order."""

    rows: Sequence[tuple[int, str, Record]]
    encoded: Sequence[bytes] = ()
    """The records' encodings, if available."""

    def records(self) -> Iterator[tuple[int, str, Record]]:
        """Yield offset, session key and record, in the order of the topic."""
        return iter(self.rows)

    def keys(self) -> list[str]:
        """See `StageBatch.keys`."""
        return list({key for _, key, _ in self.rows})

    def of_session(self, key: str) -> RecordBatch:
        """See `StageBatch.of_session`."""
        indexes = [index for index, (_, row_key, _) in enumerate(self.rows) if row_key == key]
        encoded = [self.encoded[index] for index in indexes] if self.encoded else ()
        return RecordBatch([self.rows[index] for index in indexes], encoded)

    def encodings(self) -> dict[int, bytes]:
        """See `StageBatch.encodings`."""
        return {offset: message for (offset, _, _), message in zip(self.rows, self.encoded, strict=bool(self.encoded))}


@dataclass
class StepOutcome:
    """The result of a step: records to publish with their topics, in order, and the changed states by session key."""

    records: list[tuple[str, Record]] = field(default_factory=list)
    states: dict[str, bytes] = field(default_factory=dict)
    failed: list[tuple[int, Record, Exception]] = field(default_factory=list)
    """Records that the step failed on, with their offsets; they become dead letters."""


class Step(Protocol):
    """A stage's logic: pure, over a batch and the states of the sessions in it.

    The same records give the same results however they are split into batches, with the states carried from batch to batch. Records whose
    offset a state has already seen change nothing, so a redelivery is harmless.
    """

    def __call__(self, batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Fold the batch; `states` has the states of the batch's sessions, without those that have none."""
        ...


def session_key_of(record: Exchange | ScoringTask) -> str:
    """Return the key of a record's session, as in the column `KEY`."""
    return session_key(record.connection, record.session_id)


def session_key(connection: str, session_id: str) -> str:
    """Return the key of a session, as in the column `KEY`."""
    return f"{connection}/{session_id}"


def decode_exchange(message: bytes) -> Exchange:
    """Decode the exchange in a task or a state. Raises RecordError if it is another record."""
    record = decode(message)
    if not isinstance(record, Exchange):
        raise RecordError(f"an exchange was expected, not a {type(record).__name__}")
    return record
