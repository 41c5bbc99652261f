"""The records of a lake as the beginning of the topics: a sink fills its tables from it, and reads on from the topics.

1. Batches come topic by topic, erasures first, each with the rows between two offsets in every partition, in their order. They have the
   origins that they have on the topics, so the sink writes them as it writes records from Kafka.
2. The next offsets of a batch are those from which the sink continues, also after a kill, whether from the lake or from the topics.
3. The lake has accepted each row, so none is rejected. It may have a record twice, or two records of one identity: the sink drops the one,
   and makes a dead letter of the other, whose bytes are those that the topic had if the version of the schema is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from analytics.deletion.deleting import ERASURES
from analytics.lake import Lake, record_types, time_column
from analytics.store.store import Partition
from audit.redaction import Redactor
from schemas.codec.arrow import INDEX, rows_as_records
from schemas.codec.single_object import encode
from schemas.lazy import pl
from schemas.registry import topics
from streams.kafka.decoding import build_dead_letter
from streams.kafka.encryption import TextEncryption
from streams.lake.encrypted_rows import decrypt_rows
from streams.log.admission import Refusal

BATCH_ROWS = 50_000
"""About how many rows a batch has."""


class _StoredRecord(NamedTuple):
    """A row as the record that the broker had; see `streams.kafka.reading.RawRecord`."""

    offset: int
    timestamp: int
    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True)
class LakeBatch:
    """Rows of a topic by record type, and the next offset of each partition after them."""

    topic: str
    frames: Mapping[str, pl.DataFrame]
    positions: Mapping[Partition, int]

    def build_dead_letters(self, redactor: Redactor, conflicts: Iterable[tuple[int, Refusal]] = ()) -> list[bytes]:
        """Return the dead letters of conflicting rows, which are named by their indexes."""
        refusals = dict(conflicts)
        letters: list[bytes] = []
        for name, frame in self.frames.items():
            rows = frame.filter(pl.col(INDEX).is_in(list(refusals)))
            origins = rows.select(INDEX, "_partition", "_offset").iter_rows()
            for record, (index, partition, offset) in zip(rows_as_records(name, rows), origins, strict=True):
                moment = getattr(record, time_column(name) or "", None)
                timestamp = int(moment.timestamp() * 1000) if isinstance(moment, datetime) else 0
                stored = _StoredRecord(offset, timestamp, encode(record))
                letters.append(build_dead_letter(self.topic, partition, stored, refusals[index], redactor))
        return letters


class LakeHistory:
    """See the module."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.encryption: TextEncryption | None = None
        """Decrypts encrypted rows; set by the sink."""
        self.name = lake.root
        """The lake, for messages."""

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the next offset of each partition that the lake has read. Raises LakeError if there is no lake."""
        self._lake.require()
        self._lake.reload()
        return self._lake.positions(partitions)

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset of the first row of each partition. A partition without rows is missing. Raises LakeError."""
        return self._lake.starts(partitions)

    def batches(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[LakeBatch]:
        """Yield the rows from these positions up to these ends. Raises LakeError if a file cannot be read."""
        for topic in (ERASURES, *(topic for topic in topics() if topic != ERASURES)):
            starts = {
                partition: positions.get(partition, 0)
                for partition, end in ends.items()
                if partition[0] == topic and positions.get(partition, 0) < end
            }
            if starts:
                yield from self._read_topic(topic, starts, {partition: ends[partition] for partition in starts})

    def _read_topic(self, topic: str, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Iterator[LakeBatch]:
        """Yield the rows of a topic, in steps of so many offsets of every partition that a batch has about `BATCH_ROWS`."""
        last = max(ends.values())
        lowest = self._lake.first_offset(topic)
        # Retention leaves no rows before the lowest offset, so begin there.
        first = max(min(starts.values()), last if lowest is None else lowest)
        step = max(1, BATCH_ROWS // len(starts))
        while True:
            until = first + step
            frames = self._read_rows(topic, starts, ends, first, until)
            yield LakeBatch(topic, frames, {each: min(max(until, start), ends[each]) for each, start in starts.items()})
            if until >= last:
                return
            first = until

    def _read_rows(
        self, topic: str, starts: Mapping[Partition, int], ends: Mapping[Partition, int], first: int, until: int
    ) -> dict[str, pl.DataFrame]:
        """Return the rows of a topic from offset `first` up to `until`, by record type, with their indexes in the batch."""
        partitions = " OR ".join(
            f"(_partition = {number} AND _offset >= {start} AND _offset < {ends[topic, number]})"
            for (_, number), start in starts.items()
        )
        # Delta skips files by the first two conditions.
        condition = f"_offset >= {first} AND _offset < {until} AND _topic = '{topic}' AND ({partitions})"
        frames: dict[str, pl.DataFrame] = {}
        rows = 0
        for name in record_types()[topic]:
            frame = decrypt_rows(name, topic, self._lake.read(name, condition), self.encryption).rows.drop("_topic")
            if frame.height:
                frames[name] = frame.with_columns(pl.int_range(rows, rows + pl.len(), dtype=pl.Int64).alias(INDEX))
                rows += frame.height
        return frames
