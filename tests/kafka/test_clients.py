"""Reading with aiokafka's consumers: what our own readers get is what any consumer gets, in fewer fields."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from streams.kafka.reading import as_parsed

PLACE = TopicPartition("exchanges", 3)
RECORDS = [(b"a", b"one"), (None, b"two"), (b"b", None), (b"", b""), (b"c", b"x" * 300)]


def batches() -> bytes:
    """Two batches of a partition as a broker answers them, the second one after a gap."""
    answer = b""
    for base, codec in ((5, 0), (40, 3)):
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 16)
        for offset, (key, value) in enumerate(RECORDS):
            assert builder.append(offset, 1_700_000_000_000 + offset, key, value, [("header", b"h")])
        answer += base.to_bytes(8, "big") + bytes(builder.build())[8:]
    return answer


def fetched(deserializer: Callable[[bytes], bytes] | None) -> fetcher.FetchResult:
    """What a consumer has fetched and not yet given out, from offset 6 on."""
    records = fetcher.PartitionRecords(PLACE, MemoryRecords(batches()), [], 6, None, deserializer, True, fetcher.READ_COMMITTED)
    state = SimpleNamespace(paused=False, position=6)
    state.consumed_to = lambda position: setattr(state, "position", position)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    return fetcher.FetchResult(PLACE, assignment=assignment, partition_records=records, backoff=0)


def told(records: list[Any]) -> list[tuple[Any, ...]]:
    """What a stage looks at."""
    return [(one.offset, one.timestamp, one.key, one.value) for one in records]


@pytest.mark.parametrize("deserializer", [None, as_parsed])
def test_a_reader_gets_every_record_from_its_position_on(deserializer: Callable[[bytes], bytes] | None) -> None:
    """Whether records are copied or given as they are parsed must not show: keys, values, tombstones, times, offsets with gaps."""
    expected = [
        (base + offset, 1_700_000_000_000 + offset, *RECORDS[offset]) for base in (5, 40) for offset in range(len(RECORDS))
    ][1:]
    assert expected == told(fetched(deserializer).getall())


@pytest.mark.parametrize("most", [1, 4, 9, 10])
def test_records_come_in_parts_of_any_size_and_each_once(most: int) -> None:
    """A reader that takes a few at a time goes on where it was, and its position is behind what it has got."""
    result, taken = fetched(as_parsed), list[Any]()
    while result.has_more():
        part = result.getall(most)
        assert len(part) <= most
        taken += part
        assert not part or result._assignment.state_value(PLACE).position == (45 if len(taken) == 9 else part[-1].offset + 1)
    assert told(fetched(as_parsed).getall()) == told(taken)
