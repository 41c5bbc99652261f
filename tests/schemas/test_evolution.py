"""Versions: every record ever written can be read, and what was added has its default."""

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


def changed(name: str, change: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
    """A record type's definition with other fields."""
    definition = schema_of(name).definition
    return {**definition, "fields": change(json.loads(json.dumps(definition["fields"])))}


def with_doc(field: dict[str, Any]) -> dict[str, Any]:
    """The field with a doc, which every field has."""
    return {**field, "doc": "What it is."}


def test_every_schema_reads_every_version_before_it(record_name: str) -> None:
    """The reference implementation is the judge, not the library that does the decoding."""
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
    """A record written with a schema that is not published could not be read after the next change."""
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
    return [*fields, with_doc({"name": "mood", "type": "string"})]


def _changed_inside(fields: list[Any]) -> list[Any]:
    for field in fields:
        if field["name"] == "redactions":
            field["type"]["items"]["fields"].append(with_doc({"name": "extra", "type": "string", "default": ""}))
    return fields


@pytest.mark.parametrize(
    "change", [_dropped, _renamed, _retyped, _promoted, _made_nullable, _made_plain, _without_default, _changed_inside]
)
def test_a_change_that_old_bytes_do_not_survive_is_refused(change: Callable[[list[Any]], list[Any]]) -> None:
    """Each of these passes some compatibility check and still breaks columns, queries or the columnar decoder."""
    new = build_schema(changed("Exchange", change))
    with pytest.raises(SchemaError, match="Exchange") as caught:
        check_evolution(new, published_schemas()["Exchange"])
    assert "add a new one with a default" in caught.value.hint


def test_other_words_and_another_order_are_no_new_version() -> None:
    """Only what the bytes mean is kept still."""
    reworded = changed("Exchange", lambda fields: [{**field, "doc": "Other words."} for field in fields])
    check_evolution(build_schema(reworded), published_schemas()["Exchange"])


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize(("field", "expected"), ADDED)
def test_an_added_field_has_its_default_in_old_records(
    field: dict[str, Any], expected: Any, *, front: bool, samples: Any, encode_all: Encoder, publish: Publish
) -> None:
    """Old bytes are decoded with their own schema; whoever reads must not be able to tell, one by one or in columns."""
    records = samples.records("Exchange", 50)
    old = encode_all(records)
    first = schema_of("Exchange").definition
    added = with_doc(field)
    second = changed(
        "Exchange", lambda fields: [added, *fields] if front and "Redaction" not in str(field) else [*fields, added]
    )
    check_evolution(build_schema(second), [build_schema(first)])
    publish([first, second])
    batch = decode_batch(old)
    assert batch.rejected == []
    assert batch.frames["Exchange"][field["name"]].to_list() == [expected] * 50
    assert [decode_fields(message)[1][field["name"]] for message in old] == [expected] * 50
    assert records == [decode(message) for message in old]


def test_old_bytes_are_as_strictly_checked_as_new_ones(samples: Any, encode_all: Encoder, publish: Publish) -> None:
    """Resolution must not be a way round the checks."""
    (message,) = encode_all(samples.records("Heartbeat", 1))
    first = schema_of("Heartbeat").definition
    publish([first, changed("Heartbeat", lambda fields: [*fields, with_doc(ADDED[0][0])])])
    assert [item.index for item in decode_batch([message[:-1], message + b"\0", message]).rejected] == [0, 1]


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("version", [1, 2])
def test_scores_of_a_diagnosis_from_before_the_list_of_dimensions_are_read_into_it(
    version: int, count: int, samples: Any
) -> None:
    """Whoever asks for a dimension asks the list, of records of any age; one by one and in columns the answer is the same."""
    old = published_schemas()["Diagnosis"][version - 1]
    records = [
        msgspec.structs.replace(one, threshold_profile=None, threshold_changes=None)
        for one in samples.records("Diagnosis", count)
    ]
    messages = [_written_with(old, record) for record in records]
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


def _written_with(schema: RecordSchema, record: Record) -> bytes:
    """The record as a version wrote it that knew fewer fields."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema.parsed, msgspec.to_builtins(record, builtin_types=(datetime, bytes)))
    return schema.prefix + body.getvalue()


def test_versions_are_sorted_by_number(publish: Publish) -> None:
    """The tenth version is newer than the second, whatever their names as text."""
    definition = schema_of("Heartbeat").definition
    versions = [
        {**definition, "fields": [*definition["fields"], *(with_doc({**ADDED[0][0], "name": f"n{i}"}) for i in range(count))]}
        for count in range(12)
    ]
    publish(versions)
    assert [len(definition["fields"]) + count for count in range(12)] == [
        len(version.fields) for version in registry.published_schemas()["Heartbeat"]
    ]
