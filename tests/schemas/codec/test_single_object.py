"""Single records: every record survives encoding, and damaged bytes are refused with a reason and never crash."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from schemas.bounds import MAX_RECORD_BYTES
from schemas.codec.record_writers import FIELDS_WRITERS, RECORD_WRITERS
from schemas.codec.single_object import PREFIX_BYTES, decode, encode
from schemas.errors import BoundsError, FramingError, MalformedBodyError, RecordError, UnknownSchemaError
from schemas.records import AgentEvent, DimensionScore, Exchange, Heartbeat, Record, Review, Score, StageState
from schemas.registry import MARKER, current_schemas, published_schemas, schema_of

GOLDEN = Path(__file__).parents[2] / "golden" / "fingerprints.json"
NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
PUBLISHED = {
    "null": "63dd24e7cc258f8a",
    "boolean": "9f42fc78a4d4f764",
    "int": "7275d51a3f395c8f",
    "long": "d054e14493f41db7",
    "float": "4d7c02cb3ea8d790",
    "double": "8e7535c032ab957e",
    "bytes": "4fc016dac3201965",
    "string": "8f014872634503c7",
}
"""CRC-64-AVRO of the primitive types as Avro's own test data has them, most significant byte first."""

EVENT = AgentEvent(
    connection="local", project="ops", session_id="s1", event_id="e1", seq=0, event="tool_call", occurred_at=NOON,
    ingested_at=NOON, payload="{}",
)  # fmt: skip
REVIEW = Review(
    review_id="r1", project="ops", kind="human_score", subject_id="s", reviewer="ann", occurred_at=NOON, ingested_at=NOON
)


def crc64_avro(data: bytes) -> int:
    """Return the fingerprint, computed bit by bit as the format defines it."""
    empty = crc = 0xC15D213AA4D7A795
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (empty if crc & 1 else 0)
    return crc


@settings(max_examples=examples(30))
@given(st.data())
def test_every_record_survives_encoding(
    record_name: str, strategies: dict[str, st.SearchStrategy[Record]], data: st.DataObject
) -> None:
    """The log is the only copy, so a value that changes on ingestion is lost."""
    record = data.draw(strategies[record_name])
    assert decode(encode(record)) == record


@settings(max_examples=examples(30))
@given(st.data())
def test_other_avro_libraries_read_the_same_record(
    record_name: str, strategies: dict[str, st.SearchStrategy[Record]], data: st.DataObject
) -> None:
    """Programs in other languages know only the schema and the framing."""
    record = data.draw(strategies[record_name])
    message = encode(record)
    fields = fastavro.schemaless_reader(io.BytesIO(message[PREFIX_BYTES:]), schema_of(record_name).definition, None)
    assert msgspec.convert(fields, type(record)) == record


@settings(max_examples=examples(30))
@given(st.data())
def test_a_compiled_writer_writes_the_same_bytes_as_the_general_one(
    record_name: str, strategies: dict[str, st.SearchStrategy[Record]], data: st.DataObject
) -> None:
    """Digests are computed from these bytes. The writers are called directly, because `encode` would silently fall back."""
    record, schema = data.draw(strategies[record_name]), schema_of(record_name)
    fields = msgspec.to_builtins(record, builtin_types=(datetime, bytes))
    expected = io.BytesIO()
    fastavro.schemaless_writer(expected, schema.parsed, fields)
    assert schema.prefix + expected.getvalue() == RECORD_WRITERS[schema.prefix](record)
    assert schema.prefix + expected.getvalue() == FIELDS_WRITERS[schema.prefix](fields)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": 1.0}, {"tokens": "1"}, {"seq": 1 << 63}, {"tool": b"x"}, {"used": 2}, {"labels": None}, {"payload": None}],
)
def test_a_compiled_writer_raises_on_a_value_of_another_type(wrong: dict[str, Any]) -> None:
    """It would silently write another value."""
    write = RECORD_WRITERS[schema_of("AgentEvent").prefix]
    assert write(EVENT)
    with pytest.raises((TypeError, ValueError, AttributeError, LookupError)):
        write(msgspec.structs.replace(EVENT, **wrong))


def test_fingerprints_are_those_of_the_format() -> None:
    """Other producers must be able to compute the same fingerprints."""
    computed = {
        name: bytes.fromhex(fingerprint(to_parsing_canonical_form(fastavro.parse_schema(name)), "CRC-64-AVRO"))[::-1].hex()
        for name in PUBLISHED
    }
    assert computed == PUBLISHED
    assert {name: f"{crc64_avro(json.dumps(name).encode()):016x}" for name in PUBLISHED} == PUBLISHED


