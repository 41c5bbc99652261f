"""Batches of messages to Arrow columns, at the speed of a columnar decoder and without trusting a single length.

1. The bodies of one schema are put into an object container (a header, the number of rows, the joined bodies) and decoded at once.
2. Avro bodies carry no length, so a body that is too short or too long shifts its neighbours, and the columnar decoder accepts bytes
   that are not valid Avro: any byte but 1 for false, any branch of a union but the first for a value, numbers beyond their width. So its
   columns count only after a proof that they are exactly what the bodies say (`Layout`).
3. The proof covers all rows at once. The values determine where each of them starts in the block *if* it was written canonically: shortest
   numbers, one block per array. Nothing can be written shorter, so if the messages start where this says, all values do. What
   remains are bytes that could be another one of the same length; these are compared.
4. A batch without a proof is decoded in slices. In a slice without a proof each body is decoded by itself, the bad ones are rejected with
   their reason, and the good ones are decoded again as a batch.
5. Rows out of bounds are rejected by the rules of `schemas.bounds`, as expressions over columns.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fastavro

from schemas.bounds import CLOCK_TOLERANCE, EARLIEST, LATEST, MAX_RECORD_BYTES
from schemas.codec.single_object import PREFIX_BYTES, decode_fields, record_from, writer_schema
from schemas.errors import MalformedBodyError, RecordError, SchemaError
from schemas.lazy import pl
from schemas.records import RECORD_TYPES, Record
from schemas.registry import NAMESPACE, Json, RecordSchema, Unfolding, schema_of, schemas_by_prefix, unfoldings

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
        """Return the frame as an Arrow C stream capsule."""
        return self._frame.__arrow_c_stream__(requested_schema)


def _decode_proven(schema: RecordSchema, bodies: Sequence[bytes]) -> pl.DataFrame | None:
    """Return the bodies as columns, or None unless every one is proven to be a canonical encoding of its row."""
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
    """Return the rows whose times and numbers lie within bounds; the others are noted as rejected."""
    broken = _out_of_bounds(schema, frame)
    if broken is None:
        return frame
    places = frame.filter(broken)[INDEX].to_list()
    _isolate(schema, ((place, bodies[place]) for place in places), rejected)
    return frame.filter(~frame[INDEX].is_in(list(rejected)))


def _resolved(schema: RecordSchema, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame written with an older version, brought to the current one: added fields get their defaults, or what they unfold."""
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
    """Return the places of the messages by what they start with; most batches have one schema, and for these it is one glance."""
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
    """Return the rows of a decoded frame as records of the named type, in order; RecordError naming the field that does not fit."""
    fields = [field["name"] for field in schema_of(name).fields]
    return (record_from(RECORD_TYPES[name], row) for row in frame.select(fields).iter_rows(named=True))


SYNC = bytes(16)
_NAMES = itertools.count()


def _varint(number: int) -> bytes:
    """Return a non-negative long as Avro writes it: zigzag, seven bits a byte, lowest first."""
    rest, out = number << 1, bytearray()
    while rest & ~0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _without_references(node: Any, named: dict[str, Json]) -> Any:
    """Return the type with each reference to a named type replaced by its definition under a name of its own.

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
def wire_of(prefix: bytes) -> tuple[bytes, Layout]:
    """Header of an object container of the writer's schema, and the layout of the bodies in it."""
    schema = writer_schema(prefix)
    record = _without_references({"type": "record", "name": schema.name, "fields": schema.fields}, {})
    text = json.dumps(record).encode()
    pairs = _varint(2) + _varint(11) + b"avro.schema" + _varint(len(text)) + text
    header = b"Obj\x01" + pairs + _varint(10) + b"avro.codec" + _varint(4) + b"null" + _varint(0) + SYNC
    return header, Layout(record["fields"])


def decode_columns(schema: RecordSchema, block: bytes, rows: int) -> pl.DataFrame | None:
    """Decode joined bodies by columns; return None if the decoder fails, or yields too many or too few rows."""
    header, _ = wire_of(schema.prefix)
    container = b"".join((header, _varint(rows), _varint(len(block)), block, SYNC))
    try:
        frame = pl.read_avro(io.BytesIO(container))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - polars panics on some damage, and its panic is a BaseException
        return None
    return frame if frame.height == rows else None


_WIDTHS = {"int": 5, "long": 10}
_FIXED = {"boolean": 1, "float": 4, "double": 8}


@functools.cache
def _longer() -> pl.Series:
    """Magnitudes from which on a number takes 2, 3, up to 10 bytes: the sign in the lowest bit, then seven bits a byte."""
    return pl.Series([1 << (7 * size - 1) for size in range(1, 10)], dtype=pl.Int64)


def _number_size(magnitude: pl.Expr) -> pl.Expr:
    return pl.lit(_longer()).search_sorted(magnitude, side="right").cast(pl.Int64) + 1


def _magnitude(column: pl.Expr) -> pl.Expr:
    number = column.to_physical().cast(pl.Int64).fill_null(0)
    return pl.when(number < 0).then(~number).otherwise(number)


