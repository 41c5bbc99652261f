"""Unfolding: lists that earlier versions of a record type had as a record with one field per item.

A field whose schema says `"unfolds": "scores"` is a list of records of a name and a value, and `scores` is a record that every
version has. Of bytes and rows from before the field existed it is read as one item per field of that record, in their order, and
not as its default. `schemas.codec` and `analytics.store.tables` read it so: a record, a batch of columns and a table say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from schemas.registry import RecordSchema


class Unfolding(NamedTuple):
    """A rule that reads one field out of another: an item per name, with the name in `key` and its value in `value`."""

    field: str
    source: str
    names: tuple[str, ...]
    key: str
    value: str

    def items(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """The items of a decoded record."""
        return [{self.key: name, self.value: record[self.source][name]} for name in self.names]


def unfoldings(schema: RecordSchema) -> Iterator[Unfolding]:
    """Yield the unfoldings of a record type."""
    by_name = {field["name"]: field for field in schema.fields}
    for name, field in by_name.items():
        if (source := field.get("unfolds")) is not None:
            key, value = (part["name"] for part in field["type"]["items"]["fields"])
            names = tuple(part["name"] for part in by_name[source]["type"]["fields"])
            yield Unfolding(name, source, names, key, value)
