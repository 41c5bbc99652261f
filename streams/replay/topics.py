"""History on Kafka: each partition of the topic exchanges is a part. Its judgements and scores are copied to tables once, and read there.

Repetitions are dropped by the workers' own rules (`streams.kafka.decoding`); of two records with the same identity and different
content the first counts. The judgements of a session are on the same partition number as its exchanges.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from analytics.store.store import Partition, Store
from audit.times import parse_timestamp
from schemas.errors import InputError, SettingsError
from schemas.lazy import pl
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe, decodable, decode_chunk, deduplicate
from streams.kafka.encryption import decrypter_of, open_encryption
from streams.kafka.reading import PartitionReader, Range, values_of
from streams.replay.history import EXCHANGES, JUDGEMENTS, SCORES, WINDOW_RECORDS, History, Tables, Window, origin_of_tables
from streams.replay.part import open_store
from streams.replay.plan import Origin, Part, ReplayFiles, Scope, Segment
from streams.stage_batches import OFFSET, StageBatch

TOPICS = "topics"
_RECORDS_PER_COPY = 5_000
_FETCH_BYTES = 4 * 1024 * 1024
_OFFSET_OPTION = re.compile(r"(?:(\d{1,6}):)?(\d{1,18})")


def origin_of_topics(connection: KafkaConnection) -> Origin:
    """Return the origin for the topics of a cluster."""
    return Origin(TOPICS, f"{connection.bootstrap} {connection.prefix}".strip())


class TopicHistory(History):
    """One part of a history on Kafka. Repetitions are recognized from its first record on."""

    def __init__(
        self, connection: KafkaConnection, tables: Tables, part: Part, scope: Scope, reframe: Reframe | None = None
    ) -> None:
        """`tables` has the records that `open_topics` copied; `reframe` is applied before decoding."""
        super().__init__(tables, msgspec.structs.replace(part, judgements=tables.ends(JUDGEMENTS)), scope)
        self._connection = connection
        self._reframe = reframe

    async def windows(self, start: int) -> AsyncGenerator[Window]:
        """See `History`. Records before `start` are read again only for their identities."""
        seen: dict[str, bytes] = {}
        (segment,) = self._part.segments
        async with (
            open_encryption(self._connection) as encryption,
            PartitionReader(self._connection, decrypter_of(encryption), max_partition_fetch_bytes=_FETCH_BYTES) as reader,
            aclosing(reader.read_until((EXCHANGES, segment.partition), segment.start, segment.end, WINDOW_RECORDS)) as chunks,
        ):
            async for records, next_offset in chunks:
                values = values_of(records)
                if self._reframe is not None:
                    values = list(await self._reframe(values))
                deduplicated = deduplicate(StageBatch.of(EXCHANGES, decode_chunk(EXCHANGES, records, values).frames), seen)
                seen |= {key: window.packed() for key, window in deduplicated.windows.items()}
                end = next_offset - segment.start
                if end > start:
                    yield Window(deduplicated.batch.filtered(pl.col(OFFSET) >= segment.start + start), end)


async def open_topics(
    connection: KafkaConnection, part: Part, scope: Scope, files: ReplayFiles, reframe: Reframe | None = None
) -> TopicHistory:
    """Open a part's history, with copies of the judgements and scores of its sessions."""
    path = files.copied(part.number)
    with open_store(path) as store:
        for topic, ends in ((JUDGEMENTS, part.judgements), (SCORES, part.scores)):
            for number, end in ends.items():
                await _copy(connection, store, (topic, number), end)
    return TopicHistory(connection, Tables(origin_of_tables(path)), part, scope, reframe)


async def _copy(connection: KafkaConnection, store: Store, partition: Partition, end: int) -> None:
    """Copy a partition's records before an offset. A copy that a killed process began is continued."""
    topic = partition[0]
    with store.transaction() as transaction:
        position = transaction.watermark(TOPICS, topic)
    async with (
        open_encryption(connection) as encryption,
        PartitionReader(connection, decrypter_of(encryption), max_partition_fetch_bytes=_FETCH_BYTES) as reader,
    ):
        start = max(position, (await reader.ranges([partition]))[partition].beginning)
        async with aclosing(reader.read_until(partition, start, end, _RECORDS_PER_COPY)) as chunks:
            async for records, next_offset in chunks:
                with store.transaction() as transaction:
                    transaction.append(topic, decodable(topic, records), skip_known=True)
                    transaction.set_watermark(TOPICS, topic, next_offset)


class Bounds(NamedTuple):
    """The start or the end of reading: offsets, or a time in milliseconds since 1970 by the broker's clock."""

    offsets: Mapping[int | None, int] = {}
    """By partition; the key None is for every partition that is not named."""
    timestamp: int | None = None

    async def apply(self, reader: PartitionReader, ranges: Mapping[Partition, Range], *, at_end: bool) -> dict[Partition, int]:
        """Return the offset in each partition, within its range; without bounds, its beginning or its end."""
        times = {} if self.timestamp is None else await reader.offsets_at(self.timestamp, [*ranges])
        offsets: dict[Partition, int] = {}
        for partition, (beginning, end) in ranges.items():
            default = end if at_end else beginning
            if self.timestamp is None:
                offset = self.offsets.get(partition[1], self.offsets.get(None, default))
            else:
                first_offset = times[partition]
                offset = end if first_offset is None else first_offset
            offsets[partition] = max(beginning, min(offset, end))
        return offsets


