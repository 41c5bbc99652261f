"""Schema versions: records of every version can be read, and added fields have their defaults."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any

import avro.schema
import fastavro
import msgspec
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from schemas import registry
from schemas.codec.arrow import decode_batch, rows_as_records
from schemas.codec.single_object import decode, decode_fields, encode
from schemas.errors import SchemaError
from schemas.evolution import can_read, check_evolution
from schemas.records import Record
from schemas.registry import RecordSchema, build_schema, current_schemas, published_schemas, schema_of

Publish = Callable[[Iterable[Any]], None]
Encoder = Callable[[Iterable[Record]], list[bytes]]
ADDED = [
    ({"name": "note", "type": "string", "default": 'it\'s "quoted"'}, 'it\'s "quoted"'),
    ({"name": "note", "type": ["null", "string"], "default": None}, None),
    ({"name": "count", "type": "int", "default": -3}, -3),
    ({"name": "total", "type": "long", "default": 1 << 40}, 1 << 40),
    ({"name": "share", "type": "double", "default": 0.25}, 0.25),
    ({"name": "known", "type": "boolean", "default": True}, True),
    ({"name": "notes", "type": {"type": "array", "items": "string"}, "default": []}, []),
    ({"name": "scores", "type": {"type": "array", "items": "driftline.Redaction"}, "default": []}, []),
]


def change_fields(name: str, change: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
    """Return a record type's definition with changed fields."""
    definition = schema_of(name).definition
    return {**definition, "fields": change(json.loads(json.dumps(definition["fields"])))}


def add_doc(field: dict[str, Any]) -> dict[str, Any]:
    """Return the field with the required doc."""
    return {**field, "doc": "What it is."}


def test_every_schema_reads_every_version_before_it(record_name: str) -> None:
    """Avro's reference implementation decides, not the library that decodes."""
    current = schema_of(record_name)
    published = published_schemas()[record_name]
    for writer in published:
        verdict = ReaderWriterCompatibilityChecker().get_compatibility(
            avro.schema.parse(json.dumps(current.definition)), avro.schema.parse(json.dumps(writer.definition))
        )
        assert verdict.compatibility is SchemaCompatibilityType.compatible
        assert can_read(current, writer)
    check_evolution(current, published)
    for older, newer in pairwise(published):
        check_evolution(newer, [older])


def test_every_schema_is_published() -> None:
    """Records of an unpublished schema could not be read after the next change."""
    assert {name: schema.prefix for name, schema in current_schemas().items()} == {
        name: versions[-1].prefix for name, versions in published_schemas().items()
    }


def _dropped(fields: list[Any]) -> list[Any]:
    return [field for field in fields if field["name"] != "agent"]


def _renamed(fields: list[Any]) -> list[Any]:
    return [{**field, "name": "worker"} if field["name"] == "agent" else field for field in fields]


def _retyped(fields: list[Any]) -> list[Any]:
    return [{**field, "type": "bytes"} if field["name"] == "user_message" else field for field in fields]


def _promoted(fields: list[Any]) -> list[Any]:
    return [{**field, "type": ["null", "double"]} if field["name"] == "input_tokens" else field for field in fields]


def _made_nullable(fields: list[Any]) -> list[Any]:
    return [{**field, "type": ["null", "string"]} if field["name"] == "project" else field for field in fields]


def _made_plain(fields: list[Any]) -> list[Any]:
    return [{**field, "type": "long"} if field["name"] == "occurred_at" else field for field in fields]


def _without_default(fields: list[Any]) -> list[Any]:
    return [*fields, add_doc({"name": "mood", "type": "string"})]


def _changed_inside(fields: list[Any]) -> list[Any]:
    for field in fields:
        if field["name"] == "redactions":
            field["type"]["items"]["fields"].append(add_doc({"name": "extra", "type": "string", "default": ""}))
    return fields


