"""Members of JSON documents, made of the fields of rows and records: names in camelCase, times in ISO 8601 UTC with a Z."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from audit.times import time_text

Document = dict[str, Any]


def camel(name: str) -> str:
    """Return the name in camelCase; Tier 2.5 keeps its underscore, lest it read as a tier 25."""
    first, *parts = name.split("_")
    return (first + "".join(part[:1].upper() + part[1:] for part in parts)).replace("ier25", "ier2_5")


def members(source: Mapping[str, Any] | msgspec.Struct, fields: str) -> Document:
    """Return the fields of a row or record as members of a document, in this order; `member=field` renames one."""
    row = source if isinstance(source, Mapping) else msgspec.structs.asdict(source)
    return {member: shown(row[field]) for member, field in names(fields)}


@functools.cache
def names(fields: str) -> tuple[tuple[str, str], ...]:
    """Return the name of each member, and of the field that it shows."""
    pairs = (one.partition("=") for one in fields.split())
    return tuple((member, field) if equals else (camel(member), member) for member, equals, field in pairs)


def shown(value: Any) -> Any:
    """Return a value as documents show it: a time as a text, a tuple as a list."""
    return list(value) if isinstance(value, tuple) else time_text(value)
