"""Decoding of broker records to columns, and deduplication within a session. The sink and the workers share it.

1. A record is rejected if its value is not one of Driftline's records, breaks a bound or the contract (`schemas.contract`), or has a
   type that does not belong on its topic.
2. On a topic keyed by session, a record is also rejected if its key is not that of its session: it may be on another partition than the
   session's other records, where the worker does not know the session's spending.
3. The dead letter, including its time, depends only on the record. So every process that rejects the record writes the same one.
4. A repetition with the same content changes nothing; other content under the same identity becomes a dead letter. A session's state has the
   hashes of the newest records' identities and contents. A record is identified by its session, its type, its identity and its
   revision, if it has one. `analytics.identity.duplicate_matching.CONTENT` names the field with a record's content.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple, Self

import xxhash

from analytics.identity.duplicate_matching import CONTENT_COLUMNS, identity_of
from audit.redaction import Redactor
from schemas.bounds import EARLIEST, LATEST
from schemas.codec.arrow import INDEX, DecodedBatch, Rejected, decode_batch
from schemas.contract import breaches
from schemas.errors import RecordError, UnexpectedTypeError, WrongKeyError, WrongPartitionError
from schemas.lazy import pl
from schemas.registry import schema_of, topics
from streams.kafka.producing import partition_of
from streams.kafka.reading import Chunk, RawRecord, values_of
from streams.kafka.topics import TOPICS
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal
from streams.stage_batches import KEY, MESSAGE, OFFSET, StageBatch, key_column

Reframe = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]
"""Converts values from another framing to single-object encoding."""
DECODING = "decoding"
"""Stage of the dead letters of records that cannot be decoded."""
CONFLICT = Refusal(
    "admission",
    "conflicting_id",
    "the log has a record of this identity with other content: give this record its own id, and produce it again",
)
_FORWARDED_TOPIC = "exchanges"
"""The topic whose records a stage passes on unchanged: their bytes are kept beside the columns."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MILLISECONDS = int((LATEST - _EPOCH) / timedelta(milliseconds=1))
"""The latest time that a record may have, in milliseconds since 1970."""


def decode_values(topic: str, records: Sequence[RawRecord], values: Sequence[bytes] | None = None) -> DecodedBatch:
    """Decode records of a topic, named without prefix. Records with a wrong key or of a wrong type are rejected.

    `values`, one per record, replaces the records' own values if those were reframed. Bad input never raises.
    """
    batch = decode_batch(values_of(records) if values is None else values)
    for name in batch.frames.keys() - set(topics()[topic]):
        error = UnexpectedTypeError(f"{name}: does not belong on the topic {topic}")
        batch.rejected += [Rejected(index, error) for index in batch.frames.pop(name)[INDEX].to_list()]
    keys = [record.key for record in records] if TOPICS[topic].is_keyed else None
    times = received_at(records)
    valid_frames: dict[str, pl.DataFrame] = {}
    for name, frame in batch.frames.items():
        valid, rejected = _split_by_contract(name, frame, times)
        batch.rejected += rejected
        if keys is not None:
            valid, rejected = _split_by_key(valid, keys)
            batch.rejected += rejected
        if valid.height:
            valid_frames[name] = valid
    batch.frames = valid_frames
    batch.rejected.sort(key=lambda rejected: rejected.index)
    return batch


def received_at(records: Sequence[RawRecord]) -> pl.Series:
    """Return the time when the broker received each record; null if the broker does not report it."""
    microseconds = [min(record.timestamp, _MAX_MILLISECONDS) * 1_000 if record.timestamp > 0 else None for record in records]
    return pl.Series(microseconds, dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))


def _split_by_contract(name: str, frame: pl.DataFrame, received_at: pl.Series) -> tuple[pl.DataFrame, list[Rejected]]:
    """Split rows into those that keep the contract, and the others."""
    errors = breaches(name, frame, received_at.gather(frame[INDEX]))
    if not errors:
        return frame, []
    indexes = frame[INDEX]
    rejected = [Rejected(indexes[row], error) for row, error in errors.items()]
    return frame.filter(~indexes.is_in([each.index for each in rejected])), rejected


def _split_by_key(frame: pl.DataFrame, keys: Sequence[bytes | None]) -> tuple[pl.DataFrame, list[Rejected]]:
    """Split rows into those under the key of their session, and the others."""
    actual_keys = pl.Series(keys, dtype=pl.Binary).gather(frame[INDEX])
    session_keys = frame.select(key_column().cast(pl.Binary)).to_series()
    has_session_key = actual_keys.eq_missing(session_keys)
    if has_session_key.all():
        return frame, []
    others = frame.filter(~has_session_key).select(INDEX, key=key_column())
    rejected = [
        Rejected(index, WrongKeyError(f"the key is not that of the session, which is {key}")) for index, key in others.rows()
    ]
    return frame.filter(has_session_key), rejected


