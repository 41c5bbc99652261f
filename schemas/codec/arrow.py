"""Decoding of message batches to Arrow columns, at the speed of a columnar decoder and without trusting any length.

1. The bodies of one schema are joined in an object container (a header, the number of rows, the bodies) and decoded together.
2. Avro bodies have no length, so a body that is too short or too long shifts the following ones. The columnar decoder also accepts
   invalid bytes: any byte except 1 as false, any union branch except the first as a value, and numbers that are too wide. Its columns
   are therefore used only after a proof that they equal the bodies (`Layout`).
3. The proof covers all rows. The values determine the position of each value in the block *if* the encoding is canonical: shortest numbers
   and one block per array. No encoding is shorter, so if all messages start at their computed positions, all values do. Bytes that could
   have another value of the same length are compared.
4. A batch without a proof is decoded in slices. In a slice without a proof, each body is decoded separately; invalid ones are rejected
   with their reason, and the valid ones are decoded again as a batch.
5. Rows that are out of bounds by the rules of `schemas.bounds` are rejected with expressions over columns.
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
"""Column with the index of each row's message in the batch."""
SLICE = 1_000
"""Number of bodies that are decoded separately because of one invalid body."""


@dataclass(frozen=True)
class Rejected:
    """A message that is no valid record: its index in the batch, and the error."""

    index: int
    error: RecordError


@dataclass
class DecodedBatch:
    """A decoded batch: one frame per record type, in batch order, with the message's index in the column `_index`."""

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)


class ArrowStream:
    """A frame that exposes only Arrow's C stream, so that DuckDB reads it without another package."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the frame as an Arrow C stream capsule."""
        return self._frame.__arrow_c_stream__(requested_schema)


def _decode_proven(schema: RecordSchema, bodies: Sequence[bytes]) -> pl.DataFrame | None:
    """Return the bodies as columns; None unless every body is proven to be the canonical encoding of its row."""
    if max(map(len, bodies)) + PREFIX_BYTES > MAX_RECORD_BYTES:
        return None
    block = b"".join(bodies)
    frame = decode_columns(schema, block, len(bodies))
    if frame is None:
        return None
    _, layout = wire_of(schema.prefix)
    return frame if layout.proves(frame, block, list(map(len, bodies))) else None


def _isolate(schema: RecordSchema, bodies: Iterable[tuple[int, bytes]], rejected: dict[int, RecordError]) -> None:
    """Decode each body separately and add the errors of invalid ones to `rejected`."""
    for index, body in bodies:
        try:
            decode_fields(schema.prefix + body)
        except RecordError as error:
            rejected[index] = error


def _bisect(
    schema: RecordSchema, indexed: Sequence[tuple[int, bytes]], rejected: dict[int, RecordError]
) -> Iterator[pl.DataFrame]:
    """Yield columns of canonical bodies. Halve batches that the columnar decoder refuses, such as 2 GiB of text in one column."""
    frame = decode_columns(schema, b"".join(body for _, body in indexed), len(indexed))
    if frame is not None:
        yield frame.with_columns(pl.Series(INDEX, [index for index, _ in indexed], dtype=pl.Int64))
    elif len(indexed) == 1:
        rejected[indexed[0][0]] = MalformedBodyError(f"{schema.name}: the body cannot be decoded to columns")
    else:
        middle = len(indexed) // 2
        yield from _bisect(schema, indexed[:middle], rejected)
        yield from _bisect(schema, indexed[middle:], rejected)


def _add_index(frame: pl.DataFrame, start: int) -> pl.DataFrame:
    return frame.with_columns(pl.int_range(start, start + frame.height, dtype=pl.Int64).alias(INDEX))