@pytest.mark.parametrize(
    "change", [_dropped, _renamed, _retyped, _promoted, _made_nullable, _made_plain, _without_default, _changed_inside]
)
def test_an_incompatible_change_is_refused(change: Callable[[list[Any]], list[Any]]) -> None:
    """Some compatibility checks accept these changes, but they break columns, queries or the columnar decoder."""
    new = build_schema(change_fields("Exchange", change))
    with pytest.raises(SchemaError, match="Exchange") as caught:
        check_evolution(new, published_schemas()["Exchange"])
    assert "add a new one with a default" in caught.value.hint


def test_other_docs_are_no_new_version() -> None:
    """A version changes only with the meaning of the bytes."""
    reworded = change_fields("Exchange", lambda fields: [{**field, "doc": "Other words."} for field in fields])
    check_evolution(build_schema(reworded), published_schemas()["Exchange"])


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize(("field", "expected"), ADDED)
def test_an_added_field_has_its_default_in_old_records(
    field: dict[str, Any], expected: Any, *, front: bool, samples: Any, encode_all: Encoder, publish: Publish
) -> None:
    """Old and new records must look the same to readers, decoded one by one or in columns."""
    records = samples.records("Exchange", 50)
    old = encode_all(records)
    original = schema_of("Exchange").definition
    added = add_doc(field)
    extended = change_fields(
        "Exchange", lambda fields: [added, *fields] if front and "Redaction" not in str(field) else [*fields, added]
    )
    check_evolution(build_schema(extended), [build_schema(original)])
    publish([original, extended])
    batch = decode_batch(old)
    assert batch.rejected == []
    assert batch.frames["Exchange"][field["name"]].to_list() == [expected] * 50
    assert [decode_fields(message)[1][field["name"]] for message in old] == [expected] * 50
    assert records == [decode(message) for message in old]


def test_bytes_of_an_old_version_are_checked_as_strictly(samples: Any, encode_all: Encoder, publish: Publish) -> None:
    """Schema resolution must not bypass the checks."""
    (message,) = encode_all(samples.records("Heartbeat", 1))
    original = schema_of("Heartbeat").definition
    publish([original, change_fields("Heartbeat", lambda fields: [*fields, add_doc(ADDED[0][0])])])
    assert [item.index for item in decode_batch([message[:-1], message + b"\0", message]).rejected] == [0, 1]


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("version", [1, 2])
def test_scores_of_an_old_diagnosis_are_read_into_its_dimensions(version: int, count: int, samples: Any) -> None:
    """Readers use the list of dimensions for records of any version, decoded one by one or in columns."""
    old = published_schemas()["Diagnosis"][version - 1]
    records = [
        msgspec.structs.replace(one, threshold_profile=None, threshold_changes=None)
        for one in samples.records("Diagnosis", count)
    ]
    messages = [_encode_with(old, record) for record in records]
    expected = [[(name, score) for name, score in msgspec.structs.asdict(one.scores).items()] for one in records]

    decoded = [decode(message) for message in messages]
    assert [[(item.dimension, item.score) for item in one.dimensions] for one in decoded] == expected
    assert [
        msgspec.structs.replace(one, dimensions=now.dimensions) for one, now in zip(records, decoded, strict=True)
    ] == decoded
    batch = decode_batch(messages)
    assert batch.rejected == []
    assert decoded == [*rows_as_records("Diagnosis", batch.frames["Diagnosis"])]
    mixed = decode_batch([*messages, *map(encode, records)])
    assert [*rows_as_records("Diagnosis", mixed.frames["Diagnosis"])] == [*decoded, *records]


def _encode_with(schema: RecordSchema, record: Record) -> bytes:
    """Return the record, encoded with an older version of its schema."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema.parsed, msgspec.to_builtins(record, builtin_types=(datetime, bytes)))
    return schema.prefix + body.getvalue()


def test_versions_are_sorted_by_number(publish: Publish) -> None:
    """As text, "10" would come before "2"."""
    definition = schema_of("Heartbeat").definition
    versions = [
        {**definition, "fields": [*definition["fields"], *(add_doc({**ADDED[0][0], "name": f"n{i}"}) for i in range(count))]}
        for count in range(12)
    ]
    publish(versions)
    assert [len(definition["fields"]) + count for count in range(12)] == [
        len(version.fields) for version in registry.published_schemas()["Heartbeat"]
    ]
