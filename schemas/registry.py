"""The registry of all schemas of this version, current and historical, by name and by fingerprint.

The `.avsc` files in `avsc/` are the only definition of each record type. The Python record, the DuckDB table and the contract of the
topic are derived from them. Besides Avro's attributes a schema has `topics` (on which the record is sent), `table` (where it is
stored), `identity` (the fields that identify its subject) and `revision` (whether a later record of the same identity replaces an
earlier one).

A field can have the attribute `"unfolds": "scores"`. The field is a list of records with a name and a value; `scores` is a record with
one field per item, which every version has. In bytes or rows from before the list existed, the list is built from that record, in the
order of its fields, instead of from its default. Records and batches (`schemas.codec`) and tables (`analytics.store.tables`) agree.

Fingerprints are CRC-64-AVRO of the parsing canonical form, as Avro's specification defines them. Only fastavro computes them, because
the `avro` package renders logical types differently and would return another fingerprint.
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
    """A version of a record type. `definition` is self-contained: it defines named types at their first use."""

    name: str
    definition: Json
    parsed: Json
    prefix: bytes

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the record; none for internal records of the store."""
        return tuple(self.definition["topics"])

    @property
    def table(self) -> str:
        """The name of the table of the records."""
        return str(self.definition["table"])

    @property
    def identity(self) -> tuple[str, ...]:
        """The fields that identify the subject of the record."""
        return tuple(self.definition["identity"])

    @property
    def has_revisions(self) -> bool:
        """Whether a later record of the same identity replaces an earlier one."""
        return bool(self.definition["revision"])

    @property
    def fields(self) -> list[Json]:
        """The fields as Avro defines them."""
        return list(self.definition["fields"])


def build_schema(definition: Json) -> RecordSchema:
    """Parse one self-contained definition and compute its fingerprint prefix (marker and fingerprint, 10 bytes)."""
    parsed = fastavro.parse_schema(definition)
    crc = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")
    # fastavro returns the fingerprint in little-endian order, as the encoding requires.
    return RecordSchema(definition["name"], definition, cast("Json", parsed), MARKER + bytes.fromhex(crc))


@functools.cache
def current_schemas() -> dict[str, RecordSchema]:
    """Return the current version of every record type, by name."""
    definitions = {}
    for file in sorted(_avsc_folder().iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".avsc"):
            definition = json.loads(file.read_text(encoding="utf-8"))
            definitions[f"{NAMESPACE}.{definition['name']}"] = definition
    return {
        definition["name"]: build_schema(_inline_types(definition, definitions, set())) for definition in definitions.values()
    }


@functools.cache
def published_schemas() -> dict[str, tuple[RecordSchema, ...]]:
    """Return the published versions of each record type, oldest first; the last one is the current one once it is published."""
    history: dict[str, tuple[RecordSchema, ...]] = {}
    for folder in sorted(_history_folder().iterdir(), key=lambda entry: entry.name):
        if folder.is_dir():
            files = [file for file in folder.iterdir() if file.name.endswith(".avsc")]
            files.sort(key=_version_number)
            history[folder.name] = tuple(build_schema(json.loads(file.read_text(encoding="utf-8"))) for file in files)
    return history


def schema_of(name: str) -> RecordSchema:
    """Return the current version of a record type. Raises KeyError for an unknown name."""
    return current_schemas()[name]


@functools.cache
def schemas_by_prefix() -> dict[bytes, RecordSchema]:
    """Return all versions by the ten bytes with which their single-object encodings start."""
    published = [schema for versions in published_schemas().values() for schema in versions]
    return {schema.prefix: schema for schema in [*published, *current_schemas().values()]}


@functools.cache
def topics() -> dict[str, tuple[str, ...]]:
    """Return all topics with the names of their record types."""
    names_by_topic: dict[str, list[str]] = {}
    for schema in current_schemas().values():
        for topic in schema.topics:
            names_by_topic.setdefault(topic, []).append(schema.name)
    return {topic: tuple(sorted(names)) for topic, names in sorted(names_by_topic.items())}


class Unfolding(NamedTuple):
    """The rule of a list that is built from a record field: one item per name, with the name in `key` and its value in `value`."""

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
        source = field.get("unfolds")
        if source is not None:
            key, value = (part["name"] for part in field["type"]["items"]["fields"])
            names = tuple(part["name"] for part in by_name[source]["type"]["fields"])
            yield Unfolding(name, source, names, key, value)


def _avsc_folder() -> Traversable:
    return resources.files("schemas") / "avsc"


def _history_folder() -> Traversable:
    return resources.files("schemas") / "history"


def _inline_types(node: Any, definitions: dict[str, Json], defined: set[str]) -> Any:
    """Return the type with the first reference to each named type of another file replaced by its definition.

    `definitions` are the types of all files by full name; `defined` are the full names that need no definition any more.
    """
    if isinstance(node, str):
        if node in definitions and node not in defined:
            return _inline_types(definitions[node], definitions, defined)
        return node
    if isinstance(node, list):
        return [_inline_types(branch, definitions, defined) for branch in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") in ("record", "enum", "fixed"):
        defined.add(f"{NAMESPACE}.{node['name']}")
    inlined = dict(node)
    if node.get("type") == "record":
        inlined["fields"] = [{**field, "type": _inline_types(field["type"], definitions, defined)} for field in node["fields"]]
    elif node.get("type") == "array":
        inlined["items"] = _inline_types(node["items"], definitions, defined)
    elif isinstance(node.get("type"), (dict, list)):
        inlined["type"] = _inline_types(node["type"], definitions, defined)
    return inlined


def _version_number(file: Traversable) -> int:
    """Return the version of a historical schema, whose file is named after it."""
    return int(file.name.removesuffix(".avsc"))