def _decode_bodies(schema: RecordSchema, bodies: Sequence[bytes], rejected: dict[int, RecordError]) -> Iterator[pl.DataFrame]:
    """Yield frames of the valid bodies, and add the errors of invalid ones to `rejected`."""
    frame = _decode_proven(schema, bodies)
    if frame is not None:
        yield _within_bounds(schema, _add_index(frame, 0), bodies, rejected)
        return
    for start in range(0, len(bodies), SLICE):
        part = bodies[start : start + SLICE]
        frame = _decode_proven(schema, part)
        if frame is not None:
            yield _within_bounds(schema, _add_index(frame, start), bodies, rejected)
            continue
        _isolate(schema, enumerate(part, start), rejected)
        valid = [(index, body) for index, body in enumerate(part, start) if index not in rejected]
        if valid:
            yield from _bisect(schema, valid, rejected)


def _out_of_bounds(schema: RecordSchema, frame: pl.DataFrame) -> pl.Series | None:
    """Return for each row whether one of its times or numbers is out of bounds; None if no row is."""
    checks = bounds_of(schema.prefix)
    broken = frame.select(pl.any_horizontal(*checks.values())).to_series() if checks else None
    return broken if broken is not None and broken.any() else None


def _within_bounds(
    schema: RecordSchema, frame: pl.DataFrame, bodies: Sequence[bytes], rejected: dict[int, RecordError]
) -> pl.DataFrame:
    """Return the rows whose times and numbers are within bounds, and add the errors of the others to `rejected`."""
    broken = _out_of_bounds(schema, frame)
    if broken is None:
        return frame
    indexes = frame.filter(broken)[INDEX].to_list()
    _isolate(schema, ((index, bodies[index]) for index in indexes), rejected)
    return frame.filter(~frame[INDEX].is_in(list(rejected)))


