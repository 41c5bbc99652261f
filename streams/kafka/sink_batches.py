"""What was read from topics, into their tables: rows and the positions to go on from in one transaction.

1. A record whose identity and revision the table has is left out: at least once on the topic, exactly once in the table.
2. What is no record of its topic, or has the identity of another, becomes a dead letter in the same transaction. Such a letter is on no
   topic; it is told from others by its place, so that a rebuild makes the same one.
3. Nothing here knows Kafka's clients. It all runs in one thread at a time, beside the event loop.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from analytics.known import KnownIdentities
from analytics.store import Store
from analytics.transaction import MADE_HERE, Appended, Partition, Transaction
from audit.redaction import Redactor
from schemas.arrow import INDEX, decode_batch
from schemas.errors import RecordError
from schemas.registry import schema_of, topics
from streams.admission import DEAD_LETTERS, Accepted, Door, Place, Refusal
from streams.feeding import SINK
from streams.kafka.decoding import RejectedRecord, conflict_of, decode_values, letter_of
from streams.kafka.processing import Chunk, RawRecord

REMOVED = "removed_by_retention"


@dataclass(frozen=True)
class Fetched:
    """A chunk, and its records' values as they are to be decoded."""

    chunk: Chunk
    values: Sequence[bytes]


@dataclass
class _Part:
    """What a batch holds of one topic: the records of all its chunks, decoded together."""

    topic: str
    records: list[RawRecord]
    partitions: list[int]
    frames: dict[str, pl.DataFrame]
    rejected: list[tuple[int, RecordError]] = field(default_factory=list)


class SinkWriter:
    """See the module. The only one to write the topics' tables of its store."""

    def __init__(self, store: Store, redactor: Redactor, now: Callable[[], datetime]) -> None:
        self._store = store
        self._redactor = redactor
        self._now = now
        self.seen = KnownIdentities()
        """Every identity that the tables have, up to the last commit."""
        self._in_doubt = True

    def learn(self) -> None:
        """Read the identities that the tables have, where that was not done since the start or the last failure."""
        if not self._in_doubt:
            return
        seen = KnownIdentities()
        with self._store.transaction() as transaction:
            for topic in topics():
                transaction.learn(topic, seen)
        # Whoever asks meanwhile still asks the one before.
        self.seen = seen
        self._in_doubt = False

    def positions(self) -> dict[Partition, int]:
        """The position to go on from in each partition that was ever read."""
        with self._store.transaction() as transaction:
            return transaction.watermarks(SINK)

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Note where partitions are read from that never were."""
        with self._store.transaction() as transaction:
            transaction.set_watermarks(SINK, positions)

    def land(self, fetched: Sequence[Fetched], positions: Mapping[Partition, int]) -> None:
        """Land what was fetched and move the positions. After a failure it may be called again: a commit can fail and yet be durable."""
        self.learn()
        self._in_doubt = True
        parts = [self._decoded(topic, of_topic) for topic, of_topic in _by_topic(fetched).items()]
        with self._store.transaction() as transaction:
            done = [(part, transaction.land(part.topic, part.frames, self.seen)) for part in parts]
            letters = [letter for part, landed in done for letter in self._letters(part, landed)]
            landing = next((landed.frames for part, landed in done if part.topic == DEAD_LETTERS), {})
            made = _land_letters(transaction, letters, self.seen, landing)
            transaction.set_watermarks(SINK, positions)
        for topic, landed in [*((part.topic, landed) for part, landed in done), (DEAD_LETTERS, made)]:
            self.seen.take_in(topic, landed.frames)
        self._in_doubt = False

    def pass_over(self, partition: Partition, start: int, beginning: int) -> None:
        """Note that a partition's positions from `start` up to `beginning` were gone before they were read, and go on behind them.

        As `land`, it may be called again after a failure.
        """
        topic, number = partition
        detail = f"the positions {start} to {beginning - 1} were removed from the topic before they were read: keep its records longer"
        letters = Accepted()
        self.learn()
        self._in_doubt = True
        Door(self._redactor, self._now()).set_aside(letters, Place(topic, start, number), Refusal(SINK, REMOVED, detail), b"")
        with self._store.transaction() as transaction:
            made = _land_letters(transaction, letters.messages[DEAD_LETTERS], self.seen, {})
            transaction.set_watermarks(SINK, {partition: beginning})
        self.seen.take_in(DEAD_LETTERS, made.frames)
        self._in_doubt = False

    def _decoded(self, topic: str, fetched: Sequence[Fetched]) -> _Part:
        records = [record for one in fetched for record in one.chunk.records]
        partitions = [number for one in fetched for number in itertools.repeat(one.chunk.partition, len(one.chunk.records))]
        batch = decode_values(topic, records, [value for one in fetched for value in one.values])
        places = pl.DataFrame(
            {"_partition": partitions, "_offset": [record.offset for record in records]},
            schema={"_partition": pl.Int32, "_offset": pl.Int64},
        )
        frames = {name: pl.concat([frame, places[frame[INDEX]]], how="horizontal") for name, frame in batch.frames.items()}
        return _Part(topic, records, partitions, frames, [(one.index, one.error) for one in batch.rejected])

    def _letters(self, part: _Part, landed: Appended) -> Iterator[bytes]:
        """The dead letters of what does not land of a topic."""
        for place, error in part.rejected:
            rejected = RejectedRecord(part.records[place], error)
            yield from letter_of(part.topic, part.partitions[place], rejected, self._redactor).messages[DEAD_LETTERS]
        for place in landed.conflicts:
            found = conflict_of(part.topic, part.partitions[place], part.records[place], self._redactor)
            yield from found.messages[DEAD_LETTERS]


def _by_topic(fetched: Sequence[Fetched]) -> dict[str, list[Fetched]]:
    found: dict[str, list[Fetched]] = defaultdict(list)
    for one in fetched:
        found[one.chunk.topic].append(one)
    return found


def _land_letters(
    transaction: Transaction, letters: Sequence[bytes], seen: KnownIdentities, landing: Mapping[str, pl.DataFrame]
) -> Appended:
    """Land dead letters that are on no topic, but for those that are `landing` in the same transaction, because a worker made them, too."""
    if not letters:
        return Appended()
    end = transaction.end_of(DEAD_LETTERS)
    places = [pl.lit(MADE_HERE, pl.Int32).alias("_partition"), (pl.col(INDEX).cast(pl.Int64) + end).alias("_offset")]
    frames = {name: frame.with_columns(places) for name, frame in decode_batch(letters).frames.items()}
    others = {
        name: frame.join(landing[name], on=schema_of(name).identity, how="anti") if name in landing else frame
        for name, frame in frames.items()
    }
    return transaction.land(DEAD_LETTERS, others, seen)
