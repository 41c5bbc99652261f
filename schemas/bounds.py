"""What a record may hold, beyond its types: checked when a record is accepted and again when bytes are decoded.

The limits come from what breaks readers downstream: times near 2^63 encode and then crash every reader, NaN makes every mean
NaN, and Kafka refuses messages over about a megabyte.
"""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from schemas.errors import BoundsError
from schemas.registry import NAMESPACE, RecordSchema, schemas_by_prefix

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
CLOCK_TOLERANCE = timedelta(days=1)
"""How far an event's own time may lie after the time it was taken in: clocks are off, time zones are forgotten."""
MAX_RECORD_BYTES = 1_000_000
"""Encoded size; Kafka's default limit for a message is 1 048 588 bytes."""
MAX_DEPTH = 32
"""Nesting of JSON documents inside records."""


def check_depth(value: Any, name: str, limit: int = MAX_DEPTH) -> None:
    """BoundsError when a JSON value nests deeper than `limit`; iterative, so that no depth can exhaust the stack."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise BoundsError(f"{name}: nested more than {limit} levels deep")


def _check_time(name: str, value: datetime, latest: datetime) -> None:
    if value.tzinfo is None:
        raise BoundsError(f"{name}: time without a time zone", hint="Times are UTC: attach the zone.")
    if not EARLIEST <= value <= latest:
        raise BoundsError(f"{name}: {value.isoformat()} is outside {EARLIEST.date()} to {latest.isoformat()}")


@functools.cache
def _bounded_fields(prefix: bytes) -> tuple[tuple[str, str], ...]:
    """The fields of a schema that have bounds, with what they hold: time, number or nested."""
    schema = schemas_by_prefix()[prefix]
    kinds = ((field["name"], _bounded_kind(field["type"])) for field in schema.fields)
    return tuple((name, kind) for name, kind in kinds if kind)


def _bounded_kind(avro_type: Any) -> str:
    if isinstance(avro_type, list):
        return next((kind for kind in map(_bounded_kind, avro_type) if kind), "")
    if isinstance(avro_type, dict):
        if "logicalType" in avro_type:
            return "time"
        return "nested" if avro_type.get("items") != "string" else ""
    if avro_type == "double":
        return "number"
    return "nested" if avro_type.startswith(NAMESPACE) else ""


def check_fields(schema: RecordSchema, fields: dict[str, Any]) -> None:
    """BoundsError naming the field when a time or number of a record lies outside what it may hold."""
    ingested = fields.get("ingested_at")
    for name, kind in _bounded_fields(schema.prefix):
        value = fields.get(name)
        if value is None:
            continue
        if kind == "time":
            latest = ingested + CLOCK_TOLERANCE if name == "occurred_at" and ingested is not None else LATEST
            _check_time(f"{schema.name}.{name}", value, min(latest, LATEST))
        else:
            _check_nested(f"{schema.name}.{name}", value)


def _check_nested(place: str, value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BoundsError(f"{place}: {value} is not a finite number")
    elif isinstance(value, datetime):
        _check_time(place, value, LATEST)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_nested(f"{place}.{name}", item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_nested(place, item)


@functools.cache
def bounds_of(prefix: bytes) -> dict[str, pl.Expr]:
    """For each top-level time and number of a schema: an expression that is true where the value is out of bounds."""
    schema = schemas_by_prefix()[prefix]
    names = {field["name"] for field in schema.fields}
    found = {}
    for name, kind in _bounded_fields(prefix):
        if kind == "number":
            broken = ~pl.col(name).is_finite()
        elif kind == "time":
            broken = ~pl.col(name).is_between(EARLIEST, LATEST)
            if name == "occurred_at" and "ingested_at" in names:
                broken |= pl.col(name) > pl.col("ingested_at") + CLOCK_TOLERANCE
        else:
            continue
        found[name] = broken.fill_null(value=False)
    return found
