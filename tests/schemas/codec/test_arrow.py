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


def agrees_with_single_decoding(messages: Sequence[bytes]) -> set[int]:
    """Compares a batch with the decoding of each message by itself; answers the places that were rejected."""
    batch = decode_batch(messages)
    rejected = {item.index: item.error for item in batch.rejected}
    assert [item.index for item in batch.rejected] == sorted(rejected)
    found: dict[int, Record] = {}
    for name, frame in batch.frames.items():
        assert frame.columns == [*(known["name"] for known in schema_of(name).fields), INDEX]
        places = frame[INDEX].to_list()
        assert places == sorted(places)
        records = list(rows_as_records(name, frame))
        found |= zip(places, records, strict=True)
    assert len(messages) == len(found) + len(rejected)
    alone = {place: taken_or_refused(message) for place, message in enumerate(messages)}
    assert alone == found | {place: (type(error), str(error)) for place, error in rejected.items()}
    return set(rejected)


def taken_or_refused(message: bytes) -> Record | tuple[type[RecordError], str]:
    """What a message says by itself: its record, or why there is none."""
    try:
        return decode(message)
    except RecordError as error:
        return type(error), str(error)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_batch_is_its_records(
    record_name: str, strategies: dict[str, st.SearchStrategy[Record]], data: st.DataObject
) -> None:
    """Columns and records are two views of one thing; no value may differ between them."""
    messages = [encode(record) for record in data.draw(st.lists(strategies[record_name], min_size=1, max_size=5))]
    assert agrees_with_single_decoding(messages) == set()


def test_types_of_every_kind_share_a_batch(samples: Any, encode_all: Encoder) -> None:
    """Several record types travel on one topic, and their order is the order of what happened."""
    messages = [message for name in sorted(RECORD_TYPES) for message in encode_all(samples.records(name, 60))]
    random.Random(5).shuffle(messages)
    assert agrees_with_single_decoding(messages) == set()


def test_nothing_is_an_empty_batch() -> None:
    """A poll that brought nothing is the usual case."""
    batch = decode_batch([])
    assert batch.frames == {}
    assert batch.rejected == []


def test_damage_stays_with_what_was_damaged(record_name: str, samples: Any, encode_all: Encoder, damaged: Damage) -> None:
    """Bodies carry no length: one short body shifts all that follow, unless each is proven to end where it does."""
    rng = random.Random(11)
    rejected = 0
    for round_number in range(4):
        messages = encode_all(samples.records(record_name, 50))
        bad = damaged(messages, round_number)
        for place in rng.sample(range(50), rng.choice([1, 2, 10, 50])):
            messages[place] = next(bad)
        rejected += len(agrees_with_single_decoding(messages))
    assert rejected