def _size_and_last(kind: str, column: pl.Expr) -> tuple[pl.Expr, pl.Expr | None]:
    """Bytes that the values take, and what their last byte must be where another one would decode alike."""
    if kind in _WIDTHS:
        magnitude, width = _magnitude(column), _WIDTHS[kind]
        size = _number_size(magnitude)
        # A number of full width has bits to spare in its last byte, which are cut off.
        return size, pl.when(size == width).then(magnitude // (1 << (7 * width - 8))).cast(pl.UInt8)
    if kind in _FIXED:
        return pl.lit(_FIXED[kind], pl.Int64), column.cast(pl.UInt8) if kind == "boolean" else None
    length = (column.str.len_bytes() if kind == "string" else column.bin.size()).cast(pl.Int64).fill_null(0)
    return length + _number_size(length), None


@dataclass
class _Checks:
    """Bytes to look at: their places in the block, and what must stand there; null where anything may."""

    places: list[pl.Series] = field(default_factory=list)
    expected: list[pl.Series] = field(default_factory=list)

    def add(self, places: pl.Series, expected: pl.Series) -> None:
        self.places.append(places)
        self.expected.append(expected)

    def hold(self, block: bytes) -> bool:
        if not self.places:
            return True
        stored = pl.Series([block]).bin.reinterpret(dtype=pl.Array(pl.UInt8, len(block))).explode()
        found = stored.gather(pl.concat(self.places))
        return bool((found == pl.concat(self.expected)).all())  # null where anything may stand


@dataclass(frozen=True)
class _Measured:
    """The columns that a level of rows was measured in, by name, and the levels within it, by field."""

    columns: dict[str, pl.Series]
    inner: dict[str, _Measured | _Items]


@dataclass(frozen=True)
class _Items:
    """The arrays of a field: how many items each has, the bytes of that number, which have any, and all items in one level."""

    counts: pl.Series
    count_sizes: pl.Series
    filled: pl.Series
    items: _Measured | None
    """None where no array has an item."""
    sizes: pl.Series | None
    """Bytes of each item."""


class Layout:
    """The layout of a record's fields in its canonical encoding. `fields` refer to no named type defined elsewhere.

    A level is measured in one query, whatever is asked of it afterwards: a query takes as long for one row as for hundreds.
    """

    def __init__(self, fields: Sequence[Json]) -> None:
        self._measures: list[pl.Expr] = []
        self._steps = [(known["name"], self._step(known["name"], known["type"])) for known in fields]
        self._sizes = [f"{name} size" for name, step in self._steps if step is None]

    @property
    def is_nested(self) -> bool:
        """Tell whether a field holds an array or a record, which is measured in a query of its own."""
        return len(self._sizes) < len(self._steps)

    def _step(self, name: str, avro_type: Any) -> Layout | _Array | None:
        """Return the step past a field, or None for a primitive one, which is measured with all the others at once."""
        nullable = isinstance(avro_type, list)
        bare = avro_type[1] if nullable else avro_type
        kind = bare["type"] if isinstance(bare, dict) else bare
        if kind == "record":
            return Layout(bare["fields"])
        column = pl.col(name)
        if kind == "array":
            counts = column.list.len().cast(pl.Int64)
            self._measures += [counts.alias(f"{name} count"), _number_size(counts).alias(f"{name} count size")]
            return _Array(bare["items"])
        size, last = _size_and_last(kind, column)
        if nullable:
            present = column.is_not_null()
            size = pl.when(present).then(size + 1).otherwise(1)
            self._measures.append((present.cast(pl.UInt8) * 2).alias(f"{name} branch"))
        if last is not None:
            self._measures.append(last.alias(f"{name} last"))
        self._measures.append(size.alias(f"{name} size"))
        return None

    def proves(self, frame: pl.DataFrame, block: bytes, lengths: Sequence[int]) -> bool:
        """Tell whether the decoded rows, written canonically, give back exactly this block of bodies of these lengths."""
        sizes = pl.Series(lengths, dtype=pl.Int64)
        ends = sizes.cum_sum()
        checks = _Checks()
        return bool((self.past(self.measured(frame), ends - sizes, checks) == ends).all()) and checks.hold(block)

    def measured(self, frame: pl.DataFrame) -> _Measured:
        """Measure a level of rows and the levels within it."""
        columns = {column.name: column for column in frame.select(self._measures).get_columns()} if self._measures else {}
        inner: dict[str, _Measured | _Items] = {}
        for name, step in self._steps:
            if isinstance(step, Layout):
                inner[name] = step.measured(frame[name].struct.unnest())
            elif step is not None:
                inner[name] = step.measured(frame[name], columns[f"{name} count"], columns[f"{name} count size"])
        return _Measured(columns, inner)

    def size(self, rows: _Measured) -> pl.Series:
        """Return the bytes of each row."""
        parts = [rows.columns[name] for name in self._sizes]
        for name, step in self._steps:
            if step is not None:
                parts.append(step.size(rows.inner[name]))  # type: ignore[arg-type]  # each step measures for itself
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return whole

    def past(self, rows: _Measured, at: pl.Series, checks: _Checks) -> pl.Series:
        """Return the places behind the rows when they start at the places `at`."""
        known = rows.columns
        for name, step in self._steps:
            if step is not None:
                at = step.past(rows.inner[name], at, checks)  # type: ignore[arg-type]  # as above
                continue
            if (branch := known.get(f"{name} branch")) is not None:
                checks.add(at, branch)
            at = at + known[f"{name} size"]
            if (last := known.get(f"{name} last")) is not None and last.null_count() < len(last):
                checks.add(at - 1, last)
        return at


class _Array:
    """The layout of arrays: the count of their items, the items, and a count of zero unless there were none."""

    def __init__(self, items: Any) -> None:
        self._of_records = isinstance(items, dict) and items["type"] == "record"
        self._layout = Layout(items["fields"] if self._of_records else [{"name": "item", "type": items}])

    def measured(self, values: pl.Series, counts: pl.Series, count_sizes: pl.Series) -> _Items:
        """Measure the items of all arrays as one level."""
        filled = counts > 0
        if not filled.any():
            return _Items(counts, count_sizes, filled, None, None)
        items = values.filter(filled).explode()
        rows = self._layout.measured(items.struct.unnest() if self._of_records else items.to_frame("item"))
        return _Items(counts, count_sizes, filled, rows, self._layout.size(rows))

    def size(self, arrays: _Items) -> pl.Series:
        """Return the bytes of each array."""
        if arrays.sizes is None:
            return arrays.count_sizes
        # The items of one row follow each other: what all of them take is the difference between two sums.
        sums = pl.Series([0], dtype=pl.Int64).append(arrays.sizes.cum_sum())
        ends = arrays.counts.cum_sum()
        return arrays.count_sizes + (sums.gather(ends) - sums.gather(ends - arrays.counts)) + arrays.filled.cast(pl.Int64)

    def past(self, arrays: _Items, at: pl.Series, checks: _Checks) -> pl.Series:
        """Return the places behind the arrays when they start at the places `at`."""
        at = _past_counts(arrays.counts, arrays.count_sizes, at, checks)
        if arrays.items is None or arrays.sizes is None:
            return at
        behind, counts = arrays.sizes.cum_sum(), arrays.counts.filter(arrays.filled)
        rows = behind.gather(counts.cum_sum() - 1)
        moves = at.filter(arrays.filled) - rows.shift(1, fill_value=0)
        # Within the block the items of one row follow each other, the rows do not: move each row's items to their row.
        moved = pl.select(pl.lit(moves).repeat_by(counts).explode()).to_series()
        self._layout.past(arrays.items, behind - arrays.sizes + moved, checks)
        return at.scatter(arrays.filled.arg_true(), moves + rows + 1)


def _past_counts(counts: pl.Series, size: pl.Series, at: pl.Series, checks: _Checks) -> pl.Series:
    """Return the places behind the counts. Every byte of them is looked at: two blocks can be as long as one."""
    widest = size.max()
    if widest == 1:
        checks.add(at, (counts * 2).cast(pl.UInt8))
        return at + 1
    for place in range(widest if isinstance(widest, int) else 0):
        here = size > place
        more = (size > place + 1).cast(pl.Int64) * 128
        checks.add((at + place).filter(here), ((counts * 2 // (1 << 7 * place)) % 128 + more).filter(here).cast(pl.UInt8))
    return at + size


def _broken(avro_type: Any, value: pl.Expr, named: dict[str, Any]) -> pl.Expr | None:
    """True where a decoded value is out of bounds, as `_check_of` judges it; a decoded int cannot be."""
    if isinstance(avro_type, str):
        if avro_type in named:
            return _broken(named[avro_type], value, named)
        return ~value.is_finite() if avro_type in ("double", "float") else None
    if isinstance(avro_type, list):
        return _broken(avro_type[1], value, named)
    if "logicalType" in avro_type:
        return ~value.is_between(EARLIEST, LATEST)
    if avro_type["type"] == "array":
        item = _broken(avro_type["items"], pl.element(), named)
        return None if item is None else value.list.eval(item.fill_null(value=False)).list.any()
    named[f"{NAMESPACE}.{avro_type['name']}"] = avro_type
    fields = [_broken(field["type"], value.struct.field(field["name"]), named) for field in avro_type["fields"]]
    return pl.any_horizontal(*found) if (found := [field for field in fields if field is not None]) else None


@functools.cache
def bounds_of(prefix: bytes) -> dict[str, pl.Expr]:
    """For each field of a schema that has bounds: an expression that is true where a value is out of them."""
    named: dict[str, Any] = {}
    fields = schemas_by_prefix()[prefix].fields
    found = {field["name"]: _broken(field["type"], pl.col(field["name"]), named) for field in fields}
    bounds = {name: broken.fill_null(value=False) for name, broken in found.items() if broken is not None}
    if {"occurred_at", "ingested_at"} <= bounds.keys():
        bounds["occurred_at"] |= pl.col("occurred_at") > pl.col("ingested_at") + CLOCK_TOLERANCE
    return bounds
