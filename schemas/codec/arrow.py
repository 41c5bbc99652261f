"""Batches of messages to Arrow columns, at the speed of a columnar decoder and without trusting a single length.

The bodies of one schema are put into an object container and decoded at once. Avro bodies carry no length, so a short or long
body shifts its neighbours, and the columnar decoder takes bytes that are no valid Avro. Therefore the columns are believed only
once they are measured and proven to be exactly what the bodies say (`schemas.codec.canonical`). A batch that is not believed is
decoded in slices; in a slice that is not believed either each body is decoded by itself, the bad ones are rejected with their
reason, and the good ones are decoded again as a batch.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import fastavro

from schemas.bounds.column_bounds import bounds_of
from schemas.bounds.limits import MAX_RECORD_BYTES
from schemas.codec.container import decode_columns, wire_of
from schemas.codec.single_object import PREFIX_BYTES, decode_fields, record_from, writer_schema
from schemas.errors import MalformedBodyError, RecordError, SchemaError
from schemas.lazy import pl
from schemas.records import RECORD_TYPES, Record
from schemas.registry import RecordSchema, schema_of
from schemas.unfolding import Unfolding, unfoldings

INDEX = "_index"
"""Column with each row's place in the batch that was decoded."""
SLICE = 1_000
"""Bodies that one bad body makes slow."""


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


def _decode_proven(schema: RecordSchema, bodies: Sequence[bytes]) -> pl.DataFrame | None:
    """The bodies as columns, or None unless every one is proven to be a canonical encoding of its row."""
    if max(map(len, bodies)) + PREFIX_BYTES > MAX_RECORD_BYTES:
        return None
    block = b"".join(bodies)
    frame = decode_columns(schema, block, len(bodies))
    if frame is None:
        return None
    _, layout = wire_of(schema.prefix)
    return frame if layout.proves(frame, block, list(map(len, bodies))) else None


def _isolate(schema: RecordSchema, bodies: Iterable[tuple[int, bytes]], rejected: dict[int, RecordError]) -> None:
    """Decode each body by itself and note the bad ones."""
    for index, body in bodies:
        try:
            decode_fields(schema.prefix + body)
        except RecordError as error:
            rejected[index] = error


def _bisect(
    schema: RecordSchema, indexed: Sequence[tuple[int, bytes]], rejected: dict[int, RecordError]
) -> Iterator[pl.DataFrame]:
    """Columns of canonical bodies; halves what the columnar decoder does not take, such as 2 GiB of text in one column."""
    frame = decode_columns(schema, b"".join(body for _, body in indexed), len(indexed))
    if frame is not None:
        yield frame.with_columns(pl.Series(INDEX, [index for index, _ in indexed], dtype=pl.Int64))
    elif len(indexed) == 1:
        rejected[indexed[0][0]] = MalformedBodyError(f"{schema.name}: the body cannot be decoded to columns")
    else:
        middle = len(indexed) // 2
        yield from _bisect(schema, indexed[:middle], rejected)
        yield from _bisect(schema, indexed[middle:], rejected)


def _indexed(frame: pl.DataFrame, start: int) -> pl.DataFrame:
    return frame.with_columns(pl.int_range(start, start + frame.height, dtype=pl.Int64).alias(INDEX))


def _decode_bodies(schema: RecordSchema, bodies: Sequence[bytes], rejected: dict[int, RecordError]) -> Iterator[pl.DataFrame]:
    """Frames of the good bodies; the bad ones are noted with their reasons."""
    frame = _decode_proven(schema, bodies)
    if frame is not None:
        yield _within_bounds(schema, _indexed(frame, 0), bodies, rejected)
        return
    for start in range(0, len(bodies), SLICE):
        part = bodies[start : start + SLICE]
        frame = _decode_proven(schema, part)
        if frame is not None:
            yield _within_bounds(schema, _indexed(frame, start), bodies, rejected)
            continue
        _isolate(schema, enumerate(part, start), rejected)
        good = [(place, body) for place, body in enumerate(part, start) if place not in rejected]
        yield from _bisect(schema, good, rejected) if good else ()


def _out_of_bounds(schema: RecordSchema, frame: pl.DataFrame) -> pl.Series | None:
    """Tell of each row whether a time or a number of it lies out of bounds; None where none does."""
    checks = bounds_of(schema.prefix)
    broken = frame.select(pl.any_horizontal(*checks.values())).to_series() if checks else None
    return broken if broken is not None and broken.any() else None


