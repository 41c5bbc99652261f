"""The schema files: each has docs, topics, a table and an identity."""

from __future__ import annotations

import inspect
import itertools
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from schemas import records
from schemas.records import RECORD_TYPES, Record
from schemas.registry import build_schema, current_schemas, published_schemas, schema_of, schemas_by_prefix, topics

NAME = re.compile(r"[a-z][a-z0-9_]*")
KINDS = {"string", "bytes", "boolean", "int", "long", "double"}


def fields_in(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every field at every depth."""
    if isinstance(node, list):
        for branch in node:
            yield from fields_in(branch)
    elif isinstance(node, dict):
        for field in node.get("fields", ()):
            yield field
            yield from fields_in(field["type"])
        yield from fields_in(node.get("items"))


def types_in(node: Any) -> Iterator[Any]:
    """Yield every type at every depth."""
    yield node
    if isinstance(node, list):
        yield from itertools.chain.from_iterable(map(types_in, node))
    elif isinstance(node, dict):
        for inner in [*(field["type"] for field in node.get("fields", ())), *([node["items"]] if "items" in node else [])]:
            yield from types_in(inner)


def test_every_record_and_field_is_explained(record_name: str) -> None:
    """The docs become the comments of the columns that analysts query."""
    definition = schema_of(record_name).definition
    described = [node for node in types_in(definition) if isinstance(node, dict) and node["type"] == "record"]
    assert all(re.fullmatch(r"[A-Za-z0-9].*[.!?]", text["doc"]) for text in [*described, *fields_in(definition)])


def test_every_schema_has_a_table_topics_and_an_identity(record_name: str) -> None:
    """A record type without them could not be stored."""
    schema = schema_of(record_name)
    definition = schema.definition
    assert definition["namespace"] == "driftline"
    assert isinstance(definition["revision"], bool)
    assert isinstance(definition["topics"], list)
    assert NAME.fullmatch(schema.table)
    assert schema.identity
    assert set(schema.identity) <= {field["name"] for field in schema.fields}
    assert len(schema.identity) == len(set(schema.identity))


def test_identity_is_never_null(record_name: str) -> None:
    """NULL equals nothing, so with a null in its identity every delivery would be a new record."""
    schema = schema_of(record_name)
    kinds = {field["name"]: field["type"] for field in schema.fields}
    assert not [name for name in schema.identity if isinstance(kinds[name], list)]


def test_a_replaceable_record_of_a_topic_has_a_revision(record_name: str) -> None:
    """Readers see the highest revision, so every record needs one."""
    schema = schema_of(record_name)
    has_column = "revision" in {field["name"] for field in schema.fields}
    assert has_column == (schema.has_revisions and bool(schema.topics))


def test_field_names_are_valid_in_python_and_sql(record_name: str) -> None:
    """A field is an attribute and a column; names with a leading underscore are reserved for the store."""
    names = [field["name"] for field in fields_in(schema_of(record_name).definition)]
    assert not [name for name in names if not NAME.fullmatch(name) or keyword.iskeyword(name)]


def test_only_types_that_every_decoder_agrees_on_are_used(record_name: str) -> None:
    """Decoders differ or crash on maps, enums and wider unions. No type may contain itself."""
    definition = schema_of(record_name).definition
    record_types = {
        f"driftline.{node['name']}" for node in types_in(definition) if isinstance(node, dict) and node["type"] == "record"
    }
    for node in types_in(definition):
        if isinstance(node, str):
            assert node in KINDS | record_types | {"null"}
        elif isinstance(node, list):
            assert node[0] == "null"
            assert len(node) == 2
            # The columnar check supports null only in unions with plain values.
            assert node[1]["logicalType"] == "timestamp-micros" if isinstance(node[1], dict) else node[1] in KINDS
        else:
            assert node["type"] in {"record", "array"} or (node["type"], node["logicalType"]) == ("long", "timestamp-micros")


def test_defaults_are_of_their_type(record_name: str) -> None:
    """Records from before a field was added get its default."""
    kinds = {"string": str, "bytes": str, "boolean": bool, "int": int, "long": int, "double": (int, float)}
    for field in fields_in(schema_of(record_name).definition):
        if "default" not in field:
            continue
        if isinstance(field["type"], list):
            assert field["default"] is None
        elif isinstance(field["type"], dict):
            assert field["type"]["type"] == "array"
            assert field["default"] == []
        else:
            assert isinstance(field["default"], kinds[field["type"]])


def test_tables_belong_to_one_record_type_each() -> None:
    """Records of two types in one table could not be distinguished."""
    assert set(Counter(schema.table for schema in current_schemas().values()).values()) == {1}


def test_topics_list_their_record_types() -> None:
    """A topic's contract is the set of its record types."""
    types_by_topic = {(topic, name) for topic, names in topics().items() for name in names}
    assert types_by_topic == {(topic, schema.name) for schema in current_schemas().values() for topic in schema.topics}
    assert {"exchanges", "agent-events"} <= topics().keys()
    assert topics()["exchanges"] == ("Exchange", "JudgingRequest", "SessionClosed")


def test_every_type_has_its_record_and_every_record_its_type() -> None:
    """The generated module and the schema files must have the same record types."""
    assert set(current_schemas()) == set(RECORD_TYPES)
    assert all(RECORD_TYPES[name] is getattr(records, name) for name in RECORD_TYPES)
    nested = {node["name"] for schema in current_schemas().values() for node in types_in(schema.definition) if _is_record(node)}
    classes = {name for name, item in vars(records).items() if inspect.isclass(item) and issubclass(item, Record)}
    assert classes == nested | {"Record"}


def _is_record(node: Any) -> bool:
    return isinstance(node, dict) and node["type"] == "record"


def test_a_record_has_the_fields_of_its_schema_in_order(record_name: str) -> None:
    """The order of fields is that of the columns."""
    assert tuple(field["name"] for field in schema_of(record_name).fields) == RECORD_TYPES[record_name].__struct_fields__


def test_every_version_is_found_by_its_fingerprint() -> None:
    """Old bytes are always read with the schema that wrote them."""
    versions = [version for history in published_schemas().values() for version in history]
    assert {version.prefix: version.name for version in versions} == {
        prefix: schema.name for prefix, schema in schemas_by_prefix().items()
    }


def test_the_current_definition_wins_over_a_published_one_of_the_same_fingerprint(
    publish: Callable[[Iterable[Any]], None],
) -> None:
    """Docs and defaults are not part of the fingerprint, so the newest ones count."""
    original = schema_of("Heartbeat").definition
    reworded = {**original, "doc": "Other words."}
    publish([original, reworded])
    assert build_schema(original).prefix == build_schema(reworded).prefix
    assert schemas_by_prefix()[build_schema(original).prefix].definition["doc"] == "Other words."


def test_an_unknown_record_type_is_a_key_error() -> None:
    """Names of record types come from the code, never from a user."""
    with pytest.raises(KeyError):
        schema_of("Nothing")