def test_a_message_starts_with_the_marker_and_the_fingerprint_lowest_byte_first(record_name: str) -> None:
    """Every reader of single-object encoding reads these ten bytes first."""
    schema = schema_of(record_name)
    canonical = to_parsing_canonical_form(fastavro.parse_schema(schema.definition)).encode()
    assert b"\xc3\x01" + crc64_avro(canonical).to_bytes(8, "little") == schema.prefix


def test_published_fingerprints_never_change() -> None:
    """Bytes with an unknown fingerprint cannot be read; a new version adds a line to the golden file."""
    fingerprints = {name: [version.prefix[2:].hex() for version in versions] for name, versions in published_schemas().items()}
    assert json.loads(GOLDEN.read_text("utf-8")) == fingerprints
    assert {name: versions[-1] for name, versions in fingerprints.items()} == {
        name: schema.prefix[2:].hex() for name, schema in current_schemas().items()
    }


def test_no_two_schemas_share_a_fingerprint() -> None:
    """Two types with one fingerprint would be read as each other."""
    prefixes = [version.prefix for versions in published_schemas().values() for version in versions]
    assert len(prefixes) == len(set(prefixes))


@pytest.mark.parametrize(
    "start", [b"", b"\xc3", b"\xc3\x01", MARKER + bytes(7), b"\xc3\x02" + bytes(30), b"{}", b"Obj\x01" * 9]
)
def test_bytes_without_framing_are_refused_with_that_reason(start: bytes) -> None:
    """A producer that forgot the framing must not get a message about a damaged body."""
    with pytest.raises(FramingError) as caught:
        decode(start)
    assert "C3 01" in caught.value.hint
    assert caught.value.code == "framing"


def test_an_unknown_fingerprint_is_refused_with_it() -> None:
    """The fingerprint in the dead letter helps to find the producer."""
    with pytest.raises(UnknownSchemaError, match="0102030405060708"):
        decode(MARKER + bytes(range(1, 9)) + b"body")


def test_a_message_cut_anywhere_is_refused(
    record_name: str, samples: Any, encode_all: Callable[[Iterable[Record]], list[bytes]]
) -> None:
    """Half a record must never count as a complete one."""
    for message in encode_all(samples.records(record_name, 3)):
        for length in range(len(message)):
            with pytest.raises(RecordError):
                decode(message[:length])


def test_a_message_with_trailing_bytes_is_refused(
    record_name: str, samples: Any, encode_all: Callable[[Iterable[Record]], list[bytes]]
) -> None:
    """Trailing bytes show that the producer wrote another record than the one that was decoded."""
    (message,) = encode_all(samples.records(record_name, 1))
    for extra in (b"\0", b"\0" * 20, b"abc", message[PREFIX_BYTES:], message):
        with pytest.raises(MalformedBodyError, match="bytes too many"):
            decode(message + extra)