def bounds_of(option: str, text: str) -> Bounds:
    """Parse the value of an option: nothing, an offset, PARTITION:OFFSET (several with commas), or a time.

    Raises SettingsError for anything else.
    """
    if not text:
        return Bounds()
    items = text.split(",")
    matches = [_OFFSET_OPTION.fullmatch(item.strip()) for item in items]
    pairs = [(int(match[1]) if match[1] else None, int(match[2])) for match in matches if match is not None]
    if len(pairs) == len(items):
        return Bounds(_offsets_by_partition(option, pairs))
    try:
        moment = parse_timestamp(text)
    except ValueError:
        moment = None
    if moment is None:
        raise SettingsError(
            f"{option}: {text[:64]!r} is neither an offset nor a time",
            hint="Give an offset, PARTITION:OFFSET (several with commas), or an ISO time such as 2026-11-01T12:00:00Z.",
        )
    return Bounds(timestamp=int(moment.timestamp() * 1000))


def _offsets_by_partition(option: str, pairs: Sequence[tuple[int | None, int]]) -> dict[int | None, int]:
    """Return the offsets by partition. Raises SettingsError for two offsets of the same partition."""
    offsets: dict[int | None, int] = {}
    for partition, offset in pairs:
        if partition in offsets:
            name = "every partition that is not named" if partition is None else f"partition {partition}"
            raise SettingsError(
                f"{option}: {name} is given twice, with offset {offsets[partition]} and offset {offset}",
                hint="Give each partition one offset.",
            )
        offsets[partition] = offset
    return offsets


async def parts_of_topics(connection: KafkaConnection, first: Bounds, last: Bounds) -> tuple[Part, ...]:
    """Return a part for each partition with records in the range.

    Raises InputError if a topic is missing, if a named partition has no record at its offset, or if the range is empty.
    """
    count = await asyncio.to_thread(_count_partitions, connection)
    _require_partitions(count, first, last)
    async with PartitionReader(connection) as reader:
        ranges = await reader.ranges([(topic, number) for topic in (EXCHANGES, JUDGEMENTS, SCORES) for number in range(count)])
        exchanges = {partition: offsets for partition, offsets in ranges.items() if partition[0] == EXCHANGES}
        for (_, number), (_, end) in exchanges.items():
            if first.offsets.get(number, 0) > end:
                raise InputError(
                    f"--from-offset: partition {number} of the topic exchanges ends at offset {end}",
                    hint="Name an offset before that, or leave the partition out: it is then read from its beginning.",
                )
        starts = await first.apply(reader, exchanges, at_end=False)
        ends = await last.apply(reader, exchanges, at_end=True)

    def end_of(topic: str, number: int) -> dict[int, int]:
        beginning, end = ranges[topic, number]
        return {number: end} if beginning < end else {}

    parts = tuple(
        Part(
            number,
            (Segment(number, starts[EXCHANGES, number], ends[EXCHANGES, number]),),
            judgements=end_of(JUDGEMENTS, number),
            scores=end_of(SCORES, number),
        )
        for number in range(count)
        if starts[EXCHANGES, number] < ends[EXCHANGES, number]
    )
    if not parts:
        raise InputError("the topic exchanges has no records in this range", hint="See --from-offset and --to-offset.")
    return parts


def _require_partitions(count: int, *bounds: Bounds) -> None:
    """Raise InputError if an offset names a missing partition: all other partitions would be read whole."""
    unknown = sorted(number for bound in bounds for number in bound.offsets if number is not None and number >= count)
    if unknown:
        raise InputError(
            f"the topic exchanges has no partition {unknown[0]}",
            hint=f"It has {count}, numbered from 0: see --from-offset and --to-offset.",
        )


def _count_partitions(connection: KafkaConnection) -> int:
    """Count the partitions of each topic that a replay reads. Raises InputError if a topic is missing, or the counts differ."""
    with TopicAdministration(connection) as administration:
        existing = administration.describe()
    counts: dict[str, int] = {}
    for topic in (EXCHANGES, JUDGEMENTS, SCORES):
        if topic not in existing:
            raise InputError(
                f"{connection.bootstrap}: there is no topic {connection.topic(topic)}",
                hint="Check --kafka and DRIFTLINE_KAFKA_PREFIX.",
            )
        counts[topic] = existing[topic].partitions
    if len(set(counts.values())) > 1:
        differences = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise InputError(
            f"the topics differ in their partitions, so a session is not on the same number everywhere: {differences}",
            hint="`driftline topics check` shows the differences.",
        )
    return counts[EXCHANGES]
