"""Every schema this version knows, current and historical, found by name or by fingerprint.

The `.avsc` files in `avsc/` are the one definition of each record type: the Python record, the DuckDB table and the topic's
contract come from them. Beside Avro's own attributes a schema carries `topics` (where it travels), `table` (where it is stored),
`identity` (the fields that say which thing it is about) and `revision` (whether a later record of the same identity replaces
an earlier one).

A field may carry `"unfolds": "scores"`: the field is a list of records of a name and a value, and `scores` is a record with one field per
item, which every version has. If bytes or rows are from before the field existed, the field is read from that record, one item per field
in their order, and not from its default. Records (`schemas.codec`), batches of columns and tables (`analytics.store.tables`) do so alike.

Fingerprints are CRC-64-AVRO over the parsing canonical form, as Avro's specification defines them, computed with fastavro
only: the `avro` package renders logical types differently and would give another one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple, cast

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

NAMESPACE = "driftline"
MARKER = b"\xc3\x01"

Json = dict[str, Any]


@dataclass(frozen=True)
class RecordSchema:
    """One version of one record type. `definition` is self-contained: named types are spelled out at first use."""

    name: str
    definition: Json
    parsed: Json
    prefix: bytes

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics the record travels on; none for what only the store keeps."""
        return tuple(self.definition["topics"])

    @property
    def table(self) -> str:
        """Name of the table the records land in."""
        return str(self.definition["table"])

    @property
    def identity(self) -> tuple[str, ...]:
        """Fields that say which thing the record is about."""
        return tuple(self.definition["identity"])

    @property
    def has_revisions(self) -> bool:
        """True if a later record of the same identity replaces an earlier one."""
        return bool(self.definition["revision"])

    @property
    def fields(self) -> list[Json]:
        """The fields as Avro defines them."""
        return list(self.definition["fields"])


def _avsc_folder() -> Traversable:
    return resources.files("schemas") / "avsc"


def _history_folder() -> Traversable:
    return resources.files("schemas") / "history"


def _spell_out(node: Any, named: dict[str, Json], seen: set[str]) -> Any:
    """Replace the first reference to each named type of another file by its definition."""
    if isinstance(node, str):
        if node in named and node not in seen:
            return _spell_out(named[node], named, seen)
        return node
    if isinstance(node, list):
        return [_spell_out(branch, named, seen) for branch in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") in ("record", "enum", "fixed"):
        seen.add(f"{NAMESPACE}.{node['name']}")
    spelled = dict(node)
    if node.get("type") == "record":
        spelled["fields"] = [{**field, "type": _spell_out(field["type"], named, seen)} for field in node["fields"]]
    elif node.get("type") == "array":
        spelled["items"] = _spell_out(node["items"], named, seen)
    elif isinstance(node.get("type"), (dict, list)):
        spelled["type"] = _spell_out(node["type"], named, seen)
    return spelled


def build_schema(definition: Json) -> RecordSchema:
    """Parse one self-contained definition and compute its fingerprint prefix (marker and fingerprint, 10 bytes)."""
    parsed = fastavro.parse_schema(definition)
    crc = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")
    # fastavro prints the fingerprint's bytes in little-endian order, which is the order the wire wants.
    return RecordSchema(definition["name"], definition, cast("Json", parsed), MARKER + bytes.fromhex(crc))


@functools.cache
def current_schemas() -> dict[str, RecordSchema]:
    """Return every record type by name, in its current version."""
    definitions = {}
    for file in sorted(_avsc_folder().iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".avsc"):
            definition = json.loads(file.read_text(encoding="utf-8"))
            definitions[f"{NAMESPACE}.{definition['name']}"] = definition
    return {definition["name"]: build_schema(_spell_out(definition, definitions, set())) for definition in definitions.values()}


@functools.cache
def earlier_schemas() -> dict[str, tuple[RecordSchema, ...]]:
    """Return every published version of each record type, oldest first, the current one last once it is published."""
    history: dict[str, tuple[RecordSchema, ...]] = {}
    for folder in sorted(_history_folder().iterdir(), key=lambda entry: entry.name):
        if folder.is_dir():
            files = sorted(
                (file for file in folder.iterdir() if file.name.endswith(".avsc")),
                key=lambda file: int(file.name.split(".")[0]),
            )
            history[folder.name] = tuple(build_schema(json.loads(file.read_text(encoding="utf-8"))) for file in files)
    return history


def schema_of(name: str) -> RecordSchema:
    """Return the current version of a record type; KeyError when there is none of that name."""
    return current_schemas()[name]


@functools.cache
def schemas_by_prefix() -> dict[bytes, RecordSchema]:
    """Return every known version by the ten bytes its single-object encodings start with."""
    versions: Iterator[RecordSchema] = (schema for versions in earlier_schemas().values() for schema in versions)
    return {schema.prefix: schema for schema in [*versions, *current_schemas().values()]}


@functools.cache
def topics() -> dict[str, tuple[str, ...]]:
    """Return every topic with the names of the record types that travel on it."""
    found: dict[str, list[str]] = {}
    for schema in current_schemas().values():
        for topic in schema.topics:
            found.setdefault(topic, []).append(schema.name)
    return {topic: tuple(sorted(names)) for topic, names in sorted(found.items())}


class Unfolding(NamedTuple):
    """A rule that reads one field out of another: an item per name, with the name in `key` and its value in `value`."""

    field: str
    source: str
    names: tuple[str, ...]
    key: str
    value: str

    def items(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the items of a decoded record."""
        return [{self.key: name, self.value: record[self.source][name]} for name in self.names]


def unfoldings(schema: RecordSchema) -> Iterator[Unfolding]:
    """Yield the unfoldings of a record type."""
    by_name = {field["name"]: field for field in schema.fields}
    for name, field in by_name.items():
        if (source := field.get("unfolds")) is not None:
            key, value = (part["name"] for part in field["type"]["items"]["fields"])
            names = tuple(part["name"] for part in by_name[source]["type"]["fields"])
            yield Unfolding(name, source, names, key, value)
