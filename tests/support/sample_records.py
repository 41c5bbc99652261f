"""Records of every type without hypothesis, made from their schemas: the same for the same seed, as many as a test needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from support import builders as build

from schemas import records
from schemas.bounds import EARLIEST, LATEST
from schemas.codec.single_object import encode
from schemas.contract import Between, Identifier, JsonObject, Labels, Named, OneOf, Rule, ToolCalls, rules_of, times_of
from schemas.records import Record
from schemas.registry import Json, schema_of


def in_order(record: Any) -> Any:
    """Return the record with its event time no later than its ingestion."""
    if {"occurred_at", "ingested_at"} <= set(record.__struct_fields__):
        return msgspec.structs.replace(record, occurred_at=min(record.occurred_at, record.ingested_at))
    return record


def nested_records(node: Any) -> Iterator[Json]:
    """Yield every record defined in a type, including itself."""
    if isinstance(node, dict) and node.get("type") == "record":
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nested_records(inner)


LAWFUL: dict[type[Rule], Any] = {
    Named: "ops",
    Identifier: "an id",
    Between: 1,
    JsonObject: "{}",
    Labels: (),
    ToolCalls: (),
}
"""Of each kind of rule a value that keeps it."""
CARRIERS = {"Anchor", "JudgingRequest"}
"""Records that carry an exchange, which has to be of what they name."""
LATEST_HEARD = datetime(2026, 11, 1, tzinfo=UTC)
"""Nothing that came on a topic has happened later."""


def lawful(record: Any) -> Any:
    """Return the record as valid input of a topic: fields that break the contract are replaced, and no time is in the future."""
    name = type(record).__name__
    changed: dict[str, Any] = {field: min(at, LATEST_HEARD) for field in times_of(name) if (at := getattr(record, field))}
    for field, rule in rules_of(name).items():
        value = getattr(record, field)
        if value is not None and rule.fault(value):
            changed[field] = rule.words[0] if isinstance(rule, OneOf) else LAWFUL[type(rule)]
    record = msgspec.structs.replace(record, **changed)
    if name not in CARRIERS:
        return record
    shared_fields = {field: getattr(record, field) for field in ("connection", "project", "exchange_id")}
    carried = build.exchange(getattr(record, "session_id", "s"), 1, **shared_fields)
    return msgspec.structs.replace(record, exchange=encode(carried))


class SampleMaker:
    """Makes many records of one type without Hypothesis; the same seed gives the same records."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def records(self, name: str, count: int) -> list[Record]:
        """Return this many records of a type."""
        definition = {"type": "record", "name": name, "fields": schema_of(name).fields}
        definitions = {f"driftline.{record['name']}": record for record in nested_records(definition)}
        return [in_order(self._value(definition, definitions)) for _ in range(count)]

    def _value(self, avro_type: Any, definitions: dict[str, Any]) -> Any:
        rng = self._random
        if isinstance(avro_type, str) and avro_type in definitions:
            return self._value(definitions[avro_type], definitions)
        if isinstance(avro_type, list):
            value = self._value(avro_type[1], definitions)
            return value if rng.random() < 0.6 else None
        if isinstance(avro_type, dict) and "logicalType" in avro_type:
            return EARLIEST + timedelta(microseconds=rng.randrange((LATEST - EARLIEST) // timedelta(microseconds=1)))
        if isinstance(avro_type, dict) and avro_type["type"] == "array":
            return tuple(self._value(avro_type["items"], definitions) for _ in range(rng.choice([0, 0, 1, 2, 5])))
        if isinstance(avro_type, dict):
            fields = {field["name"]: self._value(field["type"], definitions) for field in avro_type["fields"]}
            return getattr(records, avro_type["name"])(**fields)
        return self._primitive(avro_type)

    def _primitive(self, avro_type: str) -> Any:
        rng = self._random
        choices: dict[str, Callable[[], Any]] = {
            "string": lambda: rng.choice(["", "a", "tool_call", "\0", "çé👍", "w" * rng.randrange(200)]),
            "bytes": lambda: rng.randbytes(rng.randrange(80)),
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.randrange(-(1 << 31), 1 << 31) >> rng.choice([0, 10, 20, 30]),
            "long": lambda: rng.randrange(-(1 << 63), 1 << 63) >> rng.choice([0, 20, 40, 60]),
            "double": lambda: rng.uniform(-1e9, 1e9),
        }
        return choices[avro_type]()