def test_a_flipped_bit_gives_a_record_or_a_refusal(
    record_name: str, samples: Any, encode_all: Callable[[Iterable[Record]], list[bytes]]
) -> None:
    """Some flips give another valid record. None may crash, and every decoded record must encode to the same bytes."""
    refused = 0
    for message in encode_all(samples.records(record_name, 1)):
        for bit in range(len(message) * 8):
            flipped = bytearray(message)
            flipped[bit // 8] ^= 1 << bit % 8
            refused += not _decodes_to_itself(bytes(flipped))
    assert refused


def _decodes_to_itself(message: bytes) -> bool:
    """Return whether the message can be decoded, after asserting that its record encodes to the same bytes."""
    try:
        record = decode(message)
    except RecordError:
        return False
    assert encode(record) == message
    return True


def test_every_decoded_record_encodes_to_the_same_bytes(
    record_name: str,
    samples: Any,
    encode_all: Callable[[Iterable[Record]], list[bytes]],
    damaged: Callable[[list[bytes], int], Iterator[bytes]],
) -> None:
    """Digests and ids are computed from bytes, so two encodings of one record would be two records."""
    messages = encode_all(samples.records(record_name, 10))
    is_accepted = [_decodes_to_itself(message) for message in islice(damaged(messages, 7), 500)]
    assert False in is_accepted


@settings(max_examples=examples(30))
@given(st.binary(max_size=200))
def test_any_bytes_after_a_fingerprint_give_a_record_or_a_refusal(record_name: str, body: bytes) -> None:
    """Other programs may write any bytes to a topic."""
    _decodes_to_itself(schema_of(record_name).prefix + body)


def _with_tags(blocks: bytes) -> bytes:
    """Return an exchange with two tags and another encoding of their array."""
    message = encode(_exchange(tags=("ab", "cd")))
    usual = b"\x04\x04ab\x04cd\x00"
    assert message.count(usual) == 1
    return message.replace(usual, blocks)


def _exchange(**fields: Any) -> Exchange:
    values: dict[str, Any] = {
        "exchange_id": "x1", "connection": "local", "project": "ops", "session_id": "s1", "occurred_at": NOON,
        "ingested_at": NOON, "user_message": "hi", "agent_response": "hello", "content_digest": "0" * 16,
    }  # fmt: skip
    return Exchange(**(values | fields))


@pytest.mark.parametrize(
    "blocks",
    [
        b"\x02\x04ab\x02\x04cd\x00",  # two blocks
        b"\x03\x0c\x04ab\x04cd\x00",  # a count of minus two, and the size in bytes
        b"\x84\x00\x04ab\x04cd\x00",  # a count of two in two bytes
        b"\x04\x84\x00ab\x04cd\x00",  # a length of two in two bytes
        b"\x04\x04ab\x04cd\x80\x00",  # an end of two bytes
    ],
)
def test_a_non_canonical_encoding_is_refused(blocks: bytes) -> None:
    """One record has one encoding; no common encoder writes any of these."""
    with pytest.raises(MalformedBodyError, match="canonical"):
        decode(_with_tags(blocks))


@pytest.mark.parametrize("branch", [b"\x01", b"\x03", b"\x04", b"\x05", b"\x7f"])
def test_a_branch_that_a_union_does_not_have_is_refused(branch: bytes) -> None:
    """Python's negative indexes would turn branch -1 into the last one."""
    message = encode(_exchange(agent_model="opus-model"))
    assert message.count(b"\x02\x14opus-model") == 1
    with pytest.raises(MalformedBodyError):
        decode(message.replace(b"\x02\x14opus-model", branch + b"\x14opus-model"))


def test_a_boolean_is_one_or_zero() -> None:
    """One decoder reads 2 as true, another as false."""
    message = encode(_exchange(outcome="answered", multi_user=True))
    assert message.count(b"\x10answered\x01") == 1
    with pytest.raises(MalformedBodyError):
        decode(message.replace(b"\x10answered\x01", b"\x10answered\x02"))


@pytest.mark.parametrize("time", [datetime(1970, 1, 1, tzinfo=UTC), datetime(1999, 12, 31, 23, 59, 59, 999999, UTC)])
@pytest.mark.parametrize("field", ["occurred_at", "ingested_at"])
def test_a_time_before_2000_is_refused_by_field(field: str, time: datetime) -> None:
    """A missing time is often sent as 1970, which would start its own baseline."""
    with pytest.raises(BoundsError, match=rf"AgentEvent\.{field}: "):
        encode(msgspec.structs.replace(EVENT, **{field: time}))


@pytest.mark.parametrize(
    "time", [datetime(2100, 1, 1, 0, 0, 0, 1, UTC), datetime(2101, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
)
def test_a_time_after_2100_is_refused_by_field(time: datetime) -> None:
    """Later times can be encoded, but crash every reader."""
    with pytest.raises(BoundsError, match=r"AgentEvent\.ingested_at: "):
        encode(msgspec.structs.replace(EVENT, ingested_at=time))


@pytest.mark.parametrize("field", ["occurred_at", "ingested_at"])
def test_a_time_without_a_zone_is_refused_by_field(field: str) -> None:
    """Readers would take a local time for UTC."""
    with pytest.raises(BoundsError, match=rf"Review\.{field}: .*zone"):
        encode(msgspec.structs.replace(REVIEW, **{field: NOON.replace(tzinfo=None)}))


def test_an_event_may_be_at_most_a_day_ahead_of_its_ingestion() -> None:
    """Wrong clocks and missing zones explain up to a day."""
    ahead = msgspec.structs.replace(EVENT, occurred_at=NOON + timedelta(days=1))
    assert decode(encode(ahead)) == ahead
    with pytest.raises(BoundsError, match=r"AgentEvent\.occurred_at: "):
        encode(msgspec.structs.replace(EVENT, occurred_at=NOON + timedelta(days=1, microseconds=1)))


def test_a_time_in_another_zone_is_the_same_instant() -> None:
    """Only the instant is stored, not its zone."""
    tokyo = msgspec.structs.replace(EVENT, occurred_at=NOON.astimezone(timezone(timedelta(hours=9))))
    assert decode(encode(tokyo)) == EVENT


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_by_field(value: float) -> None:
    """One NaN makes every mean NaN, so it must not reach the log, at any depth."""
    with pytest.raises(BoundsError, match=r"AgentEvent\.saturation: "):
        encode(msgspec.structs.replace(EVENT, saturation=value))
    with pytest.raises(BoundsError, match=r"Score\.tier3_dimensions\.score: "):
        encode(_score(tier3_dimensions=(DimensionScore(dimension="tone", score=value),)))


def _score(**fields: Any) -> Score:
    values: dict[str, Any] = {
        field["name"]: {"string": "x", "int": 0, "double": 0.0, "boolean": False}.get(str(field["type"]), NOON)
        for field in schema_of("Score").fields
        if "default" not in field
    }
    return Score(**(values | {"tier1_flags": ()} | fields))


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 40])
def test_an_int_over_32_bits_is_refused_by_field(value: int) -> None:
    """The single-record encoder would write it, and columnar readers would truncate it."""
    with pytest.raises(BoundsError, match=r"Review\.score: "):
        encode(msgspec.structs.replace(REVIEW, score=value))
    # The encoder does not check fields that cannot be null.
    with pytest.raises(BoundsError, match=r"Score\.turn_number: "):
        encode(_score(turn_number=value))


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_a_number_over_64_bits_is_refused_by_field(value: int) -> None:
    """JSON numbers have no size limit."""
    with pytest.raises(BoundsError, match=r"AgentEvent\.tokens: "):
        encode(msgspec.structs.replace(EVENT, tokens=value))


def test_a_lone_surrogate_is_refused_by_field() -> None:
    """JSON can contain half of a surrogate pair, UTF-8 cannot."""
    with pytest.raises(BoundsError, match=r"AgentEvent\.payload: "):
        encode(msgspec.structs.replace(EVENT, payload="a\ud800b"))
    # The message also names a field whose type is defined by another field.
    with pytest.raises(BoundsError, match=r"Score\.tier3_dimensions: "):
        encode(_score(tier3_dimensions=(DimensionScore(dimension="\udfff", score=1.0),)))


def test_a_record_with_half_a_surrogate_pair_is_refused_by_field() -> None:
    """Another producer may write one into an id; the dead letter names the field."""
    message = encode(msgspec.structs.replace(EVENT, session_id="xQQQ")).replace(b"xQQQ", b"x\xed\xa0\x80")
    with pytest.raises(MalformedBodyError, match=r"AgentEvent\.session_id: .*can't decode"):
        decode(message)


@pytest.mark.parametrize(("field", "value"), [("seq", "one"), ("occurred_at", "2026-10-01"), ("payload", 7), ("project", None)])
def test_a_value_of_another_type_is_refused_by_field(field: str, value: Any) -> None:
    """The message names the field, where the encoder would only raise a traceback."""
    with pytest.raises(BoundsError, match=rf"AgentEvent\.{field}: "):
        encode(msgspec.structs.replace(EVENT, **{field: value}))


def test_a_record_may_have_at_most_a_million_bytes() -> None:
    """Kafka refuses larger messages, so all sources have the same limit."""
    overhead = len(encode(StageState(stage="s", key="k", next_position=0, state=bytes(500_000)))) - 500_000
    full = StageState(stage="s", key="k", next_position=0, state=bytes(MAX_RECORD_BYTES - overhead))
    message = encode(full)
    assert len(message) == MAX_RECORD_BYTES
    assert full == decode(message)
    with pytest.raises(BoundsError, match="1000001 bytes"):
        encode(msgspec.structs.replace(full, state=full.state + b"x"))


def test_a_message_over_the_limit_is_refused_by_the_decoder() -> None:
    """A stage could read the record but not forward it, and would stop."""
    heartbeat = Heartbeat(connection="c", project="p", session_id="s", occurred_at=NOON, ingested_at=NOON)
    schema = schema_of("Heartbeat")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema.parsed, msgspec.structs.asdict(heartbeat) | {"session_id": "s" * MAX_RECORD_BYTES})
    with pytest.raises(BoundsError, match="1000000 allowed"):
        decode(schema.prefix + out.getvalue())


def test_out_of_bounds_bytes_are_refused_with_the_field() -> None:
    """Other producers do not use our encoder."""
    message = encode(msgspec.structs.replace(EVENT, saturation=50.0))
    for value in (float("nan"), float("inf"), -float("inf")):
        changed = message.replace(struct.pack("<d", 50.0), struct.pack("<d", value))
        assert changed != message
        with pytest.raises(BoundsError, match=r"AgentEvent\.saturation: "):
            decode(changed)
