"""Records to bytes and back, one at a time: Avro single-object encoding.

A value is C3 01, the 8-byte little-endian CRC-64-AVRO fingerprint of the writer's schema, and the Avro body; so several record
types and versions share a topic without a registry. Batches are decoded in `schemas.arrow`.
"""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any, TypeVar

import fastavro
import msgspec

from schemas.bounds import MAX_RECORD_BYTES, check_fields
from schemas.errors import BoundsError, FramingError, MalformedBodyError, RecordError, UnknownSchemaError
from schemas.records import RECORD_TYPES, Record
from schemas.registry import MARKER, RecordSchema, schema_of, schemas_by_prefix

PREFIX_BYTES = 10
AnyRecord = TypeVar("AnyRecord", bound=Record)


def encode(record: Record) -> bytes:
    """The record in single-object encoding; BoundsError naming the field when it may not be written."""
    schema = schema_of(type(record).__name__)
    fields = msgspec.to_builtins(record, builtin_types=(datetime, bytes))
    check_fields(schema, fields)
    buffer = io.BytesIO()
    buffer.write(schema.prefix)
    try:
        fastavro.schemaless_writer(buffer, schema.parsed, fields)
    except (ValueError, TypeError, OverflowError) as error:  # a lone surrogate, a number over 64 bits, a wrong type
        raise BoundsError(f"{schema.name}: {_first_fault(schema, fields) or error}") from error
    if buffer.tell() > MAX_RECORD_BYTES:
        raise BoundsError(f"{schema.name}: {buffer.tell()} bytes encoded, {MAX_RECORD_BYTES} allowed")
    return buffer.getvalue()


def _first_fault(schema: RecordSchema, fields: dict[str, Any]) -> str:
    """Name and reason of the first field that cannot be written by itself."""
    for field in schema.fields:
        try:
            alone = fastavro.parse_schema({**schema.definition, "fields": [field]})
            fastavro.schemaless_writer(io.BytesIO(), alone, {field["name"]: fields[field["name"]]})
        except (ValueError, TypeError, OverflowError) as error:
            return f"{field['name']}: {error}"
        except fastavro.schema.UnknownType:  # it refers to a type that an earlier field defines
            continue
    return ""


def writer_schema(message: bytes) -> RecordSchema:
    """The schema a message was written with; FramingError or UnknownSchemaError when there is none."""
    if message[:2] != MARKER or len(message) < PREFIX_BYTES:
        raise FramingError(f"{len(message)} bytes that start with {message[:10].hex(' ') or 'nothing'}, not with c3 01")
    schema = schemas_by_prefix().get(message[:PREFIX_BYTES])
    if schema is None:
        raise UnknownSchemaError(f"no schema has the fingerprint {message[2:PREFIX_BYTES].hex()}")
    return schema


def decode_fields(message: bytes) -> tuple[str, dict[str, Any]]:
    """Name of the record type and its fields by the current schema, older versions resolved; RecordError when it cannot be."""
    schema = writer_schema(message)
    body = io.BytesIO(message)
    body.seek(PREFIX_BYTES)
    try:
        fields = fastavro.schemaless_reader(body, schema.parsed, schema_of(schema.name).parsed)
    except Exception as error:  # fastavro raises whatever the damaged bytes run into
        raise MalformedBodyError(f"{schema.name}: {type(error).__name__}: {error}") from error
    if body.tell() != len(message):
        raise MalformedBodyError(f"{schema.name}: {len(message) - body.tell()} bytes too many")
    if not isinstance(fields, dict):
        raise MalformedBodyError(f"{schema.name}: not a record")
    check_fields(schema_of(schema.name), fields)
    return schema.name, fields


def decode(message: bytes) -> Record:
    """The record in a message; FramingError, UnknownSchemaError, MalformedBodyError or BoundsError when there is none."""
    name, fields = decode_fields(message)
    return record_from(RECORD_TYPES[name], fields)


def record_from(record_type: type[AnyRecord], fields: dict[str, Any]) -> AnyRecord:
    """A record of the type from its fields as builtins; RecordError naming the field that does not fit."""
    try:
        return msgspec.convert(fields, record_type)
    except msgspec.ValidationError as error:
        raise RecordError(f"{record_type.__name__}: {error}") from error
