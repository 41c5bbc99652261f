"""What the sink writes: rows and the next positions of a batch, in one transaction.

1. A record whose identity and revision the table has is left out: at least once on the topic, exactly once in the table.
2. What is no record of its topic, or has the identity of another, becomes a dead letter. That is on its topic before the positions move:
   `UntoldError` gives the caller the letters to produce, and nothing has changed; asked again, it lands. So a kill in between produces
   them once more, and they are the same: a letter is told from others by its place. They land as everything does, from their topic.
3. It all runs in one thread at a time, beside the event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from analytics.identity.identity_index import KnownIdentities
from analytics.identity.repetitions import unknown
from analytics.store.store import Store
from analytics.store.transaction import Appended, Partition, Transaction
from audit.redaction.redactor import Redactor
from schemas.codec.arrow import INDEX, decode_batch
from schemas.errors import BrokerError, RecordError
from schemas.lazy.polars import pl
from schemas.registry import schema_of, topics
from streams.kafka.decoding import RejectedRecord, conflict_of, decode_values, letter_of
from streams.kafka.reading import Chunk, Range, RawRecord
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal
from streams.log.ownership import SINK

REMOVED = "removed_by_retention"
log = logging.getLogger(__name__)


class UntoldError(Exception):
    """Dead letters that have to be on their topic first; nothing was landed."""

    def __init__(self, letters: Mapping[str, bytes]) -> None:
        super().__init__(f"{len(letters)} dead letters are not on their topic")
        self.letters = letters
        """By id."""


@dataclass(frozen=True)
class Fetched:
    """A chunk, and its records' values as they are to be decoded."""

    chunk: Chunk
    values: Sequence[bytes]


@dataclass
class _TopicBatch:
    """The records of one topic in a batch: those of all its chunks, decoded together."""

    topic: str
    records: list[RawRecord]
    partitions: list[int]
    frames: dict[str, pl.DataFrame]
    rejected: list[tuple[int, RecordError]]