def _split_by_partition(frame: pl.DataFrame, partition: int, partitions: int) -> tuple[pl.DataFrame, list[Rejected]]:
    """Split rows into those whose sessions belong on the partition, and the others."""
    keys = frame.select(key_column()).to_series()
    numbers = {key: partition_of(key.encode(), partitions) for key in keys.unique().to_list()}
    is_misplaced = keys.is_in([key for key, number in numbers.items() if number != partition])
    if not is_misplaced.any():
        return frame, []
    rejected: list[Rejected] = []
    for index, key in zip(frame.filter(is_misplaced)[INDEX].to_list(), keys.filter(is_misplaced).to_list(), strict=True):
        reason = f"partition: session {key} belongs on partition {numbers[key]}, not on {partition}"
        rejected.append(Rejected(index, WrongPartitionError(reason)))
    return frame.filter(~is_misplaced), rejected


def decode_chunk(
    topic: str, records: Sequence[RawRecord], values: Sequence[bytes] | None = None, *, on: tuple[int, int] | None = None
) -> DecodedBatch:
    """Decode records of one partition of a topic, as `decode_values` does; rows have the offset as column `_offset`.

    `on` is the number of the partition and the topic's number of partitions. If it is given, sessions that belong on another partition
    are rejected: stages that keep states by partition need that. The tables do not, and they have records from before partitions were
    added.
    """
    batch = decode_values(topic, records, values)
    if on is not None and on[1]:
        for name, frame in list(batch.frames.items()):
            batch.frames[name], rejected = _split_by_partition(frame, *on)
            batch.rejected += rejected
        batch.rejected.sort(key=lambda rejected: rejected.index)
    offsets = pl.Series(OFFSET, [record.offset for record in records], dtype=pl.Int64)
    if topic == _FORWARDED_TOPIC:
        messages = pl.Series(MESSAGE, values_of(records) if values is None else values, dtype=pl.Binary)
        batch.frames = {name: frame.with_columns(messages.gather(frame[INDEX])) for name, frame in batch.frames.items()}
    batch.frames = {name: frame.with_columns(offsets.gather(frame[INDEX])).drop(INDEX) for name, frame in batch.frames.items()}
    return batch


def batch_of(chunk: Chunk, partitions: int, redactor: Redactor) -> tuple[StageBatch, list[bytes]]:
    """Return a chunk as the batch of a stage, and the dead letters of its rejected records, given the topic's number of partitions."""
    batch = decode_chunk(chunk.topic, chunk.records, chunk.values, on=(chunk.partition, partitions))
    dead_letters = [
        build_dead_letter(chunk.topic, chunk.partition, chunk.records[rejected.index], undecodable(rejected.error), redactor)
        for rejected in batch.rejected
    ]
    return StageBatch.of(chunk.topic, batch.frames), dead_letters


def decodable(topic: str, records: Sequence[RawRecord]) -> list[bytes]:
    """Return the values of the records that are not rejected."""
    values = values_of(records)
    rejected = {rejection.index for rejection in decode_values(topic, records, values).rejected}
    return [value for index, value in enumerate(values) if index not in rejected]


def undecodable(error: RecordError) -> Refusal:
    """Return the refusal of a record that cannot be decoded."""
    return Refusal(DECODING, error.code, str(error))


def build_dead_letter(topic: str, partition: int, record: RawRecord, refusal: Refusal, redactor: Redactor) -> bytes:
    """Return the dead letter of a record: its bytes without secrets, its origin and the reason. Every process builds the same one."""
    dead_letters = EncodedRecords()
    admission = Admission(redactor, time_of(record))
    admission.add_dead_letter(dead_letters, RecordOrigin(topic, record.offset, partition), refusal, record.value or b"")
    (message,) = dead_letters.messages[DEAD_LETTERS]
    return message


def time_of(record: RawRecord) -> datetime:
    """Return the time when the broker received the record, within the range of times that a record may have."""
    milliseconds = max(0, min(record.timestamp, _MAX_MILLISECONDS))
    return min(max(_EPOCH + timedelta(milliseconds=milliseconds), EARLIEST), LATEST)


@dataclass
class TopicBatch:
    """The records of a topic in a batch, decoded together from all chunks. The frames have their partitions and offsets as columns."""

    topic: str
    records: list[RawRecord]
    partitions: list[int]
    frames: dict[str, pl.DataFrame]
    rejected: list[Rejected]

    def build_dead_letters(self, redactor: Redactor, conflicts: Iterable[tuple[int, Refusal]] = ()) -> list[bytes]:
        """Return the dead letters of the rejected records, and of these conflicting ones, which are named by their indexes."""
        refusals = [(rejected.index, undecodable(rejected.error)) for rejected in self.rejected]
        return [
            build_dead_letter(self.topic, self.partitions[index], self.records[index], refusal, redactor)
            for index, refusal in (*refusals, *conflicts)
        ]