@pytest.mark.parametrize("name", ["AgentEvent", "Exchange", "Score", "Diagnosis"])
def test_no_single_bit_is_overlooked(name: str, samples: Any, encode_all: Encoder) -> None:
    """The columnar decoder takes bytes that are no Avro: branch 3 of a union, 2 for false, numbers cut to their width."""
    before, victim, after = encode_all(samples.records(name, 3))
    rng = random.Random(17)
    for bit in rng.sample(range(PREFIX_BYTES * 8, len(victim) * 8), examples(120)):
        flipped = bytearray(victim)
        flipped[bit // 8] ^= 1 << bit % 8
        agrees_with_single_decoding([before, bytes(flipped), after])


def cut(name: str, good: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Batches in which the front of a body goes to the one before it: together they still are two records."""
    prefix = schema_of(name).prefix
    first, second, third = (message[PREFIX_BYTES:] for message in good[:3])
    for at in range(1, len(second)):
        yield [prefix + first + second[:at], prefix + second[at:], prefix + third]


def crafted(name: str, good: Sequence[bytes], number: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Batches in which bodies are made to fit each other in other ways."""
    prefix = schema_of(name).prefix
    bodies = [message[PREFIX_BYTES:] for message in good]
    first, second, third = bodies[:3]
    yield [prefix + first[:-1], prefix + first[-1:] + second, prefix + third]
    yield [prefix + first + second, prefix, prefix + third]
    yield [prefix, prefix + first + second, prefix + third]
    yield [prefix + first + second, prefix + third[:-1], prefix + third]
    yield [prefix + first + second + third, prefix, prefix]
    # A first text so long that it swallows what follows, up to the end of each neighbour in turn.
    skip = len(number(0))
    for swallowed in range(1, 4):
        rest = b"".join(bodies[1 : 1 + swallowed])
        for length in (len(rest), len(rest) - 1, len(rest) + 1, len(first) + len(rest) - skip):
            yield [prefix + number(length), *good[1:]]
            yield [prefix + number(length) + first[skip:], *good[1:]]


@pytest.mark.parametrize("name", ["AgentEvent", "Exchange", "StageState"])
def test_bodies_that_fit_each_other_are_not_taken_for_records(
    name: str, samples: Any, encode_all: Encoder, avro_number: Callable[[int], bytes]
) -> None:
    """A forger knows the lengths: what is short by as much as its neighbour is long comes out even in the sum."""
    good = encode_all(samples.records(name, 5))
    cuts = list(cut(name, good))
    tried = [*random.Random(23).sample(cuts, min(len(cuts), examples(150))), *crafted(name, good, avro_number)]
    assert all(agrees_with_single_decoding(messages) for messages in tried)


def test_garbage_between_records_is_set_aside(samples: Any, encode_all: Encoder) -> None:
    """Anybody can write to a topic."""
    rng = random.Random(23)
    good = encode_all(samples.records("Exchange", 60))
    garbage = [b"", b"\xc3", MARKER, MARKER + bytes(8), rng.randbytes(9), rng.randbytes(10), rng.randbytes(400), b"{}"]
    messages = [message for pair in itertools.zip_longest(good, garbage) for message in pair if message is not None]
    assert agrees_with_single_decoding(messages) == {place for place in range(16) if place % 2}


@pytest.mark.parametrize("bad", [1, 3, 2_400])
def test_a_large_batch_with_few_or_many_bad_bodies_keeps_the_good_ones(
    bad: int, samples: Any, encode_all: Encoder, damaged: Damage
) -> None:
    """Large batches are tried in slices before anything is decoded alone: places must survive that."""
    messages = encode_all(samples.records("Heartbeat", 2_500))
    worse = (message for message in damaged(messages, bad) if isinstance(taken_or_refused(message), tuple))
    places = random.Random(bad).sample(range(2_500), bad)
    for place in places:
        messages[place] = next(worse)
    assert set(places) == agrees_with_single_decoding(messages)


@pytest.mark.parametrize("limit", [1 << 31, -(1 << 31) - 1, (1 << 34) - 1, 1 << 40])
def test_a_number_that_columns_would_cut_is_refused(
    limit: int, samples: Any, encode_all: Encoder, avro_number: Callable[[int], bytes]
) -> None:
    """An `int` of 33 bits comes out of the columnar decoder as another number, without a word."""
    (record,) = samples.records("Review", 1)
    marked = msgspec.structs.replace(record, review_id="mark", reviewer="mark", score=5, status=None, comment=None)
    (message,) = encode_all([marked])
    head, tail = message.split(b"\x08mark\x02\x0a")
    messages = encode_all(samples.records("Review", 45))
    messages[30] = head + b"\x08mark\x02" + avro_number(limit) + tail
    assert agrees_with_single_decoding(messages) == {30}


@pytest.mark.parametrize("branch", [b"\x01", b"\x03", b"\x04", b"\x7e"])
@pytest.mark.parametrize("which", range(6))
def test_a_branch_inside_a_list_is_looked_at_too(branch: bytes, which: int, samples: Any, encode_all: Encoder) -> None:
    """The columnar decoder takes any branch but the first for a value, at whatever depth."""
    items = tuple(DimensionScore(dimension="d", score=0.5, reasoning=f"reasoning {number}") for number in range(3))
    records = samples.records("Score", 6)
    records[2] = msgspec.structs.replace(records[2], tier2_dimensions=items, tier3_dimensions=items)
    messages = encode_all(records)
    parts = messages[2].split(b"\x02\x16reasoning ")
    assert len(parts) == 7
    marks = [b"\x02\x16reasoning "] * 6
    marks[which] = branch + b"\x16reasoning "
    messages[2] = b"".join(part for pair in itertools.zip_longest(parts, marks, fillvalue=b"") for part in pair)
    assert agrees_with_single_decoding(messages) == {2}


@pytest.mark.parametrize("start", [b"\x7e" + b"\x02a" * 63 + b"\x02" + b"\x02a", b"\x7f\x00" + b"\x02a" * 64])
def test_an_array_in_blocks_as_long_as_one_is_refused(start: bytes, samples: Any, encode_all: Encoder) -> None:
    """63 items and 1 take as many bytes as 64 at once, so that every length is right."""
    records = samples.records("Exchange", 5)
    messages = encode_all([*records[:2], msgspec.structs.replace(records[2], tags=("a",) * 64), *records[3:]])
    whole = b"\x80\x01" + b"\x02a" * 64
    assert messages[2].count(whole) == 1
    assert len(start) == len(whole)
    messages[2] = messages[2].replace(whole, start)
    assert agrees_with_single_decoding(messages) == {2}


def test_good_batches_are_proven_and_not_decoded_one_by_one(
    record_name: str, samples: Any, monkeypatch: pytest.MonkeyPatch, encode_all: Encoder
) -> None:
    """A proof that fails on good records would go unseen: everything would be right, and slow."""
    messages = encode_all(samples.records(record_name, 300))
    monkeypatch.setattr(arrow, "_isolate", lambda *_: pytest.fail("the proof did not hold"))
    batch = decode_batch(messages)
    assert batch.frames[record_name].height == 300


def test_a_message_over_the_limit_is_rejected_in_a_batch_too(samples: Any, encode_all: Encoder) -> None:
    """One path must not take what the other refuses."""
    messages = encode_all(samples.records("StageState", 45))
    prefix = schema_of("StageState").prefix
    out = io.BytesIO()
    state = {"stage": "s", "key": "k", "next_position": 0, "state": bytes(MAX_RECORD_BYTES)}
    fastavro.schemaless_writer(out, schema_of("StageState").parsed, state)
    messages[7] = prefix + out.getvalue()
    assert agrees_with_single_decoding(messages) == {7}


def test_rejections_come_in_order_across_record_types(samples: Any, encode_all: Encoder) -> None:
    """Dead letters are written in the order of the topic."""
    pairs = zip(encode_all(samples.records("Exchange", 45)), encode_all(samples.records("Heartbeat", 45)), strict=True)
    messages = [message[:-1] if place % 3 == 0 else message for place, message in enumerate(itertools.chain(*pairs))]
    assert agrees_with_single_decoding(messages) == set(range(0, 90, 3))


def test_values_out_of_bounds_are_rejected_by_field(samples: Any, encode_all: Encoder) -> None:
    """A NaN or a time in the year 292277 decodes; it must not get further, nor take its neighbours with it."""
    (event,) = samples.records("AgentEvent", 1)
    base = encode(msgspec.structs.replace(event, saturation=123.5))
    place = struct.pack("<d", 123.5)
    messages = encode_all(samples.records("AgentEvent", 50))
    for index, value in enumerate((math.nan, math.inf, -math.inf)):
        messages[7 * index] = base.replace(place, struct.pack("<d", value))
    batch = decode_batch(messages)
    assert agrees_with_single_decoding(messages) == {0, 7, 14}
    assert all(isinstance(item.error, BoundsError) and "AgentEvent.saturation" in str(item.error) for item in batch.rejected)


@pytest.mark.parametrize("micros", [(1 << 63) - 1, -(1 << 63), 0, 4_102_444_800_000_001, 1 << 62])
def test_a_time_out_of_bounds_is_rejected(
    micros: int, samples: Any, encode_all: Encoder, avro_number: Callable[[int], bytes]
) -> None:
    """Times near 2^63 overflow in whatever is computed with them, the check itself included."""
    schema = schema_of("Heartbeat")
    long = fastavro.parse_schema({**schema.definition, "fields": [_plain(field) for field in schema.fields]})
    (heartbeat,) = encode_all(samples.records("Heartbeat", 1))
    fields = fastavro.schemaless_reader(io.BytesIO(heartbeat[PREFIX_BYTES:]), long, None)
    messages = encode_all(samples.records("Heartbeat", 50))
    for index, name in enumerate(("occurred_at", "ingested_at")):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, long, {**fields, name: micros})
        messages[20 + index] = schema.prefix + out.getvalue()
    rejected = agrees_with_single_decoding(messages)
    assert 21 in rejected
    assert avro_number(micros)


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    """The field without its logical type."""
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
            # Texts are empty, numbers zero, unions null: the hostile number stands where an array's count or a length is.
            messages = [schema.prefix + bytes(skipped) + body for body in bodies[skipped // 3 % 19 :: 19]]
            batch = decode_batch(messages)
            seen += len(batch.rejected)
            assert len(batch.rejected) + sum(frame.height for frame in batch.frames.values()) == len(messages)
    print("rejected", seen)
"""


@pytest.mark.slow
def test_hostile_counts_take_no_memory() -> None:
    """A count of 2^62 must not be believed by anybody who reserves memory for it: that would end the process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HOSTILE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("rejected ")


def test_few_messages_are_checked_before_the_columnar_decoder_sees_them(
    samples: Any, encode_all: Encoder, damaged: Damage, capfd: pytest.CaptureFixture[str]
) -> None:
    """The columnar decoder prints its panics to the terminal, which no caller can prevent; one request must not fill it."""
    messages = [
        *encode_all(samples.records("Exchange", 10)),
        *islice(damaged(encode_all(samples.records("Exchange", 9)), 1), 30),
    ]
    agrees_with_single_decoding(messages)
    assert capfd.readouterr() == ("", "")


def version(definition: dict[str, Any], *added: dict[str, Any]) -> dict[str, Any]:
    """A definition with more fields."""
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
    """During an upgrade old and new producers write side by side; old records get the defaults of what was added."""
    first = schema_of("AgentEvent").definition
    second, third = version(first, MOOD), version(first, MOOD, *EXTRA)
    old = encode_all(samples.records("AgentEvent", 60))
    others = encode_all(samples.records("Heartbeat", 60))
    heartbeat = schema_of("Heartbeat").definition
    publish([first, second, third, heartbeat])
    newer = {"mood": "grim"}, {"mood": "wild", "notes": ["a"], "weight": 1.0, "level": 3, "known": False, "total": 9}
    mixed = [
        message
        for number, message in enumerate(old)
        for message in (
            message,
            _rewritten(message, first, second, newer[0]),
            _rewritten(message, first, third, newer[1]),
            others[number],
        )
    ]
    batch = decode_batch(mixed)
    assert batch.rejected == []
    rows = {row[INDEX]: row for frame in batch.frames.values() for row in frame.to_dicts()}
    assert [place for place in batch.frames["AgentEvent"][INDEX] if place % 4 == 0] == list(range(0, 240, 4))
    assert batch.frames["AgentEvent"][INDEX].is_sorted()
    for place, message in enumerate(mixed):
        _, fields = decode_fields(message)
        assert rows[place] == fields | {INDEX: place}
    assert rows[0]["mood"] == "calm"
    assert tuple(rows[0][field["name"]] for field in EXTRA) == ([], 0.5, None, True, -7)
    assert rows[1]["mood"] == "grim"
    assert rows[1]["notes"] == []
    assert rows[2]["mood"] == "wild"
    assert rows[2]["notes"] == ["a"]


def _rewritten(message: bytes, old: Any, new: Any, values: dict[str, Any]) -> bytes:
    """The record of a message in another version of its schema."""
    fields = fastavro.schemaless_reader(io.BytesIO(message[PREFIX_BYTES:]), old, None)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, new, {**fields, **values})
    return build_schema(new).prefix + out.getvalue()


def test_an_empty_frame_has_the_columns_of_a_full_one(record_name: str, samples: Any, encode_all: Encoder) -> None:
    """Defaults are filled in by its types."""
    frame = decode_batch(encode_all(samples.records(record_name, 50))).frames[record_name].drop(INDEX)
    assert empty_frame(record_name).schema == frame.schema
    assert empty_frame(record_name).height == 0


def test_arrow_goes_out_through_the_c_interface_alone(samples: Any, encode_all: Encoder) -> None:
    """Whatever else the frame can do would be found and preferred, and might need packages that are not there."""
    frame = decode_batch(encode_all(samples.records("Score", 45))).frames["Score"]
    assert frame.equals(pl.DataFrame(ArrowStream(frame)))
    assert [name for name in vars(ArrowStream) if "arrow" in name] == ["__arrow_c_stream__"]


def test_a_null_that_a_record_may_not_have_is_named(samples: Any, encode_all: Encoder) -> None:
    """A query may answer anything; the words have to say which field is at fault."""
    frame = decode_batch(encode_all(samples.records("Score", 2))).frames["Score"]
    with pytest.raises(RecordError, match="project"):
        list(rows_as_records("Score", frame.with_columns(pl.lit(None, pl.String).alias("project"))))


def test_what_this_process_has_encoded_decodes_as_anything_does(samples: Any, encode_all: Encoder) -> None:
    """The proof is left out, and nothing else: columns, places and types are the same, of one record type and of several."""
    scores, events = encode_all(samples.records("Score", 20)), encode_all(samples.records("AgentEvent", 3))
    for messages in (scores, events, scores + events, events[:1]):
        proven, own = decode_batch(messages), decode_own(messages)
        assert proven.frames.keys() == own.frames.keys()
        assert all(
            frame.equals(own.frames[name]) and frame.schema == own.frames[name].schema for name, frame in proven.frames.items()
        )
