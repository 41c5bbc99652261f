"""Batches of the sink: rows and the next positions, written in one transaction.

1. A record whose identity and revision the table has is left out: at least once on the topic, exactly once in the table.
2. What is no record of its topic, or has the identity of another, becomes a dead letter. That is on its topic before the positions move:
   `UntoldError` gives the caller the letters to produce, and nothing has changed; asked again, it lands. So a kill in between produces
   them once more, and they are the same: a letter is told from others by its place. They land as everything does, from their topic.
3. Nothing here knows Kafka's clients. It all runs in one thread at a time, beside the event loop.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from analytics.identity.identity_index import KnownIdentities
from analytics.identity.repetitions import unknown
from analytics.store.store import Store
from analytics.store.transaction import Appended, Partition, Transaction
from audit.redaction.redactor import Redactor
from schemas.codec.arrow import INDEX, decode_batch
from schemas.errors import RecordError
from schemas.lazy.polars import pl
from schemas.registry import schema_of, topics
from streams.kafka.values.decoding import RejectedRecord, conflict_of, decode_values, letter_of
from streams.kafka.worker.processing import Chunk, RawRecord
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal
from streams.log.ownership import SINK

REMOVED = "removed_by_retention"


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
class _Part:
    """The records of one topic in a batch: those of all its chunks, decoded together."""

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

    def land(self, fetched: Sequence[Fetched], positions: Mapping[Partition, int]) -> None:
        """Land what was fetched and move the positions; UntoldError as above.

        After a failure it may be called again: a commit can fail and yet be durable.
        """
        self.learn()
        self._in_doubt = True
        parts = [self._decoded(topic, of_topic) for topic, of_topic in _by_topic(fetched).items()]
        with self._committing() as transaction:
            done = [(part, transaction.land(part.topic, part.frames, self.seen)) for part in parts]
            letters = [letter for part, landed in done for letter in self._letters(part, landed)]
            landing = next((landed.frames for part, landed in done if part.topic == DEAD_LETTERS), {})
            self._require_told(transaction, letters, landing)
            transaction.set_watermarks(SINK, positions)
        for part, landed in done:
            self.seen.take_in(part.topic, landed.frames)
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
