"""The rules of `schemas.bounds.record_bounds` as expressions over columns."""

from __future__ import annotations

import functools
from typing import Any

from schemas.bounds.limits import CLOCK_TOLERANCE, EARLIEST, LATEST
from schemas.lazy import pl
from schemas.registry import NAMESPACE, schemas_by_prefix


def _broken(avro_type: Any, value: pl.Expr, named: dict[str, Any]) -> pl.Expr | None:
    """True where a decoded value is out of bounds, as `_check_of` judges it; a decoded int cannot be."""
    if isinstance(avro_type, str):
        if avro_type in named:
            return _broken(named[avro_type], value, named)
        return ~value.is_finite() if avro_type in ("double", "float") else None
    if isinstance(avro_type, list):
        return _broken(avro_type[1], value, named)
    if "logicalType" in avro_type:
        return ~value.is_between(EARLIEST, LATEST)
    if avro_type["type"] == "array":
        item = _broken(avro_type["items"], pl.element(), named)
        return None if item is None else value.list.eval(item.fill_null(value=False)).list.any()
    named[f"{NAMESPACE}.{avro_type['name']}"] = avro_type
    fields = [_broken(field["type"], value.struct.field(field["name"]), named) for field in avro_type["fields"]]
    return pl.any_horizontal(*found) if (found := [field for field in fields if field is not None]) else None


@functools.cache
def bounds_of(prefix: bytes) -> dict[str, pl.Expr]:
    """For each field of a schema that has bounds: an expression that is true where a value is out of them."""
    named: dict[str, Any] = {}
    fields = schemas_by_prefix()[prefix].fields
    found = {field["name"]: _broken(field["type"], pl.col(field["name"]), named) for field in fields}
    bounds = {name: broken.fill_null(value=False) for name, broken in found.items() if broken is not None}
    if {"occurred_at", "ingested_at"} <= bounds.keys():
        bounds["occurred_at"] |= pl.col("occurred_at") > pl.col("ingested_at") + CLOCK_TOLERANCE
    return bounds
