"""Records to bytes and back, one at a time: Avro single-object encoding.

A value is C3 01, the 8-byte little-endian CRC-64-AVRO fingerprint of the writer's schema, and the Avro body; so several record
types and versions share a topic without a registry. Batches are decoded in `schemas.codec.arrow`.

A body is taken only in its canonical form: the shortest form of each number, one block an array without its size in bytes, 0 or
1 for a boolean and for the branch of a union. Every common encoder writes so, and what decodes encodes to the same bytes again.
"""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any, TypeVar, cast

import fastavro
import msgspec

from schemas.bounds import MAX_RECORD_BYTES, check_fields
from schemas.codec.record_writers import FIELDS_WRITERS, RECORD_WRITERS
from schemas.errors import (
    BoundsError,
    FramingError,
    MalformedBodyError,
    RecordError,
    RegistryFramingError,
    UnknownSchemaError,
)
from schemas.records import RECORD_TYPES, Record
from schemas.registry import MARKER, Json, RecordSchema, schema_of, schemas_by_prefix, unfoldings
from schemas.validation_messages import decoding_words

PREFIX_BYTES = 10
REGISTRY_MAGIC = b"\x00"
"""First byte of a value that is framed for a schema registry; the schema's id follows, 4 bytes, big-endian, and then the body."""
REGISTRY_PREFIX_BYTES = 5
UNWRITABLE = (ValueError, TypeError, OverflowError, AttributeError)
"""The errors raised by a lone surrogate, a number over 64 bits or a value of another type."""
AnyRecord = TypeVar("AnyRecord", bound=Record)


def encode(record: Record) -> bytes:
    """Return the record in single-object encoding; BoundsError naming the field when it may not be written."""
    schema = schema_of(type(record).__name__)
    try:
        message = RECORD_WRITERS[schema.prefix](record)
    except Exception:  # noqa: BLE001 - whatever a value of another type runs into; the other way finds the words
        message = _checked(schema, record)
    _check_size(schema, message)
    return message


def _checked(schema: RecordSchema, record: Record) -> bytes:
    """Return the record written field by field; BoundsError naming the first that may not be written."""
    fields = msgspec.to_builtins(record, builtin_types=(datetime, bytes))
    try:
        check_fields(schema, fields)
        return _written(schema, fields)
    except UNWRITABLE as error:
        raise BoundsError(f"{schema.name}{_first_fault(schema, fields)}: {error}") from error


def encode_fields(name: str, fields: dict[str, Any]) -> bytes:
    """Return the fields of a record as builtins in single-object encoding; of one that was encoded before, so that nothing is checked."""
    return _written(schema_of(name), fields)


def _written(schema: RecordSchema, fields: dict[str, Any]) -> bytes:
    try:
        return FIELDS_WRITERS[schema.prefix](fields)
    except Exception:  # noqa: BLE001 - as above
        return _written_by_schema(schema, fields)


