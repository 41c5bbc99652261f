"""History on Kafka: one partition of the topic exchanges, read with aiokafka; what else a part needs is brought over once.

1. The range of offsets is fixed by the plan, so it ends while others go on producing.
2. The same record again is left out, as the workers leave it out: each session remembers its newest records (`streams.kafka.repetitions`).
   What has the identity of another record and other content is left out, too: the first one counts.
3. The judgements of a session are on the same partition number as its exchanges. They are copied to a file, and looked up there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import polars as pl
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from analytics.store import Store
from audit.times import parse_timestamp
from schemas.errors import BrokerError, InputError, SettingsError
from schemas.records import Judgement
from streams.batches import OFFSET, StageBatch
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import decode_chunk, decode_values, values_of
from streams.kafka.repetitions import sift
from streams.recorded import Subject, recorded_in
from streams.replay.history import WINDOW_RECORDS, Window
from streams.replay.part_file import opened
from streams.replay.plan import Origin, Part, ReplayFiles, Segment
from streams.replay.tables import EXCHANGES, JUDGEMENTS, SCORES, origin_of_tables

TOPICS = "topics"
QUIET_SECONDS = 60.0
"""How long the cluster may be silent in the middle of a partition before that is an error."""
_POLL_MS = 1000
_COPIED_AT_ONCE = 5_000
_CALL_MS = 30_000
_FETCH_BYTES = 4 * 1024 * 1024


class Bounds(NamedTuple):
    """From where to where a partition is read: an offset, or a time in milliseconds since 1970 by the broker's clock."""

    offsets: Mapping[int | None, int]
    """By partition; None is for every one that is not named."""
    timestamp: int | None = None

    def of(self, partition: int) -> int | None:
        """The offset that was given for a partition; None where there is none."""
        return self.offsets.get(partition, self.offsets.get(None))


NO_BOUNDS = Bounds({})
_OFFSET_OF = re.compile(r"(?:(\d{1,6}):)?(\d{1,18})")


def bounds_of(option: str, text: str) -> Bounds:
    """What an option says: nothing, an offset, PARTITION:OFFSET (several with commas), or a time. SettingsError for all else."""
    if not text:
        return NO_BOUNDS
    if found := [_OFFSET_OF.fullmatch(one.strip()) for one in text.split(",")]:
        given = [match.groups() for match in found if match is not None]
        if len(given) == len(found):
            return Bounds({None if number is None else int(number): int(offset) for number, offset in given})
    try:
        moment = parse_timestamp(text)
    except ValueError:
        moment = None
    if moment is None:
        raise SettingsError(
            f"{option}: {text[:64]!r} is no offset and no time",
            hint="Give an offset, PARTITION:OFFSET (several with commas), or an ISO time such as 2026-11-01T12:00:00Z.",
        )
    return Bounds({}, int(moment.timestamp() * 1000))


async def parts_of_topics(connection: KafkaConnection, first: Bounds, last: Bounds) -> tuple[Part, ...]:
    """A part for each partition that has anything in the range. InputError when there is no topic, or nothing in the range."""
    places = await asyncio.to_thread(_places, connection)
    async with _consumer(connection) as consumer:
        starts, ends = await _range(consumer, places[EXCHANGES], first, last)
        judged, scored = await _ends(consumer, places[JUDGEMENTS]), await _ends(consumer, places[SCORES])
    parts = tuple(
        Part(number, (Segment(number, start, end),), judgements=_of(judged, number), scores=_of(scored, number))
        for number, start, end in ((one.partition, starts[one], ends[one]) for one in places[EXCHANGES])
        if start < end
    )
    if not parts:
        raise InputError("the topic exchanges has nothing in this range", hint="See --from-offset and --to-offset.")
    return parts


def origin_of_topics(connection: KafkaConnection) -> Origin:
    """The topics of a cluster."""
    return Origin(TOPICS, f"{connection.bootstrap} {connection.prefix}".strip())


class TopicHistory:
    """One part of a history on Kafka; see `streams.replay.history.History`. Repetitions are remembered from its first record on."""

    def __init__(self, connection: KafkaConnection, part: Part, judgements: Store | None) -> None:
        """`judgements` is what `copied` has brought of that topic; None: there are none."""
        self._connection = connection
        (self._segment,) = part.segments
        self._judgements = judgements
        self._recorded = None if judgements is None else recorded_in(judgements)

    async def windows(self, start: int) -> AsyncGenerator[Window]:
        """See `History`. What is before `start` is read again for its identities alone."""
        seen: dict[str, bytes] = {}
        base = self._segment.start
        async with aclosing(_chunks(self._connection, EXCHANGES, self._segment, WINDOW_RECORDS)) as chunks:
            async for records, next_offset in chunks:
                sifted = sift(StageBatch.of(EXCHANGES, decode_chunk(EXCHANGES, records).frames), seen)
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


