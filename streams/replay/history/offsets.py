"""Offsets of the topics a replay reads: given as offsets or times, fixed when it begins."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from analytics.store.transaction import Partition
from audit.times import parse_timestamp
from schemas.errors import InputError, SettingsError
from streams.kafka.administration import TopicAdministration
from streams.kafka.connection import KafkaConnection
from streams.kafka.reading import PartitionReader, Range
from streams.replay.history.table_history import EXCHANGES, JUDGEMENTS, SCORES
from streams.replay.plan import Part, Segment


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
    """Parse the value of an option: nothing, an offset, PARTITION:OFFSET (several with commas), or a time.

    SettingsError for anything else.
    """
    if not text:
        return NO_BOUNDS
    if found := [_OFFSET_OF.fullmatch(one.strip()) for one in text.split(",")]:
        given = [match.groups() for match in found if match is not None]
        if len(given) == len(found):
            return _by_partition(option, [(None if number is None else int(number), int(offset)) for number, offset in given])
    try:
        moment = parse_timestamp(text)
    except ValueError:
        moment = None
    if moment is None:
        raise SettingsError(
            f"{option}: {text[:64]!r} is neither an offset nor a time",
            hint="Give an offset, PARTITION:OFFSET (several with commas), or an ISO time such as 2026-11-01T12:00:00Z.",
        )
    return Bounds({}, int(moment.timestamp() * 1000))


def _by_partition(option: str, given: Sequence[tuple[int | None, int]]) -> Bounds:
    """The offsets by partition; SettingsError for two of one partition: it cannot be told which of them is meant."""
    found: dict[int | None, int] = {}
    for partition, offset in given:
        if partition in found:
            named = "every partition that is not named" if partition is None else f"partition {partition}"
            raise SettingsError(
                f"{option}: {named} is given twice, with offset {found[partition]} and offset {offset}",
                hint="Give each partition one offset.",
            )
        found[partition] = offset
    return Bounds(found)


async def parts_of_topics(connection: KafkaConnection, first: Bounds, last: Bounds) -> tuple[Part, ...]:
    """A part for each partition that has anything in the range.

    InputError when there is no topic, when a partition is named that has nothing at its offset, and when there is nothing in the range.
    """
    places = await asyncio.to_thread(_places, connection)
    _require_partitions(len(places[EXCHANGES]), first, last)
    async with PartitionReader(connection) as reader:
        ranges = await reader.ranges([partition for of_topic in places.values() for partition in of_topic])
        exchanges = {partition: ranges[partition] for partition in places[EXCHANGES]}
        bounded = await _bounded(reader, exchanges, first, last)
    parts = tuple(
        Part(
            number,
            (Segment(number, *segment),),
            judgements=_end_of(ranges, (JUDGEMENTS, number)),
            scores=_end_of(ranges, (SCORES, number)),
        )
        for (_, number), segment in bounded.items()
        if segment.beginning < segment.end
    )
    if not parts:
        raise InputError("the topic exchanges has no records in this range", hint="See --from-offset and --to-offset.")
    return parts


def _require_partitions(count: int, *bounds: Bounds) -> None:
    """InputError when an offset is given of a partition that is not there: the others would be read whole."""
    unknown = sorted(one for bound in bounds for one in bound.offsets if one is not None and one >= count)
    if unknown:
        raise InputError(
            f"the topic exchanges has no partition {unknown[0]}",
            hint=f"It has {count}, numbered from 0: see --from-offset and --to-offset.",
        )


def _places(connection: KafkaConnection) -> dict[str, list[Partition]]:
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
        places[topic] = [(topic, number) for number in range(there[topic].partitions)]
    counts = {topic: len(partitions) for topic, partitions in places.items()}
    if len(set(counts.values())) > 1:
        named = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise InputError(
            f"the topics differ in their partitions, so a session is not on the same number everywhere: {named}",
            hint="`driftline topics check` shows the differences.",
        )
    return places


async def _bounded(
    reader: PartitionReader, ranges: Mapping[Partition, Range], first: Bounds, last: Bounds
) -> dict[Partition, Range]:
    """From where to where each partition is read; what lies beyond what the partition has is cut."""
    for (_, number), there in ranges.items():
        if first.offsets.get(number, 0) > there.end:
            raise InputError(
                f"--from-offset: partition {number} of the topic exchanges ends at offset {there.end}",
                hint="Name an offset before that, or leave the partition out: it is then read from its beginning.",
            )
    starts = await _offsets(reader, ranges, first, {partition: there.beginning for partition, there in ranges.items()})
    ends = await _offsets(reader, ranges, last, {partition: there.end for partition, there in ranges.items()})
    return {partition: Range(starts[partition], ends[partition]) for partition in ranges}


async def _offsets(
    reader: PartitionReader, ranges: Mapping[Partition, Range], bounds: Bounds, otherwise: Mapping[Partition, int]
) -> dict[Partition, int]:
    """The offset that the bounds give each partition, within what it has; `otherwise` is for those that they do not name."""
    offsets: dict[Partition, int] = {}
    for partition in ranges:
        given = bounds.of(partition[1])
        offsets[partition] = otherwise[partition] if given is None else given
    if bounds.timestamp is not None:
        at = await reader.offsets_at(bounds.timestamp, [*ranges])
        offsets = {partition: there.end if (offset := at[partition]) is None else offset for partition, there in ranges.items()}
    return {partition: max(there.beginning, min(offsets[partition], there.end)) for partition, there in ranges.items()}


def _end_of(ranges: Mapping[Partition, Range], partition: Partition) -> dict[int, int]:
    """The end of a partition, by its number, if it holds anything."""
    there = ranges[partition]
    return {partition[1]: there.end} if there.beginning < there.end else {}
