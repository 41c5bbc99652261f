"""Batches: the columns are what each message says by itself, whatever its neighbours are."""

from __future__ import annotations

import io
import itertools
import math
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import fastavro
import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import examples

from schemas.bounds import MAX_RECORD_BYTES
from schemas.codec import arrow
from schemas.codec.arrow import INDEX, ArrowStream, decode_batch, decode_own, empty_frame, rows_as_records
from schemas.codec.single_object import PREFIX_BYTES, decode, decode_fields, encode
from schemas.errors import BoundsError, RecordError
from schemas.records import RECORD_TYPES, DimensionScore, Record
from schemas.registry import MARKER, build_schema, schema_of

Encoder = Callable[[Iterable[Record]], list[bytes]]
Damage = Callable[[Sequence[bytes], int], Iterator[bytes]]


def compare_with_single_decoding(messages: Sequence[bytes]) -> set[int]:
    """Assert that a batch decodes like its messages one by one; return the indexes of the rejected ones."""
    batch = decode_batch(messages)
    rejected = {item.index: item.error for item in batch.rejected}
    assert [item.index for item in batch.rejected] == sorted(rejected)
    decoded: dict[int, Record] = {}
    for name, frame in batch.frames.items():
        assert frame.columns == [*(field["name"] for field in schema_of(name).fields), INDEX]
        indexes = frame[INDEX].to_list()
        assert indexes == sorted(indexes)
        records = list(rows_as_records(name, frame))
        decoded |= zip(indexes, records, strict=True)
    assert len(messages) == len(decoded) + len(rejected)
    expected = {index: decode_or_error(message) for index, message in enumerate(messages)}
    assert expected == decoded | {index: (type(error), str(error)) for index, error in rejected.items()}
    return set(rejected)


def decode_or_error(message: bytes) -> Record | tuple[type[RecordError], str]:
    """Return the record of a message, or type and text of its error."""
    try:
        return decode(message)
    except RecordError as error:
        return type(error), str(error)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_batch_is_its_records(
    record_name: str, strategies: dict[str, st.SearchStrategy[Record]], data: st.DataObject
) -> None:
    """Columns and single records must have the same values."""
    messages = [encode(record) for record in data.draw(st.lists(strategies[record_name], min_size=1, max_size=5))]
    assert compare_with_single_decoding(messages) == set()


def test_types_of_every_kind_share_a_batch(samples: Any, encode_all: Encoder) -> None:
    """A topic has several record types, whose order must be kept."""
    messages = [message for name in sorted(RECORD_TYPES) for message in encode_all(samples.records(name, 60))]
    random.Random(5).shuffle(messages)
    assert compare_with_single_decoding(messages) == set()


def test_no_messages_are_an_empty_batch() -> None:
    """Most polls return nothing."""
    batch = decode_batch([])
    assert batch.frames == {}
    assert batch.rejected == []


def test_only_damaged_messages_are_rejected(record_name: str, samples: Any, encode_all: Encoder, damaged: Damage) -> None:
    """Bodies have no length field, so one short body would shift all later ones unless every end is checked."""
    rng = random.Random(11)
    rejected = 0
    for round_number in range(4):
        messages = encode_all(samples.records(record_name, 50))
        damaged_messages = damaged(messages, round_number)
        for index in rng.sample(range(50), rng.choice([1, 2, 10, 50])):
            messages[index] = next(damaged_messages)
        rejected += len(compare_with_single_decoding(messages))
    assert rejected


