"""Batches of messages to Arrow columns, at the speed of a columnar decoder and without trusting a single length.

The bodies of one schema are put into an object container and decoded at once. Avro bodies carry no length, so a short or long
body would shift its neighbours. Therefore every body is followed by a *guard*: sixteen random bytes, drawn for this batch,
which the decoding schema reads as a last field. The batch is believed only if every row's guard is right: nobody who wrote a
body can know the guard, so each body must have ended exactly where its own guard begins. When a batch is not believed, each
body is decoded by itself, the bad ones are rejected with their reason, and the good ones are decoded again as a batch.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fastavro
import polars as pl

from schemas.bounds import bounds_of
from schemas.codec import PREFIX_BYTES, decode_fields, record_from, writer_schema
from schemas.errors import BoundsError, MalformedBodyError, RecordError, SchemaError
from schemas.records import RECORD_TYPES, Record
from schemas.registry import NAMESPACE, Json, RecordSchema, schema_of

INDEX = "_index"
"""Column with each row's place in the batch that was decoded."""
GUARD = "_guard"
GUARD_BYTES = 16
SYNC = bytes(16)
_NAMES = itertools.count()


@dataclass(frozen=True)
class Rejected:
    """A message that is no record: its place in the batch and why."""

    index: int
    error: RecordError


@dataclass
class DecodedBatch:
    """A batch as columns: one frame a record type, in batch order, with the place in the batch as column `_index`."""

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)


class ArrowStream:
    """A frame that offers Arrow's C stream and nothing else, so that DuckDB reads it without any other package."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The frame as an Arrow C stream capsule."""
        return self._frame.__arrow_c_stream__(requested_schema)


def _varint(number: int) -> bytes:
    """A non-negative long as Avro writes it: zigzag, seven bits a byte, lowest first."""
    rest, out = number << 1, bytearray()
    while rest & ~0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _without_references(node: Any, named: dict[str, Json]) -> Any:
    """The type with each reference to a named type replaced by its definition under a name of its own.

    Polars resolves no references; names are not part of the encoding, so the bodies stay valid.
    """
    if isinstance(node, str):
        return _without_references(named[node], named) if node in named else node
    if isinstance(node, list):
        return [_without_references(branch, named) for branch in node]
    if node["type"] == "array":
        return {**node, "items": _without_references(node["items"], named)}
    if node["type"] != "record":
        return node
    # Docs and defaults are left out: polars stumbles over a boolean default, and neither is needed to decode.
    fields = [{"name": known["name"], "type": _without_references(known["type"], named)} for known in node["fields"]]
    named[f"{NAMESPACE}.{node['name']}"] = node
    return {"type": "record", "name": f"R{next(_NAMES)}", "fields": fields}


@functools.cache
def _container_header(prefix: bytes) -> bytes:
    """Header of an object container whose schema is the writer's with the guard as last field."""
    schema = writer_schema(prefix)
    guard: Json = {"name": GUARD, "type": {"type": "fixed", "name": "Guard", "size": GUARD_BYTES}}
    fields = _without_references({"type": "record", "name": schema.name, "fields": schema.fields}, {})["fields"]
    text = json.dumps({"type": "record", "name": schema.name, "fields": [*fields, guard]}).encode()
    pairs = _varint(2) + _varint(11) + b"avro.schema" + _varint(len(text)) + text
    return b"Obj\x01" + pairs + _varint(10) + b"avro.codec" + _varint(4) + b"null" + _varint(0) + SYNC


def _decode_guarded(schema: RecordSchema, bodies: Sequence[bytes]) -> pl.DataFrame | None:
    """The bodies as columns, or None unless every single one is proven to have ended where it should."""
    guard = secrets.token_bytes(GUARD_BYTES)
    block = guard.join(bodies) + guard
    container = b"".join((_container_header(schema.prefix), _varint(len(bodies)), _varint(len(block)), block, SYNC))
    try:
        frame = pl.read_avro(io.BytesIO(container))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - polars panics on some damage, and its panic is a BaseException
        return None
    if frame.height != len(bodies) or not frame.select((pl.col(GUARD) == pl.lit(guard)).all()).item():
        return None
    return frame.drop(GUARD)


def _isolate(schema: RecordSchema, bodies: Sequence[bytes], rejected: dict[int, RecordError]) -> None:
    """Decode each body by itself and note the bad ones."""
    for index, body in enumerate(bodies):
        try:
            decode_fields(schema.prefix + body)
        except RecordError as error:
            rejected[index] = error


def _bisect(
    schema: RecordSchema, indexed: Sequence[tuple[int, bytes]], rejected: dict[int, RecordError]
) -> Iterator[pl.DataFrame]:
    """Halve until what the two decoders disagree about stands alone."""
    frame = _decode_guarded(schema, [body for _, body in indexed])
    if frame is not None:
        yield frame.with_columns(pl.Series(INDEX, [index for index, _ in indexed], dtype=pl.Int64))
    elif len(indexed) == 1:
        rejected[indexed[0][0]] = MalformedBodyError(f"{schema.name}: the body does not end where its message ends")
    else:
        middle = len(indexed) // 2
        yield from _bisect(schema, indexed[:middle], rejected)
        yield from _bisect(schema, indexed[middle:], rejected)