def _within_bounds(
    schema: RecordSchema, frame: pl.DataFrame, bodies: Sequence[bytes], rejected: dict[int, RecordError]
) -> pl.DataFrame:
    """The rows whose times and numbers lie within bounds; the others are noted as rejected."""
    broken = _out_of_bounds(schema, frame)
    if broken is None:
        return frame
    places = frame.filter(broken)[INDEX].to_list()
    _isolate(schema, ((place, bodies[place]) for place in places), rejected)
    return frame.filter(~frame[INDEX].is_in(list(rejected)))


def _resolved(schema: RecordSchema, frame: pl.DataFrame) -> pl.DataFrame:
    """A frame written with an older version, brought to the current one: added fields get their defaults, or what they unfold."""
    current = schema_of(schema.name)
    if current.prefix == schema.prefix:
        return frame
    empty = empty_frame(schema.name)
    missing = [name for name in empty.columns if name not in frame.columns]
    defaults = {added["name"]: added["default"] for added in current.fields if added["name"] in missing}
    columns = [pl.Series(name, [defaults[name]], dtype=empty.schema[name]).new_from_index(0, frame.height) for name in missing]
    unfolded = [_unfolded(one).cast(empty.schema[one.field]) for one in unfoldings(current) if one.field in missing]
    return frame.with_columns(columns).with_columns(unfolded).select(*empty.columns, INDEX)


def _unfolded(one: Unfolding) -> pl.Expr:
    """`Unfolding.items` as a column over decoded columns."""
    source = pl.col(one.source).struct
    return pl.concat_list(
        pl.struct(pl.lit(name).alias(one.key), source.field(name).alias(one.value)) for name in one.names
    ).alias(one.field)


@functools.cache
def empty_frame(name: str) -> pl.DataFrame:
    """No rows of the record type, with the columns decoding gives it."""
    schema = schema_of(name)
    # The decoder refuses a container without rows. Zero bytes are a valid row of any schema here: empty texts and arrays, nulls.
    zeros = io.BytesIO(bytes(4096))
    fastavro.schemaless_reader(zeros, schema.parsed, None)
    frame = decode_columns(schema, bytes(zeros.tell()), 1)
    if frame is None:
        raise SchemaError(f"{name}: a row of zeros does not decode")
    return frame.clear()


def _by_schema(messages: Sequence[bytes]) -> dict[bytes, Sequence[int]]:
    """The places of the messages by what they start with; most batches have one schema, and for these it is one glance."""
    prefixes = [message[:PREFIX_BYTES] for message in messages]
    if len(set(prefixes)) == 1:
        return {prefixes[0]: range(len(messages))}
    groups: dict[bytes, list[int]] = {}
    for index, prefix in enumerate(prefixes):
        groups.setdefault(prefix, []).append(index)
    return dict(groups)


def decode_batch(messages: Sequence[bytes]) -> DecodedBatch:
    """Decode a batch of single-object encoded messages to columns, isolating every one that is no valid record.

    Rows come by record type in batch order, in the current version of their schema. Nothing raises for bad input: what cannot
    be decoded, or lies out of bounds, is in `rejected`, ordered by its place.
    """
    groups = _by_schema(messages)
    batch = DecodedBatch()
    frames: dict[str, list[pl.DataFrame]] = {}
    for prefix, places in groups.items():
        try:
            schema = writer_schema(prefix)
        except RecordError as error:
            batch.rejected += [Rejected(place, error) for place in places]
            continue
        bodies, rejected = [messages[place][PREFIX_BYTES:] for place in places], dict[int, RecordError]()
        found = list(_decode_bodies(schema, bodies, rejected))
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


def decode_own(messages: Sequence[bytes]) -> DecodedBatch:
    """`decode_batch` of messages that this process has just encoded, in half the time: there is nothing to prove."""
    frame = None
    if len({message[:PREFIX_BYTES] for message in messages}) == 1:
        schema = writer_schema(messages[0])
        frame = decode_columns(schema, b"".join(message[PREFIX_BYTES:] for message in messages), len(messages))
    if frame is None:
        return decode_batch(messages)
    return DecodedBatch({schema.name: _indexed(frame, 0)})


def rows_as_records(name: str, frame: pl.DataFrame) -> Iterator[Record]:
    """The rows of a decoded frame as records of the named type, in order; RecordError naming the field that does not fit."""
    fields = [field["name"] for field in schema_of(name).fields]
    return (record_from(RECORD_TYPES[name], row) for row in frame.select(fields).iter_rows(named=True))