def _resolve(schema: RecordSchema, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame of an older version in the current version. Added fields get their defaults, or are unfolded."""
    current = schema_of(schema.name)
    if current.prefix == schema.prefix:
        return frame
    empty = empty_frame(schema.name)
    missing = [name for name in empty.columns if name not in frame.columns]
    defaults = {added["name"]: added["default"] for added in current.fields if added["name"] in missing}
    columns = [pl.Series(name, [defaults[name]], dtype=empty.schema[name]).new_from_index(0, frame.height) for name in missing]
    unfolded = [_unfold(rule).cast(empty.schema[rule.field]) for rule in unfoldings(current) if rule.field in missing]
    return frame.with_columns(columns).with_columns(unfolded).select(*empty.columns, INDEX)


def _unfold(rule: Unfolding) -> pl.Expr:
    """Return the expression that computes `Unfolding.items` from decoded columns."""
    source = pl.col(rule.source).struct
    return pl.concat_list(
        pl.struct(pl.lit(name).alias(rule.key), source.field(name).alias(rule.value)) for name in rule.names
    ).alias(rule.field)


@functools.cache
def empty_frame(name: str) -> pl.DataFrame:
    """Return an empty frame with the columns of a decoded record type."""
    schema = schema_of(name)
    # The decoder refuses a container without rows. Zero bytes are a valid row of every schema: empty strings, empty arrays, nulls.
    zeros = io.BytesIO(bytes(4096))
    fastavro.schemaless_reader(zeros, schema.parsed, None)
    frame = decode_columns(schema, bytes(zeros.tell()), 1)
    if frame is None:
        raise SchemaError(f"{name}: a row of zeros does not decode")
    return frame.clear()


def _by_schema(messages: Sequence[bytes]) -> dict[bytes, Sequence[int]]:
    """Return the indexes of the messages by schema prefix. Most batches have a single schema."""
    prefixes = [message[:PREFIX_BYTES] for message in messages]
    if len(set(prefixes)) == 1:
        return {prefixes[0]: range(len(messages))}
    groups: dict[bytes, list[int]] = {}
    for index, prefix in enumerate(prefixes):
        groups.setdefault(prefix, []).append(index)
    return dict(groups)


def decode_batch(messages: Sequence[bytes]) -> DecodedBatch:
    """Decode a batch of single-object encoded messages to columns, without the messages that are no valid records.

    Rows are grouped by record type, in batch order and in the current version of their schema. Messages that cannot be decoded or are out
    of bounds never raise: they are in `rejected`, ordered by index.
    """
    groups = _by_schema(messages)
    batch = DecodedBatch()
    frames: dict[str, list[pl.DataFrame]] = {}
    for prefix, indexes in groups.items():
        try:
            schema = writer_schema(prefix)
        except RecordError as error:
            batch.rejected += [Rejected(index, error) for index in indexes]
            continue
        bodies = [messages[index][PREFIX_BYTES:] for index in indexes]
        rejected: dict[int, RecordError] = {}
        decoded = list(_decode_bodies(schema, bodies, rejected))
        batch.rejected += [Rejected(indexes[row], error) for row, error in rejected.items()]
        if len(groups) > 1:
            positions = pl.Series(INDEX, indexes, dtype=pl.Int64)
            decoded = [frame.with_columns(positions.gather(frame[INDEX])) for frame in decoded]
        frames.setdefault(schema.name, []).extend(_resolve(schema, frame) for frame in decoded if frame.height)
    batch.frames = {
        name: parts[0] if len(parts) == 1 else pl.concat(parts).sort(INDEX) for name, parts in frames.items() if parts
    }
    batch.rejected.sort(key=lambda rejected: rejected.index)
    return batch


def decode_own(messages: Sequence[bytes]) -> DecodedBatch:
    """Decode messages that this process has just encoded like `decode_batch`, without the proof, in half the time."""
    frame = None
    if len({message[:PREFIX_BYTES] for message in messages}) == 1:
        schema = writer_schema(messages[0])
        frame = decode_columns(schema, b"".join(message[PREFIX_BYTES:] for message in messages), len(messages))
    if frame is None:
        return decode_batch(messages)
    return DecodedBatch({schema.name: _add_index(frame, 0)})


def rows_as_records(name: str, frame: pl.DataFrame) -> Iterator[Record]:
    """Return the rows of a decoded frame as records of the named type. Raises RecordError naming an invalid field."""
    fields = [field["name"] for field in schema_of(name).fields]
    return (record_from(RECORD_TYPES[name], row) for row in frame.select(fields).iter_rows(named=True))


SYNC = bytes(16)
_NAMES = itertools.count()


def _varint(number: int) -> bytes:
    """Return Avro's encoding of a non-negative long: zigzag, seven bits per byte, lowest first."""
    remaining = number << 1
    encoded = bytearray()
    while remaining & ~0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def _inline_references(node: Any, definitions: dict[str, Json]) -> Any:
    """Return the type with each reference to a named type replaced by its definition under a unique name.

    Polars does not resolve references. Names are not part of the encoding, so the bodies stay valid.
    """
    if isinstance(node, str):
        return _inline_references(definitions[node], definitions) if node in definitions else node
    if isinstance(node, list):
        return [_inline_references(branch, definitions) for branch in node]
    if node["type"] == "array":
        return {**node, "items": _inline_references(node["items"], definitions)}
    if node["type"] != "record":
        return node
    # Omit docs and defaults: polars fails on a boolean default, and decoding needs neither.
    fields = [{"name": item["name"], "type": _inline_references(item["type"], definitions)} for item in node["fields"]]
    definitions[f"{NAMESPACE}.{node['name']}"] = node
    return {"type": "record", "name": f"R{next(_NAMES)}", "fields": fields}


@functools.cache
def wire_of(prefix: bytes) -> tuple[bytes, Layout]:
    """Return the header of an object container for the writer's schema, and the layout of the bodies."""
    schema = writer_schema(prefix)
    record = _inline_references({"type": "record", "name": schema.name, "fields": schema.fields}, {})
    text = json.dumps(record).encode()
    pairs = _varint(2) + _varint(11) + b"avro.schema" + _varint(len(text)) + text
    header = b"Obj\x01" + pairs + _varint(10) + b"avro.codec" + _varint(4) + b"null" + _varint(0) + SYNC
    return header, Layout(record["fields"])


def decode_columns(schema: RecordSchema, block: bytes, rows: int) -> pl.DataFrame | None:
    """Decode joined bodies to columns; return None if the decoder fails or returns another number of rows."""
    header, _ = wire_of(schema.prefix)
    container = b"".join((header, _varint(rows), _varint(len(block)), block, SYNC))
    try:
        frame = pl.read_avro(io.BytesIO(container))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - polars panics on some invalid bytes, and its panic is a BaseException
        return None
    return frame if frame.height == rows else None


_WIDTHS = {"int": 5, "long": 10}
_FIXED = {"boolean": 1, "float": 4, "double": 8}


@functools.cache
def _longer() -> pl.Series:
    """Return the smallest magnitudes of numbers with 2, 3, …, 10 bytes: the sign in the lowest bit, seven bits per byte."""
    return pl.Series([1 << (7 * size - 1) for size in range(1, 10)], dtype=pl.Int64)


def _number_size(magnitude: pl.Expr) -> pl.Expr:
    return pl.lit(_longer()).search_sorted(magnitude, side="right").cast(pl.Int64) + 1


def _magnitude(column: pl.Expr) -> pl.Expr:
    number = column.to_physical().cast(pl.Int64).fill_null(0)
    return pl.when(number < 0).then(~number).otherwise(number)


def _size_and_last(kind: str, column: pl.Expr) -> tuple[pl.Expr, pl.Expr | None]:
    """Return the encoded sizes of the values, and their last bytes where another byte would decode to the same value."""
    if kind in _WIDTHS:
        magnitude, width = _magnitude(column), _WIDTHS[kind]
        size = _number_size(magnitude)
        # The last byte of a number with full width has unused bits, which the decoder ignores.
        return size, pl.when(size == width).then(magnitude // (1 << (7 * width - 8))).cast(pl.UInt8)
    if kind in _FIXED:
        return pl.lit(_FIXED[kind], pl.Int64), column.cast(pl.UInt8) if kind == "boolean" else None
    length = (column.str.len_bytes() if kind == "string" else column.bin.size()).cast(pl.Int64).fill_null(0)
    return length + _number_size(length), None


@dataclass
class _Checks:
    """Bytes to check: their offsets in the block, and their expected values; null allows any value."""

    offsets: list[pl.Series] = field(default_factory=list)
    expected: list[pl.Series] = field(default_factory=list)

    def add(self, offsets: pl.Series, expected: pl.Series) -> None:
        self.offsets.append(offsets)
        self.expected.append(expected)

    def hold(self, block: bytes) -> bool:
        if not self.offsets:
            return True
        stored = pl.Series([block]).bin.reinterpret(dtype=pl.Array(pl.UInt8, len(block))).explode()
        actual = stored.gather(pl.concat(self.offsets))
        return bool((actual == pl.concat(self.expected)).all())  # a comparison with null is null, which `all` ignores


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
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def past(self, rows: _Measured, at: pl.Series, checks: _Checks) -> pl.Series:
        """Return the offsets after the rows, which start at the offsets `at`."""
        for name, step in self._steps:
            if step is not None:
                at = step.past(rows.inner[name], at, checks)  # type: ignore[arg-type]  # as above
                continue
            branch = rows.columns.get(f"{name} branch")
            if branch is not None:
                checks.add(at, branch)
            at = at + rows.columns[f"{name} size"]
            last = rows.columns.get(f"{name} last")
            if last is not None and last.null_count() < len(last):
                checks.add(at - 1, last)
        return at


class _Array:
    """The layout of arrays: the count of their items, the items, and, if there are any, a count of zero."""

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
        # The items of one row are adjacent, so their total size is the difference between two sums.
        sums = pl.Series([0], dtype=pl.Int64).append(arrays.sizes.cum_sum())
        ends = arrays.counts.cum_sum()
        return arrays.count_sizes + (sums.gather(ends) - sums.gather(ends - arrays.counts)) + arrays.filled.cast(pl.Int64)

    def past(self, arrays: _Items, at: pl.Series, checks: _Checks) -> pl.Series:
        """Return the offsets after the arrays, which start at the offsets `at`."""
        at = _past_counts(arrays.counts, arrays.count_sizes, at, checks)
        if arrays.items is None or arrays.sizes is None:
            return at
        item_ends = arrays.sizes.cum_sum()
        counts = arrays.counts.filter(arrays.filled)
        row_ends = item_ends.gather(counts.cum_sum() - 1)
        shifts = at.filter(arrays.filled) - row_ends.shift(1, fill_value=0)
        # In the block, the items of one row are adjacent but the rows are not, so shift each row's items to their row.
        item_shifts = pl.select(pl.lit(shifts).repeat_by(counts).explode()).to_series()
        self._layout.past(arrays.items, item_ends - arrays.sizes + item_shifts, checks)
        return at.scatter(arrays.filled.arg_true(), shifts + row_ends + 1)


def _past_counts(counts: pl.Series, size: pl.Series, at: pl.Series, checks: _Checks) -> pl.Series:
    """Return the offsets after the counts. Each byte is checked, because two blocks can be as long as one."""
    max_size = size.max()
    if max_size == 1:
        checks.add(at, (counts * 2).cast(pl.UInt8))
        return at + 1
    for index in range(max_size if isinstance(max_size, int) else 0):
        has_byte = size > index
        continuation_bit = (size > index + 1).cast(pl.Int64) * 128
        expected = (counts * 2 // (1 << 7 * index)) % 128 + continuation_bit
        checks.add((at + index).filter(has_byte), expected.filter(has_byte).cast(pl.UInt8))
    return at + size


def _bounds_violation(avro_type: Any, value: pl.Expr, definitions: dict[str, Any]) -> pl.Expr | None:
    """Return an expression that is true for decoded values out of bounds; None if there are none.

    The bounds are those of `schemas.bounds`. A decoded int is always within them.
    """
    if isinstance(avro_type, str):
        if avro_type in definitions:
            return _bounds_violation(definitions[avro_type], value, definitions)
        return ~value.is_finite() if avro_type in ("double", "float") else None
    if isinstance(avro_type, list):
        return _bounds_violation(avro_type[1], value, definitions)
    if "logicalType" in avro_type:
        return ~value.is_between(EARLIEST, LATEST)
    if avro_type["type"] == "array":
        item = _bounds_violation(avro_type["items"], pl.element(), definitions)
        return None if item is None else value.list.eval(item.fill_null(value=False)).list.any()
    definitions[f"{NAMESPACE}.{avro_type['name']}"] = avro_type
    fields = [_bounds_violation(field["type"], value.struct.field(field["name"]), definitions) for field in avro_type["fields"]]
    bounded_fields = [field for field in fields if field is not None]
    return pl.any_horizontal(*bounded_fields) if bounded_fields else None


@functools.cache
def bounds_of(prefix: bytes) -> dict[str, pl.Expr]:
    """Return, for each field of a schema with bounds, an expression that is true for values out of them."""
    definitions: dict[str, Any] = {}
    fields = schemas_by_prefix()[prefix].fields
    expressions = {field["name"]: _bounds_violation(field["type"], pl.col(field["name"]), definitions) for field in fields}
    bounds = {name: expression.fill_null(value=False) for name, expression in expressions.items() if expression is not None}
    if {"occurred_at", "ingested_at"} <= bounds.keys():
        bounds["occurred_at"] |= pl.col("occurred_at") > pl.col("ingested_at") + CLOCK_TOLERANCE
    return bounds