@pytest.mark.parametrize("name", ["AgentEvent", "Exchange", "Score", "Diagnosis"])
def test_a_flipped_bit_has_the_same_effect_in_a_batch(name: str, samples: Any, encode_all: Encoder) -> None:
    """The columnar decoder accepts invalid Avro: branch 3 of a union, 2 as a boolean, numbers that are too wide."""
    previous_message, message, next_message = encode_all(samples.records(name, 3))
    rng = random.Random(17)
    for bit in rng.sample(range(PREFIX_BYTES * 8, len(message) * 8), examples(120)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        compare_with_single_decoding([previous_message, bytes(flipped), next_message])


def shift_boundaries(name: str, good: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield batches in which the start of a body is moved to the end of the previous one."""
    prefix = schema_of(name).prefix
    first_body, second_body, third_body = (message[PREFIX_BYTES:] for message in good[:3])
    for cut_at in range(1, len(second_body)):
        yield [prefix + first_body + second_body[:cut_at], prefix + second_body[cut_at:], prefix + third_body]


def craft_misaligned(name: str, good: Sequence[bytes], number: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Yield batches whose bodies are wrong one by one but complete when concatenated."""
    prefix = schema_of(name).prefix
    bodies = [message[PREFIX_BYTES:] for message in good]
    first_body, second_body, third_body = bodies[:3]
    yield [prefix + first_body[:-1], prefix + first_body[-1:] + second_body, prefix + third_body]
    yield [prefix + first_body + second_body, prefix, prefix + third_body]
    yield [prefix, prefix + first_body + second_body, prefix + third_body]
    yield [prefix + first_body + second_body, prefix + third_body[:-1], prefix + third_body]
    yield [prefix + first_body + second_body + third_body, prefix, prefix]
    # The length of the first text covers one, two or three of the next bodies.
    skip = len(number(0))
    for count in range(1, 4):
        swallowed_bodies = b"".join(bodies[1 : 1 + count])
        for length in (
            len(swallowed_bodies),
            len(swallowed_bodies) - 1,
            len(swallowed_bodies) + 1,
            len(first_body) + len(swallowed_bodies) - skip,
        ):
            yield [prefix + number(length), *good[1:]]
            yield [prefix + number(length) + first_body[skip:], *good[1:]]


@pytest.mark.parametrize("name", ["AgentEvent", "Exchange", "StageState"])
def test_misaligned_bodies_are_not_decoded_as_records(
    name: str, samples: Any, encode_all: Encoder, avro_number: Callable[[int], bytes]
) -> None:
    """The total length of two forged bodies may be right although each of them is wrong."""
    good = encode_all(samples.records(name, 5))
    cuts = list(shift_boundaries(name, good))
    batches = [*random.Random(23).sample(cuts, min(len(cuts), examples(150))), *craft_misaligned(name, good, avro_number)]
    assert all(compare_with_single_decoding(messages) for messages in batches)


def test_garbage_between_records_is_rejected(samples: Any, encode_all: Encoder) -> None:
    """Other programs may write to a topic."""
    rng = random.Random(23)
    good = encode_all(samples.records("Exchange", 60))
    garbage = [b"", b"\xc3", MARKER, MARKER + bytes(8), rng.randbytes(9), rng.randbytes(10), rng.randbytes(400), b"{}"]
    messages = [message for pair in itertools.zip_longest(good, garbage) for message in pair if message is not None]
    assert compare_with_single_decoding(messages) == {place for place in range(16) if place % 2}


@pytest.mark.parametrize("bad_count", [1, 3, 2_400])
def test_a_large_batch_with_few_or_many_bad_bodies_keeps_the_good_ones(
    bad_count: int, samples: Any, encode_all: Encoder, damaged: Damage
) -> None:
    """Large batches are decoded in slices before single messages; the indexes must stay those of the batch."""
    messages = encode_all(samples.records("Heartbeat", 2_500))
    invalid_messages = (message for message in damaged(messages, bad_count) if isinstance(decode_or_error(message), tuple))
    indexes = random.Random(bad_count).sample(range(2_500), bad_count)
    for index in indexes:
        messages[index] = next(invalid_messages)
    assert set(indexes) == compare_with_single_decoding(messages)


@pytest.mark.parametrize("limit", [1 << 31, -(1 << 31) - 1, (1 << 34) - 1, 1 << 40])
def test_a_number_that_columns_would_truncate_is_refused(
    limit: int, samples: Any, encode_all: Encoder, avro_number: Callable[[int], bytes]
) -> None:
    """The columnar decoder silently returns another number for an `int` of 33 bits."""
    (record,) = samples.records("Review", 1)
    marked = msgspec.structs.replace(record, review_id="mark", reviewer="mark", score=5, status=None, comment=None)
    (message,) = encode_all([marked])
    head, tail = message.split(b"\x08mark\x02\x0a")
    messages = encode_all(samples.records("Review", 45))
    messages[30] = head + b"\x08mark\x02" + avro_number(limit) + tail
    assert compare_with_single_decoding(messages) == {30}


@pytest.mark.parametrize("branch", [b"\x01", b"\x03", b"\x04", b"\x7e"])
@pytest.mark.parametrize("item", range(6))
def test_an_invalid_branch_inside_a_list_is_rejected(branch: bytes, item: int, samples: Any, encode_all: Encoder) -> None:
    """The columnar decoder treats every branch but the first as a value, at any depth."""
    items = tuple(DimensionScore(dimension="d", score=0.5, reasoning=f"reasoning {number}") for number in range(3))
    records = samples.records("Score", 6)
    records[2] = msgspec.structs.replace(records[2], tier2_dimensions=items, tier3_dimensions=items)
    messages = encode_all(records)
    parts = messages[2].split(b"\x02\x16reasoning ")
    assert len(parts) == 7
    marks = [b"\x02\x16reasoning "] * 6
    marks[item] = branch + b"\x16reasoning "
    messages[2] = b"".join(part for pair in itertools.zip_longest(parts, marks, fillvalue=b"") for part in pair)
    assert compare_with_single_decoding(messages) == {2}


@pytest.mark.parametrize("two_blocks", [b"\x7e" + b"\x02a" * 63 + b"\x02" + b"\x02a", b"\x7f\x00" + b"\x02a" * 64])
def test_an_array_in_blocks_as_long_as_one_is_refused(two_blocks: bytes, samples: Any, encode_all: Encoder) -> None:
    """Blocks of 63 items and 1 item have as many bytes as one of 64, so every length is right."""
    records = samples.records("Exchange", 5)
    messages = encode_all([*records[:2], msgspec.structs.replace(records[2], tags=("a",) * 64), *records[3:]])
    single_block = b"\x80\x01" + b"\x02a" * 64
    assert messages[2].count(single_block) == 1
    assert len(two_blocks) == len(single_block)
    messages[2] = messages[2].replace(single_block, two_blocks)
    assert compare_with_single_decoding(messages) == {2}


def test_valid_batches_are_not_decoded_one_by_one(
    record_name: str, samples: Any, monkeypatch: pytest.MonkeyPatch, encode_all: Encoder
) -> None:
    """A check that fails on valid records would only make decoding slow, so no other test would notice it."""
    messages = encode_all(samples.records(record_name, 300))
    monkeypatch.setattr(arrow, "_isolate", lambda *_: pytest.fail("the proof did not hold"))
    batch = decode_batch(messages)
    assert batch.frames[record_name].height == 300


def test_a_message_over_the_limit_is_rejected_in_a_batch_too(samples: Any, encode_all: Encoder) -> None:
    """Batches and single messages must have the same limit."""
    messages = encode_all(samples.records("StageState", 45))
    prefix = schema_of("StageState").prefix
    out = io.BytesIO()
    state = {"stage": "s", "key": "k", "next_position": 0, "state": bytes(MAX_RECORD_BYTES)}
    fastavro.schemaless_writer(out, schema_of("StageState").parsed, state)
    messages[7] = prefix + out.getvalue()
    assert compare_with_single_decoding(messages) == {7}


def test_rejections_come_in_order_across_record_types(samples: Any, encode_all: Encoder) -> None:
    """Dead letters are written in the order of the topic."""
    pairs = zip(encode_all(samples.records("Exchange", 45)), encode_all(samples.records("Heartbeat", 45)), strict=True)
    messages = [message[:-1] if index % 3 == 0 else message for index, message in enumerate(itertools.chain(*pairs))]
    assert compare_with_single_decoding(messages) == set(range(0, 90, 3))


def test_values_out_of_bounds_are_rejected_by_field(samples: Any, encode_all: Encoder) -> None:
    """A NaN or a time in the year 292277 can be decoded, but must be rejected without its neighbors."""
    (event,) = samples.records("AgentEvent", 1)
    base = encode(msgspec.structs.replace(event, saturation=123.5))
    packed_value = struct.pack("<d", 123.5)
    messages = encode_all(samples.records("AgentEvent", 50))
    for index, value in enumerate((math.nan, math.inf, -math.inf)):
        messages[7 * index] = base.replace(packed_value, struct.pack("<d", value))
    batch = decode_batch(messages)
    assert compare_with_single_decoding(messages) == {0, 7, 14}
    assert all(isinstance(item.error, BoundsError) and "AgentEvent.saturation" in str(item.error) for item in batch.rejected)


@pytest.mark.parametrize("micros", [(1 << 63) - 1, -(1 << 63), 0, 4_102_444_800_000_001, 1 << 62])
def test_a_time_out_of_bounds_is_rejected(
    micros: int, samples: Any, encode_all: Encoder, avro_number: Callable[[int], bytes]
) -> None:
    """Times near 2^63 overflow in every computation, including the check itself."""
    schema = schema_of("Heartbeat")
    long = fastavro.parse_schema({**schema.definition, "fields": [_without_logical_type(field) for field in schema.fields]})
    (heartbeat,) = encode_all(samples.records("Heartbeat", 1))
    fields = fastavro.schemaless_reader(io.BytesIO(heartbeat[PREFIX_BYTES:]), long, None)
    messages = encode_all(samples.records("Heartbeat", 50))
    for index, name in enumerate(("occurred_at", "ingested_at")):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, long, {**fields, name: micros})
        messages[20 + index] = schema.prefix + out.getvalue()
    rejected = compare_with_single_decoding(messages)
    assert 21 in rejected
    assert avro_number(micros)


def _without_logical_type(field: dict[str, Any]) -> dict[str, Any]:
    """Return the field without its logical type."""
    return {**field, "type": "long"} if isinstance(field["type"], dict) else field


HOSTILE = """
    import resource, sys
    from schemas.codec.arrow import decode_batch
    from schemas.codec.single_object import encode
    from schemas.errors import RecordError
    from schemas.registry import current_schemas
    from schemas.codec import arrow
    from schemas.codec import single_object

    decode_batch([])
    for name in current_schemas():
        arrow.empty_frame(name)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30),) * 2)

    def number(value):
        rest, out = (value << 1) ^ (value >> 63), bytearray()
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        return bytes([*out, rest])

    counts = [1 << 62, (1 << 63) - 1, 1 << 40, 10 ** 9, -1, -(1 << 40), -(1 << 63), -(1 << 62)]
    sizes = [b"", number(1 << 62), number(-1), number(0), number(1 << 33)]
    bodies = [number(count) + size + bytes(rest) for count in counts for size in sizes for rest in (0, 1, 1000, 100_000)]
    seen = 0
    for name, schema in current_schemas().items():
        for skipped in range(0, 60, 3):
            # Skipped fields are empty texts, zeros or nulls, so the hostile number is read as a count or a length.
            messages = [schema.prefix + bytes(skipped) + body for body in bodies[skipped // 3 % 19 :: 19]]
            batch = decode_batch(messages)
            seen += len(batch.rejected)
            assert len(batch.rejected) + sum(frame.height for frame in batch.frames.values()) == len(messages)
    print("rejected", seen)
"""


@pytest.mark.slow
def test_hostile_counts_take_no_memory() -> None:
    """Reserving memory for a count of 2^62 would end the process."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HOSTILE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.startswith("rejected ")


def test_small_batches_are_checked_before_columnar_decoding(
    samples: Any, encode_all: Encoder, damaged: Damage, capfd: pytest.CaptureFixture[str]
) -> None:
    """The columnar decoder prints its panics to the terminal, so one invalid request could fill the log."""
    messages = [
        *encode_all(samples.records("Exchange", 10)),
        *islice(damaged(encode_all(samples.records("Exchange", 9)), 1), 30),
    ]
    compare_with_single_decoding(messages)
    assert capfd.readouterr() == ("", "")


def add_fields(definition: dict[str, Any], *added: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with added fields."""
    return {**definition, "fields": [*definition["fields"], *added]}


MOOD = {"name": "mood", "type": "string", "default": "calm", "doc": "Mood."}
EXTRA = [
    {"name": "notes", "type": {"type": "array", "items": "string"}, "default": [], "doc": "Notes."},
    {"name": "weight", "type": "double", "default": 0.5, "doc": "Weight."},
    {"name": "level", "type": ["null", "int"], "default": None, "doc": "Level."},
    {"name": "known", "type": "boolean", "default": True, "doc": "Whether."},
    {"name": "total", "type": "long", "default": -7, "doc": "Total."},
]


def test_versions_share_a_batch_in_order(samples: Any, encode_all: Encoder, publish: Callable[[Iterable[Any]], None]) -> None:
    """During an upgrade, old and new producers write side by side; old records get the defaults of added fields."""
    original = schema_of("AgentEvent").definition
    with_mood, with_extras = add_fields(original, MOOD), add_fields(original, MOOD, *EXTRA)
    old = encode_all(samples.records("AgentEvent", 60))
    heartbeats = encode_all(samples.records("Heartbeat", 60))
    heartbeat = schema_of("Heartbeat").definition
    publish([original, with_mood, with_extras, heartbeat])
    added_values = {"mood": "grim"}, {"mood": "wild", "notes": ["a"], "weight": 1.0, "level": 3, "known": False, "total": 9}
    mixed = [
        message
        for number, message in enumerate(old)
        for message in (
            message,
            _reencode(message, original, with_mood, added_values[0]),
            _reencode(message, original, with_extras, added_values[1]),
            heartbeats[number],
        )
    ]
    batch = decode_batch(mixed)
    assert batch.rejected == []
    rows = {row[INDEX]: row for frame in batch.frames.values() for row in frame.to_dicts()}
    assert [index for index in batch.frames["AgentEvent"][INDEX] if index % 4 == 0] == list(range(0, 240, 4))
    assert batch.frames["AgentEvent"][INDEX].is_sorted()
    for index, message in enumerate(mixed):
        _, fields = decode_fields(message)
        assert rows[index] == fields | {INDEX: index}
    assert rows[0]["mood"] == "calm"
    assert tuple(rows[0][field["name"]] for field in EXTRA) == ([], 0.5, None, True, -7)
    assert rows[1]["mood"] == "grim"
    assert rows[1]["notes"] == []
    assert rows[2]["mood"] == "wild"
    assert rows[2]["notes"] == ["a"]


def _reencode(message: bytes, old: Any, new: Any, values: dict[str, Any]) -> bytes:
    """Return the message, encoded with another version of its schema and added values."""
    fields = fastavro.schemaless_reader(io.BytesIO(message[PREFIX_BYTES:]), old, None)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, new, {**fields, **values})
    return build_schema(new).prefix + out.getvalue()