def decode_topics(chunks: Iterable[Chunk]) -> list[TopicBatch]:
    """Decode chunks of any topics and partitions; frames have the origin of each row in the columns `_partition` and `_offset`."""
    by_topic: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        by_topic[chunk.topic].append(chunk)
    return [_decode_topic(topic, topic_chunks) for topic, topic_chunks in by_topic.items()]


def _decode_topic(topic: str, chunks: Iterable[Chunk]) -> TopicBatch:
    records: list[RawRecord] = []
    values: list[bytes] = []
    partitions: list[int] = []
    for chunk in chunks:
        records += chunk.records
        values += chunk.values
        partitions += [chunk.partition] * len(chunk.records)
    batch = decode_values(topic, records, values)
    origins = pl.DataFrame(
        {"_partition": partitions, "_offset": [record.offset for record in records]},
        schema={"_partition": pl.Int32, "_offset": pl.Int64},
    )
    frames = {name: pl.concat([frame, origins[frame[INDEX]]], how="horizontal") for name, frame in batch.frames.items()}
    return TopicBatch(topic, records, partitions, frames, batch.rejected)


WINDOW = 512
"""Records of a session whose identities are kept."""
ENTRY_BYTES = 16
"""Bytes of a record in a window: eight for the hash of its identity, eight for the hash of its content."""
_SEPARATOR = "\x1f"


@dataclass(slots=True)
class Window:
    """The hashes of a session's newest identities and of their contents, oldest first."""

    contents: dict[int, int]

    @classmethod
    def of(cls, entries: bytes) -> Self:
        """Return the window in a state."""
        hashes = array("Q", entries)
        identities = hashes[::2]
        contents = hashes[1::2]
        return cls(dict(zip(identities, contents, strict=True)))

    def packed(self) -> bytes:
        """Return the entries for the state."""
        newest = list(self.contents.items())[-WINDOW:]
        return array("Q", chain.from_iterable(newest)).tobytes()


@dataclass
class DeduplicationResult:
    """A batch without duplicates, and the windows of its sessions."""

    batch: StageBatch
    windows: dict[str, Window] = field(default_factory=dict)
    conflicts: frozenset[int] = frozenset()
    """Offsets of records whose content differs from the first record of the same identity."""


class _RecordHash(NamedTuple):
    """The hashes of a record."""

    offset: int
    key: str
    identity: int
    content: int


def deduplicate(batch: StageBatch, stored_windows: Mapping[str, bytes]) -> DeduplicationResult:
    """Drop duplicates. `stored_windows` come from the sessions' states; the batch has no record that a state already covers."""
    windows = {key: Window.of(stored_windows.get(key, b"")) for key in batch.keys()}  # noqa: SIM118 - a batch is not a dict
    duplicates = set[int]()
    conflicts = set[int]()
    for record in _hash_records(batch):
        contents = windows[record.key].contents
        if record.identity not in contents:
            contents[record.identity] = record.content
        elif contents[record.identity] == record.content:
            duplicates.add(record.offset)
        else:
            conflicts.add(record.offset)
    if duplicates or conflicts:
        batch = batch.filtered(~pl.col(OFFSET).is_in(list(duplicates | conflicts)))
    return DeduplicationResult(batch, windows, frozenset(conflicts))


def hashes_of(texts: Sequence[bytes]) -> list[int]:
    """Return the hashes of texts as numbers in native byte order, so that they are packed without conversion."""
    return array("Q", b"".join(map(xxhash.xxh3_64_digest, texts))).tolist()


def _hash_records(batch: StageBatch) -> list[_RecordHash]:
    """Return the hashes of each record, in the order of the topic."""
    hashes: list[_RecordHash] = []
    for name, frame in batch.frames.items():
        hashes += _hash_frame(name, frame)
    return sorted(hashes)


def _hash_frame(name: str, frame: pl.DataFrame) -> Iterable[_RecordHash]:
    """Hash the records of one type."""
    schema = schema_of(name)
    texts = [_identity_text(frame, column, name) for column in identity_of(schema)]
    identity_texts = frame.select(
        pl.concat_str([pl.lit(name), *texts], separator=_SEPARATOR, ignore_nulls=True).cast(pl.Binary)
    )
    content_column = CONTENT_COLUMNS.get(name)
    if content_column is None:
        contents = [b""] * frame.height
    else:
        contents = frame[content_column].cast(pl.Binary).fill_null(b"").to_list()
    identities = hashes_of(identity_texts.to_series().to_list())
    return map(_RecordHash, frame[OFFSET].to_list(), frame[KEY].to_list(), identities, hashes_of(contents))


def _identity_text(frame: pl.DataFrame, column: str, name: str) -> pl.Expr:
    """Return a column of the identity as text; times in microseconds since 1970."""
    expression = pl.col(column)
    if column == "revision" and name == "Exchange":
        # The identity of a first revision has no revision, as in the states of versions that had no revisions.
        expression = pl.when(expression > 0).then(expression)
    if frame.schema[column].is_temporal():
        expression = expression.dt.epoch("us")
    return expression.cast(pl.String)