def _decode_bodies(schema: RecordSchema, bodies: Sequence[bytes]) -> tuple[list[pl.DataFrame], dict[int, RecordError]]:
    """Frames of the good bodies with their places, and the bad ones with their reasons."""
    rejected: dict[int, RecordError] = {}
    frame = _decode_guarded(schema, bodies)
    if frame is not None:
        frames = [frame.with_columns(pl.int_range(len(bodies), dtype=pl.Int64).alias(INDEX))]
    else:
        _isolate(schema, bodies, rejected)
        good = [(index, body) for index, body in enumerate(bodies) if index not in rejected]
        frames = list(_bisect(schema, good, rejected)) if good else []
    return [_within_bounds(schema, frame, rejected) for frame in frames], rejected


def _within_bounds(schema: RecordSchema, frame: pl.DataFrame, rejected: dict[int, RecordError]) -> pl.DataFrame:
    """The rows whose times and numbers lie within bounds; the others are noted as rejected."""
    checks = bounds_of(schema.prefix)
    if not checks:
        return frame
    broken = frame.select(pl.any_horizontal(*checks.values())).to_series()
    if not broken.any():
        return frame
    for name, check in checks.items():
        for row in frame.filter(check).select(INDEX, pl.col(name).cast(pl.String)).iter_rows():
            rejected.setdefault(row[0], BoundsError(f"{schema.name}.{name}: {row[1]} is out of bounds"))
    return frame.filter(~broken)


def _resolved(schema: RecordSchema, frame: pl.DataFrame) -> pl.DataFrame:
    """A frame written with an older version, brought to the current one: added fields get their defaults."""
    current = schema_of(schema.name)
    if current.prefix == schema.prefix:
        return frame
    empty = empty_frame(schema.name)
    missing = [name for name in empty.columns if name not in frame.columns]
    defaults = {added["name"]: added["default"] for added in current.fields if added["name"] in missing}
    columns = [
        pl.lit(pl.Series([defaults[name]], dtype=empty.schema[name]).first(), empty.schema[name]).alias(name)
        for name in missing
    ]
    return frame.with_columns(columns).select(*empty.columns, INDEX)


@functools.cache
def empty_frame(name: str) -> pl.DataFrame:
    """No rows of the record type, with the columns decoding gives it."""
    schema = schema_of(name)
    # The decoder refuses a container without rows. Zero bytes are a valid row of any schema here: empty texts and arrays, nulls.
    zeros = io.BytesIO(bytes(4096))
    fastavro.schemaless_reader(zeros, schema.parsed, None)
    frame = _decode_guarded(schema, [bytes(zeros.tell())])
    if frame is None:
        raise SchemaError(f"{name}: a row of zeros does not decode")
    return frame.clear()


def decode_batch(messages: Sequence[bytes]) -> DecodedBatch:
    """Decode a batch of single-object encoded messages to columns, isolating every one that is no valid record.

    Rows come by record type in batch order, in the current version of their schema. Nothing raises for bad input: what cannot
    be decoded, or lies out of bounds, is in `rejected`, ordered by its place.
    """
    groups: dict[bytes, list[int]] = {}
    for index, message in enumerate(messages):
        groups.setdefault(message[:PREFIX_BYTES], []).append(index)
    batch = DecodedBatch()
    frames: dict[str, list[pl.DataFrame]] = {}
    for prefix, places in groups.items():
        try:
            schema = writer_schema(prefix)
        except RecordError as error:
            batch.rejected += [Rejected(place, error) for place in places]
            continue
        found, rejected = _decode_bodies(schema, [messages[place][PREFIX_BYTES:] for place in places])
        batch.rejected += [Rejected(places[index], error) for index, error in rejected.items()]
        if len(groups) > 1:
            positions = pl.Series(INDEX, places, dtype=pl.Int64)
            found = [frame.with_columns(positions.gather(frame[INDEX])) for frame in found]
        frames.setdefault(schema.name, []).extend(_resolved(schema, frame) for frame in found if frame.height)
    batch.frames = {
        name: parts[0] if len(parts) == 1 else pl.concat(parts).sort(INDEX) for name, parts in frames.items() if parts
    }
    batch.rejected.sort(key=lambda rejected: rejected.index)
    return batch


def rows_as_records(name: str, frame: pl.DataFrame) -> Iterator[Record]:
    """The rows of a decoded frame as records of the named type, in order."""
    record_type = RECORD_TYPES[name]
    columns = [known["name"] for known in schema_of(name).fields]
    for row in frame.select(columns).iter_rows(named=True):
        yield record_from(record_type, row)
