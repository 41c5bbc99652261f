"""History on Kafka: one partition of the topic exchanges; what else a part needs is brought over once.

Repetitions are left out as the workers leave them out (`streams.kafka.deduplication`); of two records with one identity and
other content the first one counts. The judgements of a session are on the same partition number as its exchanges. They are copied to
a file, and looked up there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from analytics.store.store import Store
from schemas.lazy.polars import pl
from schemas.records import Judgement
from streams.judging.recorded_judgements import Subject, recorded_in
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe, decodable, decode_chunk, values_of
from streams.kafka.deduplication import sift
from streams.kafka.reading import PartitionReader, RawRecord
from streams.replay.history.history import WINDOW_RECORDS, Window
from streams.replay.history.table_history import EXCHANGES, JUDGEMENTS, SCORES, origin_of_tables
from streams.replay.part_file import opened
from streams.replay.plan import Origin, Part, ReplayFiles, Segment
from streams.stage_batches import OFFSET, StageBatch

TOPICS = "topics"
_COPIED_AT_ONCE = 5_000
_FETCH_BYTES = 4 * 1024 * 1024


def origin_of_topics(connection: KafkaConnection) -> Origin:
    """The topics of a cluster."""
    return Origin(TOPICS, f"{connection.bootstrap} {connection.prefix}".strip())


class TopicHistory:
    """One part of a history on Kafka; see `streams.replay.history.history.History`. Repetitions are remembered from its first record on."""

    def __init__(
        self, connection: KafkaConnection, part: Part, judgements: Store | None, reframe: Reframe | None = None
    ) -> None:
        """`judgements` is what `copied` has brought of that topic, None: there are none; `reframe` is applied before decoding."""
        self._connection = connection
        self._reframe = reframe
        (self._segment,) = part.segments
        self._judgements = judgements
        self._recorded = None if judgements is None else recorded_in(judgements)

    @property
    def withdrawn(self) -> Collection[Subject]:
        """See `History`."""
        return ()

    async def windows(self, start: int) -> AsyncGenerator[Window]:
        """See `History`. What is before `start` is read again for its identities alone."""
        seen: dict[str, bytes] = {}
        base = self._segment.start
        async with aclosing(_chunks(self._connection, EXCHANGES, self._segment, WINDOW_RECORDS)) as chunks:
            async for records, next_offset in chunks:
                values = values_of(records)
                if self._reframe is not None:
                    values = list(await self._reframe(values))
                sifted = sift(StageBatch.of(EXCHANGES, decode_chunk(EXCHANGES, records, values).frames), seen)
                seen |= {key: window.packed() for key, window in sifted.windows.items()}
                if next_offset - base > start:
                    yield Window(sifted.batch.filtered(pl.col(OFFSET) >= base + start), next_offset - base)

    def recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """See `History`."""
        return {} if self._recorded is None else self._recorded(subjects)

    def close(self) -> None:
        """See `History`."""
        if self._judgements is not None:
            self._judgements.close()


async def open_history(
    connection: KafkaConnection, part: Part, files: ReplayFiles, reframe: Reframe | None = None
) -> TopicHistory:
    """A part's history, with the judgements of its sessions brought over."""
    ends = part.judgements
    judgements = [
        await copied(connection, JUDGEMENTS, number, end, files.copied(JUDGEMENTS, number)) for number, end in ends.items()
    ]
    return TopicHistory(connection, part, judgements[0] if judgements else None, reframe)


async def live_scores(connection: KafkaConnection, part: Part, files: ReplayFiles) -> Origin:
    """The scores that the cluster has of a part's sessions, brought over to tables."""
    path = files.copied(SCORES, part.number)
    for number, end in part.scores.items():
        (await copied(connection, SCORES, number, end, path)).close()
    if not part.scores:
        opened(path).close()
    return origin_of_tables(path)


async def copied(connection: KafkaConnection, topic: str, partition: int, end: int, path: Path) -> Store:
    """A store with what a partition of a topic has before an offset; goes on where a process before this one was killed."""
    store = opened(path)
    try:
        with store.transaction() as transaction:
            start = transaction.watermark(TOPICS, topic)
        async with aclosing(_chunks(connection, topic, Segment(partition, start, end), _COPIED_AT_ONCE)) as chunks:
            async for records, next_offset in chunks:
                with store.transaction() as transaction:
                    transaction.append(topic, decodable(topic, records), skip_known=True)
                    transaction.set_watermark(TOPICS, topic, next_offset)
    except BaseException:
        store.close()
        raise
    return store


async def _chunks(
    connection: KafkaConnection, topic: str, segment: Segment, most: int
) -> AsyncGenerator[tuple[Sequence[RawRecord], int]]:
    """The records of a segment, some at once, and the offset after them; at the end once more without records, for gaps."""
    if segment.start >= segment.end:
        return
    async with PartitionReader(connection, max_partition_fetch_bytes=_FETCH_BYTES) as reader:
        async for records, position in reader.read_until((topic, segment.partition), segment.start, segment.end, most):
            yield records, position