def test_an_empty_frame_has_the_columns_of_a_full_one(record_name: str, samples: Any, encode_all: Encoder) -> None:
    """Missing columns are added with the types of the empty frame."""
    frame = decode_batch(encode_all(samples.records(record_name, 50))).frames[record_name].drop(INDEX)
    assert empty_frame(record_name).schema == frame.schema
    assert empty_frame(record_name).height == 0


def test_arrow_streams_have_only_the_c_interface(samples: Any, encode_all: Encoder) -> None:
    """Consumers would prefer other interfaces of the frame, which may need packages that are not installed."""
    frame = decode_batch(encode_all(samples.records("Score", 45))).frames["Score"]
    assert frame.equals(pl.DataFrame(ArrowStream(frame)))
    assert [name for name in vars(ArrowStream) if "arrow" in name] == ["__arrow_c_stream__"]


def test_a_null_in_a_required_field_is_reported_with_the_field(samples: Any, encode_all: Encoder) -> None:
    """A query may return any rows, so the message must name the field."""
    frame = decode_batch(encode_all(samples.records("Score", 2))).frames["Score"]
    with pytest.raises(RecordError, match="project"):
        list(rows_as_records("Score", frame.with_columns(pl.lit(None, pl.String).alias("project"))))


def test_own_messages_decode_like_those_of_other_processes(samples: Any, encode_all: Encoder) -> None:
    """Only the checks are skipped: columns, indexes and types are the same, for one record type and for several."""
    scores, events = encode_all(samples.records("Score", 20)), encode_all(samples.records("AgentEvent", 3))
    for messages in (scores, events, scores + events, events[:1]):
        checked, unchecked = decode_batch(messages), decode_own(messages)
        assert checked.frames.keys() == unchecked.frames.keys()
        assert all(
            frame.equals(unchecked.frames[name]) and frame.schema == unchecked.frames[name].schema
            for name, frame in checked.frames.items()
        )