def _written_by_schema(schema: RecordSchema, fields: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    buffer.write(schema.prefix)
    fastavro.schemaless_writer(buffer, schema.parsed, fields)
    return buffer.getvalue()


def _check_size(schema: RecordSchema, message: bytes) -> None:
    if len(message) > MAX_RECORD_BYTES:
        raise BoundsError(f"{schema.name}: {len(message)} bytes encoded, {MAX_RECORD_BYTES} allowed")


def _first_fault(schema: RecordSchema, fields: dict[str, Any]) -> str:
    """Name of the first field that cannot be written by itself, after a dot."""
    for field in schema.parsed["fields"]:
        try:
            # The whole is parsed already, so that types defined in other fields are known.
            fastavro.schemaless_writer(io.BytesIO(), {**schema.parsed, "fields": [field]}, fields)
        except UNWRITABLE:
            return f".{field['name']}"
    return ""


def writer_schema(message: bytes) -> RecordSchema:
    """Return the schema a message was written with; FramingError or UnknownSchemaError when there is none."""
    if (schema_id := registry_schema_id(message)) is not None:
        raise RegistryFramingError(
            f"the value is framed for a schema registry, with the schema id {schema_id}, and was not read"
        )
    if message[:2] != MARKER or len(message) < PREFIX_BYTES:
        start = f"starts with {message[:PREFIX_BYTES].hex(' ')}, not" if message else "is empty: it does not start"
        raise FramingError(f"the value {start} with c3 01 and a fingerprint of 8 bytes")
    schema = schemas_by_prefix().get(message[:PREFIX_BYTES])
    if schema is None:
        raise UnknownSchemaError(f"no schema has the fingerprint {message[2:PREFIX_BYTES].hex()}")
    return schema


def registry_schema_id(message: bytes) -> int | None:
    """Return the schema id of a value that is framed for a schema registry; None for any other value."""
    if message[:1] != REGISTRY_MAGIC or len(message) < REGISTRY_PREFIX_BYTES:
        return None
    return int.from_bytes(message[1:REGISTRY_PREFIX_BYTES], "big")


def decode_fields(message: bytes) -> tuple[str, dict[str, Any]]:
    """Name of the record type and its fields by the current schema, older versions resolved; RecordError when it cannot be."""
    schema = writer_schema(message)
    _check_size(schema, message)
    current = schema_of(schema.name)
    try:
        fields, length = _read(message, schema.parsed, schema.parsed)
        again = _written(schema, fields)
        if current.prefix != schema.prefix:
            fields, _ = _read(message, schema.parsed, current.parsed)
            fields |= _unfolded(schema, current, fields)
    except Exception as error:  # fastavro raises whatever the damaged bytes run into
        reason = str(error).partition(" from <")[0]  # where in memory it stood would differ from run to run
        raise MalformedBodyError(f"{schema.name}{_unreadable(schema, message)}: {type(error).__name__}: {reason}") from error
    if length != len(message):
        raise MalformedBodyError(f"{schema.name}: {len(message) - length} bytes too many")
    if again != message:
        raise MalformedBodyError(f"{schema.name}: the body is not the canonical form of what it says")
    check_fields(current, fields)
    return schema.name, fields


def _unfolded(writer: RecordSchema, current: RecordSchema, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the writer had in another form."""
    written = {field["name"] for field in writer.fields}
    return {one.field: one.items(fields) for one in unfoldings(current) if one.field not in written}


def _read(message: bytes, writer: Json, reader: Json) -> tuple[dict[str, Any], int]:
    """Return the fields of a message's body, and where the body ends."""
    body = io.BytesIO(message)
    body.seek(PREFIX_BYTES)
    return cast("dict[str, Any]", fastavro.schemaless_reader(body, writer, reader)), body.tell()


def _unreadable(schema: RecordSchema, message: bytes) -> str:
    """Name of the first field that cannot be read, after a dot; nothing where each can be."""
    body = io.BytesIO(message)
    body.seek(PREFIX_BYTES)
    for field in schema.parsed["fields"]:
        try:
            fastavro.schemaless_reader(body, {**schema.parsed, "fields": [field]}, None)
        except Exception:  # noqa: BLE001 - as above: whatever the damaged bytes run into
            return f".{field['name']}"
    return ""


def decode(message: bytes) -> Record:
    """Return the record in a message; FramingError, UnknownSchemaError, MalformedBodyError or BoundsError when there is none."""
    name, fields = decode_fields(message)
    return record_from(RECORD_TYPES[name], fields)


def record_from(record_type: type[AnyRecord], fields: dict[str, Any]) -> AnyRecord:
    """Return a record of the type from its fields as builtins; RecordError naming the field that does not fit."""
    try:
        return msgspec.convert(fields, record_type)
    except msgspec.ValidationError as error:
        raise RecordError(f"{record_type.__name__}: {decoding_words(error)}") from error
