"""Bounds of single records: checked when a record is accepted and again when bytes are decoded.

The limits come from what breaks readers downstream: times near 2^63 encode and then crash every reader, NaN makes every mean
NaN, and Kafka refuses messages over about a megabyte.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from schemas.bounds.limits import CLOCK_TOLERANCE, EARLIEST, LATEST
from schemas.errors import BoundsError
from schemas.registry import NAMESPACE, RecordSchema, schemas_by_prefix


def _check_time(name: str, value: datetime, latest: datetime = LATEST) -> None:
    if value.tzinfo is None:
        raise BoundsError(f"{name}: time without a time zone", hint="Times are UTC: attach the zone.")
    if not EARLIEST <= value <= latest:
        raise BoundsError(f"{name}: {value.isoformat()} is outside {EARLIEST.date()} to {latest.isoformat()}")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise BoundsError(f"{name}: {value} is not a finite number")


def _check_int(name: str, value: int) -> None:
    if not -(1 << 31) <= value < 1 << 31:
        raise BoundsError(f"{name}: {value} takes more than 32 bits")


Check = Callable[[Any], None]
_CHECKS: dict[str, Callable[[str, Any], None]] = {"double": _check_finite, "float": _check_finite, "int": _check_int}


def _check_of(avro_type: Any, name: str, named: dict[str, Any]) -> Check | None:
    """Return the check for a value of the type, or None if any value will do. `name` is the field's, `named` collects the records met."""
    if isinstance(avro_type, str):
        if avro_type in named:
            return _check_of(named[avro_type], name, named)
        return functools.partial(_CHECKS[avro_type], name) if avro_type in _CHECKS else None
    if isinstance(avro_type, list):
        return _check_of(avro_type[1], name, named)
    if "logicalType" in avro_type:
        return functools.partial(_check_time, name)
    if avro_type["type"] == "array":
        item = _check_of(avro_type["items"], name, named)
        return item and functools.partial(_check_items, item)
    named[f"{NAMESPACE}.{avro_type['name']}"] = avro_type
    checks = [
        (field["name"], check)
        for field in avro_type["fields"]
        if (check := _check_of(field["type"], f"{name}.{field['name']}", named))
    ]
    return functools.partial(_check_record, checks) if checks else None


def _check_items(check: Check, values: Sequence[Any]) -> None:
    for value in values:
        check(value)


def _check_record(checks: Sequence[tuple[str, Check]], fields: dict[str, Any]) -> None:
    for field, check in checks:
        if (value := fields.get(field)) is not None:
            check(value)


@functools.cache
def _checks_of(prefix: bytes) -> Check:
    schema = schemas_by_prefix()[prefix]
    return _check_of({"type": "record", "name": schema.name, "fields": schema.fields}, schema.name, {}) or (lambda _: None)


def check_fields(schema: RecordSchema, fields: dict[str, Any]) -> None:
    """BoundsError naming the field when a time or number of a record lies outside what it may hold."""
    _checks_of(schema.prefix)(fields)
    occurred, ingested = fields.get("occurred_at"), fields.get("ingested_at")
    if occurred is not None and ingested is not None:
        _check_time(f"{schema.name}.occurred_at", occurred, ingested + CLOCK_TOLERANCE)