async def open_history(connection: KafkaConnection, part: Part, files: ReplayFiles) -> TopicHistory:
    """A part's history, with the judgements of its sessions brought over."""
    ends = part.judgements
    judgements = [
        await copied(connection, JUDGEMENTS, number, end, files.copied(JUDGEMENTS, number)) for number, end in ends.items()
    ]
    return TopicHistory(connection, part, judgements[0] if judgements else None)


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
                values = values_of(records)
                rejected = {one.index for one in decode_values(topic, values).rejected}
                with store.transaction() as transaction:
                    good = [value for place, value in enumerate(values) if place not in rejected]
                    transaction.append(topic, good, skip_known=True)
                    transaction.set_watermark(TOPICS, topic, next_offset)
    except BaseException:
        store.close()
        raise
    return store


async def _chunks(
    connection: KafkaConnection, topic: str, segment: Segment, most: int
) -> AsyncGenerator[tuple[list[ConsumerRecord], int]]:
    """The records of a segment, some at once, and the offset after them; at the end once more without records, for gaps."""
    if segment.start >= segment.end:
        return
    place = TopicPartition(connection.topic(topic), segment.partition)
    async with _consumer(connection) as consumer:
        consumer.assign([place])
        consumer.seek(place, segment.start)
        loop = asyncio.get_running_loop()
        position, heard_at = segment.start, loop.time()
        while position < segment.end:
            fetched = await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=most)
            records = [one for one in fetched.get(place, ()) if one.offset < segment.end]
            reached = min(await consumer.position(place), segment.end)
            if reached > position:
                position, heard_at = reached, loop.time()
                yield records, position
            elif loop.time() > heard_at + QUIET_SECONDS:
                raise BrokerError(
                    f"{place.topic}/{place.partition}: nothing came from offset {position} on for {QUIET_SECONDS:g} s, {segment.end} is the end",
                )


@asynccontextmanager
async def _consumer(connection: KafkaConnection) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group; BrokerError when the cluster cannot be reached or refuses."""
    consumer = AIOKafkaConsumer(
        **connection.for_aiokafka(),
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        request_timeout_ms=_CALL_MS,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    try:
        await consumer.start()
        yield consumer
    except KafkaError as error:
        raise BrokerError(f"{connection.bootstrap}: {type(error).__name__}: {error}") from error
    finally:
        await consumer.stop()


def _places(connection: KafkaConnection) -> dict[str, list[TopicPartition]]:
    """The partitions of each topic that a replay reads; InputError when one is not there."""
    with TopicAdministration(connection) as administration:
        there = administration.describe()
    places = {}
    for topic in (EXCHANGES, JUDGEMENTS, SCORES):
        name = connection.topic(topic)
        if topic not in there:
            raise InputError(
                f"{connection.bootstrap}: there is no topic {name}", hint="Check --kafka and DRIFTLINE_KAFKA_PREFIX."
            )
        places[topic] = [TopicPartition(name, number) for number in range(there[topic].partitions)]
    counts = {topic: len(partitions) for topic, partitions in places.items()}
    if len(set(counts.values())) > 1:
        named = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise InputError(
            f"the topics differ in their partitions, so a session is not on the same number everywhere: {named}",
            hint="`driftline topics check` says what does not fit.",
        )
    return places


async def _range(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], first: Bounds, last: Bounds
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """From where to where each partition is read; what lies beyond what the partition has is cut."""
    earliest, latest = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    found = []
    for bounds, otherwise in ((first, earliest), (last, latest)):
        offsets = {one: otherwise[one] if (given := bounds.of(one.partition)) is None else given for one in places}
        if bounds.timestamp is not None:
            at = await consumer.offsets_for_times(dict.fromkeys(places, bounds.timestamp))
            offsets = {one: latest[one] if (there := at.get(one)) is None else there.offset for one in places}
        found.append({one: max(earliest[one], min(offset, latest[one])) for one, offset in offsets.items()})
    return found[0], found[1]


async def _ends(consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> dict[int, int]:
    """The end of each partition that holds anything."""
    earliest, latest = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    return {one.partition: latest[one] for one in places if earliest[one] < latest[one]}


def _of(ends: Mapping[int, int], number: int) -> dict[int, int]:
    return {number: ends[number]} if number in ends else {}
