"""Examples of bodies and answers for the description of the API, put together from what their fields say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
_REFERENCE = "#/components/schemas/"
_BY_FORMAT = {"date-time": "2026-10-01T09:07:00Z", "date": "2026-10-01"}
_BY_TYPE: Mapping[str, Any] = {"string": "…", "integer": 1, "number": 1, "boolean": True, "null": None}
MAX_NESTED = 8
"""Levels; no body and no answer has more."""


def example_of(schema: Schema, components: Mapping[str, Schema], depth: int = 0) -> Any:
    """A value that a schema allows: its own example where it has one, else made of those of its parts."""
    if "$ref" in schema:
        return example_of(components[schema["$ref"].removeprefix(_REFERENCE)], components, depth)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    for name in ("example", "const"):
        if name in schema:
            return schema[name]
    if depth > MAX_NESTED:
        return None
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return example_of(schema[name][0], components, depth + 1)
    return _made(schema, components, depth)


def _made(schema: Schema, components: Mapping[str, Schema], depth: int) -> Any:
    kind = schema.get("type", "object")
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: example_of(field, components, depth + 1) for name, field in fields.items() if not field.get("deprecated")}
    if kind == "array":
        return [example_of(schema["items"], components, depth + 1)] if "items" in schema else []
    if "format" in schema:
        return _BY_FORMAT.get(schema["format"], _BY_TYPE[kind])
    return schema.get("default", schema.get("minimum", _BY_TYPE[kind]))
