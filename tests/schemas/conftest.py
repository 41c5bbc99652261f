"""Fixtures of the schema tests: records of every type, damaged messages, and a temporary registry."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from support.sample_records import SampleMaker, in_order

from schemas import records, registry
from schemas.bounds import EARLIEST, LATEST
from schemas.codec import arrow
from schemas.codec.single_object import PREFIX_BYTES, encode
from schemas.records import RECORD_TYPES, Record
from schemas.registry import Json, schema_of

NASTY_TEXTS = [
    "",
    "\0",
    "a\0b",
    "\u202eevil\u202c",
    "\ufeff",
    "\u200b",
    "👩‍👩‍👧‍👦 🇪🇺",
    "\U0010ffff",
    "'; DROP TABLE x; --",
    "é" * 70,
    "x" * 9000,
]
TEXTS = st.one_of(st.sampled_from(NASTY_TEXTS), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
EDGES = [
    edge * sign + step for power in range(1, 10) for edge in [1 << (7 * power - 1)] for sign in (1, -1) for step in (-1, 0, 1)
]


def numbers(bits: int) -> st.SearchStrategy[int]:
    """Return integers of this many bits, with a preference for those at which the encoding gets longer."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    edges = [low, -1, 0, 1, high, *(edge for edge in EDGES if low <= edge <= high)]
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "bytes": st.binary(max_size=70),
    "boolean": st.booleans(),
    "int": numbers(32),
    "long": numbers(64),
    "double": st.floats(allow_nan=False, allow_infinity=False),
}
TIMES = st.datetimes(EARLIEST.replace(tzinfo=None), LATEST.replace(tzinfo=None), timezones=st.just(UTC))


def values_of(avro_type: Any, record_strategies: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return the values of an Avro type; `record_strategies` collects the nested record types."""
    if isinstance(avro_type, str):
        return record_strategies[avro_type] if avro_type in record_strategies else PRIMITIVES[avro_type]
    if isinstance(avro_type, list):
        return st.none() | values_of(avro_type[1], record_strategies)
    if "logicalType" in avro_type:
        return TIMES
    if avro_type["type"] == "array":
        items = values_of(avro_type["items"], record_strategies)
        short_lists = st.lists(items, max_size=3).map(tuple)
        # From 64 items on, the count has two bytes.
        return (
            short_lists | st.integers(63, 65).map(lambda count: ("a",) * count)
            if avro_type["items"] == "string"
            else short_lists
        )
    record_type = getattr(records, avro_type["name"])
    fields = {field["name"]: values_of(field["type"], record_strategies) for field in avro_type["fields"]}
    strategy = st.builds(record_type, **fields)
    record_strategies[f"driftline.{avro_type['name']}"] = strategy
    return strategy


def records_of(name: str) -> st.SearchStrategy[Record]:
    """Return the valid records of a type."""
    schema = schema_of(name)
    return values_of({"type": "record", "name": name, "fields": schema.fields}, {}).map(in_order)


ALL_RECORDS = {name: records_of(name) for name in RECORD_TYPES}


@pytest.fixture(scope="session", params=sorted(RECORD_TYPES))
def record_name(request: pytest.FixtureRequest) -> str:
    """The name of each record type in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def strategies() -> dict[str, st.SearchStrategy[Record]]:
    """The valid records of each type."""
    return ALL_RECORDS


@pytest.fixture
def samples() -> SampleMaker:
    """Records from a fixed seed."""
    return SampleMaker(20261001)


def number(value: int) -> bytes:
    """Return an Avro number, encoded independently of the code under test."""
    remaining, out = (value << 1) ^ (value >> 63), bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    return bytes([*out, remaining])


def damage_messages(messages: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    """Yield randomly chosen messages, each damaged or forged in a random way, without end."""
    while True:
        message, other_message = rng.choice(messages), rng.choice(messages)
        prefix, body = message[:PREFIX_BYTES], message[PREFIX_BYTES:]
        index, bit = rng.randrange(len(body)), 1 << rng.randrange(8)
        cut = body[:index]
        yield (
            prefix
            + rng.choice(
                [
                    cut,
                    body + rng.randbytes(rng.randrange(1, 20)),
                    body + bytes(rng.randrange(1, 4)),
                    cut + bytes([body[index] ^ bit]) + body[index + 1 :],
                    cut + rng.randbytes(len(body) - index),
                    body[:index] + body[index + 1 :],
                    body + other_message[PREFIX_BYTES:],  # two records in one body
                    cut + other_message[PREFIX_BYTES:],
                    other_message[PREFIX_BYTES:],
                    b"",
                    cut + number(rng.choice([1 << 20, 1 << 40, -1, -(1 << 62), len(body), len(other_message)])) + body[index:],
                    cut + b"\xff" * 9 + b"\x01" + body[index:],
                    cut + b"\x80" * 12 + body[index:],
                    cut + b"\x04" + body[index + 1 :],  # branch 2 of two
                    cut + b"\x03" + body[index + 1 :],  # branch -2, or a boolean that is neither
                ]
            )
        )


@pytest.fixture
def damaged() -> Callable[[Sequence[bytes], int], Iterator[bytes]]:
    """A function that yields damaged versions of messages, from a seed."""
    return lambda messages, seed: damage_messages(list(messages), random.Random(seed))


@pytest.fixture
def avro_number() -> Callable[[int], bytes]:
    """The encoding of a number in Avro."""
    return number


CACHED = (
    registry.current_schemas,
    registry.published_schemas,
    registry.schemas_by_prefix,
    registry.topics,
    arrow.empty_frame,
)


def clear_registry_caches() -> None:
    """Make the registry read the schema files again. Caches by fingerprint stay valid."""
    for cached in CACHED:
        cached.cache_clear()


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that replaces the registry by versions of record types, oldest first; the last version is the current one."""
    counter = itertools.count()

    def write(versions: Iterable[Json]) -> None:
        folder = tmp_path / f"registry{next(counter)}"
        (folder / "avsc").mkdir(parents=True)
        (folder / "history").mkdir()
        numbers_of: dict[str, Iterator[int]] = {}
        for definition in versions:
            name = definition["name"]
            history = folder / "history" / name
            history.mkdir(exist_ok=True)
            version = next(numbers_of.setdefault(name, itertools.count(1)))
            (history / f"{version}.avsc").write_text(json.dumps(definition), encoding="utf-8")
            (folder / "avsc" / f"{name}.avsc").write_text(json.dumps(definition), encoding="utf-8")
        monkeypatch.setattr(registry, "_avsc_folder", lambda: folder / "avsc")
        monkeypatch.setattr(registry, "_history_folder", lambda: folder / "history")
        clear_registry_caches()

    yield write
    monkeypatch.undo()
    clear_registry_caches()


def encode_records(items: Iterable[Record]) -> list[bytes]:
    """Return the records as messages."""
    return [encode(item) for item in items]


@pytest.fixture
def encode_all() -> Callable[[Iterable[Record]], list[bytes]]:
    """A function that encodes records as messages."""
    return encode_records