class SinkWriter:
    """See the module. The only one to write the topics' tables of its store; `topic_name` gives the name of a topic on the cluster."""

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        now: Callable[[], datetime],
        topic_name: Callable[[str], str] = lambda name: name,
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._now = now
        self._topic_name = topic_name
        self.seen = KnownIdentities()
        """Every identity that the tables have, up to the last commit."""
        self.told: set[str] = set()
        """Ids of dead letters that were produced for what is to land next."""
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

    def open(self, ranges: Mapping[Partition, Range]) -> dict[Partition, int]:
        """Return the position to go on from in each partition, as `within` does; one that was never read begins with its first record."""
        stored = self.positions()
        new = {partition: there.beginning for partition, there in ranges.items() if partition not in stored}
        self.begin(new)
        return new | {
            partition: self.within(partition, stored[partition], there)
            for partition, there in ranges.items()
            if partition in stored
        }

    def within(self, partition: Partition, position: int, there: Range) -> int:
        """The position, or the beginning where retention took what was to be read next.

        BrokerError where it lies beyond the end; UntoldError as in `land`.
        """
        self._require_end(partition, position, there)
        if position < there.beginning:
            words = "topic %s, partition %d: retention removed offsets %d to %d before they were read"
            log.error(words, self._topic_name(partition[0]), partition[1], position, there.beginning - 1)
            self.pass_over(partition, position, there.beginning)
        return max(position, there.beginning)

    def check(self, ranges: Mapping[Partition, Range]) -> None:
        """BrokerError when the topics end before what was read of them."""
        for partition, position in self.positions().items():
            if partition in ranges:
                self._require_end(partition, position, ranges[partition])

    def land(self, fetched: Sequence[Fetched], positions: Mapping[Partition, int]) -> None:
        """Land what was fetched and move the positions; UntoldError as above.

        After a failure it may be called again: a commit can fail and yet be durable.
        """
        self.learn()
        self._in_doubt = True
        batches = [self._decoded(topic, of_topic) for topic, of_topic in _by_topic(fetched).items()]
        with self._committing() as transaction:
            landed = [(batch, transaction.land(batch.topic, batch.frames, self.seen)) for batch in batches]
            letters = [letter for batch, appended in landed for letter in self._letters(batch, appended)]
            landing = next((appended.frames for batch, appended in landed if batch.topic == DEAD_LETTERS), {})
            self._require_told(transaction, letters, landing)
            transaction.set_watermarks(SINK, positions)
        for batch, appended in landed:
            self.seen.take_in(batch.topic, appended.frames)
        self._in_doubt = False

    def pass_over(self, partition: Partition, start: int, beginning: int) -> None:
        """Note that a partition's positions from `start` up to `beginning` were gone before they were read, and go on behind them.

        UntoldError as above; as `land`, it may be called again after a failure.
        """
        topic, number = partition
        detail = f"the positions {start} to {beginning - 1} were removed from the topic before they were read: keep its records longer"
        letters = Accepted()
        self.learn()
        self._in_doubt = True
        Admission(self._redactor, self._now()).set_aside(
            letters, Place(topic, start, number), Refusal(SINK, REMOVED, detail), b""
        )
        with self._committing() as transaction:
            self._require_told(transaction, letters.messages[DEAD_LETTERS], {})
            transaction.set_watermarks(SINK, {partition: beginning})
        self._in_doubt = False

    def _require_end(self, partition: Partition, position: int, there: Range) -> None:
        if position > there.end:
            raise BrokerError(
                f"{self._store.path} has read topic {self._topic_name(partition[0])}, partition {partition[1]}, up to offset "
                f"{position}, and it ends at {there.end}: "
                "it is not the topic that the database was filled from, or brokers have lost records",
                hint="Name the cluster and prefix that this database belongs to, or another database with --db.",
            )

    @contextlib.contextmanager
    def _committing(self) -> Iterator[Transaction]:
        """A transaction; letters that were produced for it are forgotten once it is committed, and nothing is in doubt where letters are to be produced."""
        try:
            with self._store.transaction() as transaction:
                yield transaction
        except UntoldError:
            self._in_doubt = False
            raise
        self.told.clear()

    def _require_told(self, transaction: Transaction, letters: Sequence[bytes], landing: Mapping[str, pl.DataFrame]) -> None:
        """UntoldError for letters that are neither in the table, nor `landing` in the transaction, nor told."""
        for name, frame in decode_batch(letters).frames.items() if letters else ():
            schema = schema_of(name)
            fresh, _ = unknown(transaction.connection, schema, frame, DEAD_LETTERS, self.seen)
            if name in landing:
                fresh = fresh.join(landing[name], on=schema.identity, how="anti")
            untold = fresh.filter(~pl.col(*schema.identity).is_in(self.told)).select(*schema.identity, INDEX)
            if untold.height:
                raise UntoldError({letter_id: letters[place] for letter_id, place in untold.rows()})

    def _decoded(self, topic: str, fetched: Sequence[Fetched]) -> _TopicBatch:
        records = [record for part in fetched for record in part.chunk.records]
        partitions = [number for part in fetched for number in itertools.repeat(part.chunk.partition, len(part.chunk.records))]
        batch = decode_values(topic, records, [value for part in fetched for value in part.values])
        places = pl.DataFrame(
            {"_partition": partitions, "_offset": [record.offset for record in records]},
            schema={"_partition": pl.Int32, "_offset": pl.Int64},
        )
        frames = {name: pl.concat([frame, places[frame[INDEX]]], how="horizontal") for name, frame in batch.frames.items()}
        return _TopicBatch(topic, records, partitions, frames, [(record.index, record.error) for record in batch.rejected])

    def _letters(self, batch: _TopicBatch, appended: Appended) -> Iterator[bytes]:
        """The dead letters of what does not land of a topic."""
        for place, error in batch.rejected:
            rejected = RejectedRecord(batch.records[place], error)
            yield from letter_of(batch.topic, batch.partitions[place], rejected, self._redactor).messages[DEAD_LETTERS]
        for place in appended.conflicts:
            letters = conflict_of(batch.topic, batch.partitions[place], batch.records[place], self._redactor)
            yield from letters.messages[DEAD_LETTERS]


def _by_topic(fetched: Sequence[Fetched]) -> dict[str, list[Fetched]]:
    of_topics: dict[str, list[Fetched]] = defaultdict(list)
    for part in fetched:
        of_topics[part.chunk.topic].append(part)
    return of_topics
