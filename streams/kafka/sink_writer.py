"""The sink's transaction: the rows and the next positions of a batch.

1. A record is skipped if the table has its identity and revision: at least once on the topic, exactly once in the table.
2. A value that is not a record of its topic, or that conflicts with a record of the same identity, becomes a dead letter. The dead
   letter is on its topic before the positions advance: `UntoldError` rolls the transaction back and gives the caller the dead letters
   to produce; the next try commits. A kill in between, or a rebuild, produces the same dead letters again, because their ids are derived
   from the origin of the value. Like all records, they reach the tables from their topic.
3. All of this runs in one thread at a time, beside the event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from analytics.identity.identity_index import KnownIdentities
from analytics.store.store import Store
from analytics.store.transaction import Appended, Partition, Transaction
from audit.redaction import Redactor
from schemas.codec.arrow import INDEX, Rejected
from schemas.codec.single_object import decode
from schemas.errors import BrokerError
from schemas.lazy import pl
from schemas.records import DeadLetter
from schemas.registry import topics
from streams.kafka.decoding import CONFLICT, decode_values, letter_of, undecodable
from streams.kafka.reading import Chunk, Range, RawRecord
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal
from streams.log.ownership import SINK

REMOVED = "removed_by_retention"
log = logging.getLogger(__name__)


class UntoldError(Exception):
    """Dead letters that must be produced first; the transaction was rolled back."""

    def __init__(self, letters: Mapping[str, bytes]) -> None:
        super().__init__(f"{len(letters)} dead letters are not on their topic")
        self.letters = letters
        """The dead letters, encoded, by id."""


@dataclass
class _TopicBatch:
    """The records of one topic in a batch: those of all its chunks, decoded together."""

    topic: str
    records: list[RawRecord]
    partitions: list[int]
    frames: dict[str, pl.DataFrame]
    rejected: list[Rejected]


class SinkWriter:
    """See the module. The only writer of the topics' tables in its store; `topic_name` gives the name of a topic on the cluster."""

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
        """Ids of dead letters that were produced for the next transaction."""
        self._in_doubt = True

    def learn(self) -> None:
        """Read the identities that the tables have, unless that was done since the start and the last failure."""
        if not self._in_doubt:
            return
        seen = KnownIdentities()
        with self._store.transaction() as transaction:
            for topic in topics():
                transaction.learn(topic, seen)
        # Until here, concurrent callers use the previous object.
        self.seen = seen
        self._in_doubt = False

    def positions(self) -> dict[Partition, int]:
        """The next position in each partition that was ever read."""
        with self._store.transaction() as transaction:
            return transaction.watermarks(SINK)

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Store the first positions of new partitions."""
        with self._store.transaction() as transaction:
            transaction.set_watermarks(SINK, positions)

    def open(self, ranges: Mapping[Partition, Range]) -> dict[Partition, int]:
        """Return the next position in each partition, as `within` does; a new partition begins with its first record."""
        stored = self.positions()
        new = {partition: there.beginning for partition, there in ranges.items() if partition not in stored}
        self.begin(new)
        return new | {
            partition: self.within(partition, stored[partition], there)
            for partition, there in ranges.items()
            if partition in stored
        }

    def within(self, partition: Partition, position: int, there: Range) -> int:
        """The position, or the beginning of the partition if retention removed the next records.

        BrokerError if it lies beyond the end; UntoldError as in `land`.
        """
        self._require_end(partition, position, there)
        if position < there.beginning:
            message = "topic %s, partition %d: retention removed offsets %d to %d before they were read"
            log.error(message, self._topic_name(partition[0]), partition[1], position, there.beginning - 1)
            self.pass_over(partition, position, there.beginning)
        return max(position, there.beginning)

    def check(self, ranges: Mapping[Partition, Range]) -> None:
        """BrokerError when a topic ends before its position."""
        for partition, position in self.positions().items():
            if partition in ranges:
                self._require_end(partition, position, ranges[partition])

    def land(self, chunks: Sequence[Chunk], positions: Mapping[Partition, int]) -> None:
        """Write fetched records and advance the positions; UntoldError as above.

        It may be called again after a failure: a commit can fail and still be durable.
        """
        batches = [self._decoded(topic, of_topic) for topic, of_topic in _by_topic(chunks).items()]
        with self._committing() as transaction:
            landed = [(batch, transaction.land(batch.topic, batch.frames, self.seen)) for batch in batches]
            self._require_told([letter for batch, appended in landed for letter in self._letters(batch, appended)])
            transaction.set_watermarks(SINK, positions)
        for batch, appended in landed:
            self.seen.take_in(batch.topic, appended.frames)
        self._in_doubt = False

    def pass_over(self, partition: Partition, start: int, beginning: int) -> None:
        """Record that a partition's positions from `start` up to `beginning` were removed unread, and continue after them.

        UntoldError as above; like `land`, it may be called again after a failure.
        """
        topic, number = partition
        detail = f"the positions {start} to {beginning - 1} were removed from the topic before they were read: keep its records longer"
        letters = Accepted()
        Admission(self._redactor, self._now()).set_aside(
            letters, Place(topic, start, number), Refusal(SINK, REMOVED, detail), b""
        )
        with self._committing() as transaction:
            self._require_told(letters.messages[DEAD_LETTERS])
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
        """A transaction. Whether it is durable is in doubt until the caller says otherwise, except after UntoldError."""
        self.learn()
        self._in_doubt = True
        try:
            with self._store.transaction() as transaction:
                yield transaction
        except UntoldError:
            self._in_doubt = False
            raise
        self.told.clear()

    def _require_told(self, letters: Sequence[bytes]) -> None:
        """UntoldError for dead letters that were not produced."""
        by_id = {cast("DeadLetter", decode(letter)).dead_letter_id: letter for letter in letters}
        if untold := {letter_id: letter for letter_id, letter in by_id.items() if letter_id not in self.told}:
            raise UntoldError(untold)

    def _decoded(self, topic: str, chunks: Sequence[Chunk]) -> _TopicBatch:
        records = [record for chunk in chunks for record in chunk.records]
        partitions = [number for chunk in chunks for number in itertools.repeat(chunk.partition, len(chunk.records))]
        batch = decode_values(topic, records, [value for chunk in chunks for value in chunk.values])
        places = pl.DataFrame(
            {"_partition": partitions, "_offset": [record.offset for record in records]},
            schema={"_partition": pl.Int32, "_offset": pl.Int64},
        )
        frames = {name: pl.concat([frame, places[frame[INDEX]]], how="horizontal") for name, frame in batch.frames.items()}
        return _TopicBatch(topic, records, partitions, frames, batch.rejected)

    def _letters(self, batch: _TopicBatch, appended: Appended) -> Iterator[bytes]:
        """The dead letters of a topic's rejected and conflicting records."""
        refusals = [(rejected.index, undecodable(rejected.error)) for rejected in batch.rejected]
        for index, refusal in (*refusals, *((index, CONFLICT) for index in appended.conflicts)):
            yield letter_of(batch.topic, batch.partitions[index], batch.records[index], refusal, self._redactor)


def _by_topic(chunks: Sequence[Chunk]) -> dict[str, list[Chunk]]:
    of_topics: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        of_topics[chunk.topic].append(chunk)
    return of_topics
