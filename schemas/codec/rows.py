"""Rows of decoded frames as records and as messages, column by column: a row takes one call, and no dictionary.

1. A column becomes a list of values, or of their encodings, in one pass; a row is put together from one item of each.
2. Items of lists, and the records in them, are columns, too: those of all rows below each other.
3. A frame that has not the types and limits of its schema goes row by row: that finds the words for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

import schemas.records
from schemas.codec.single_object import encode_fields, record_from
from schemas.codec.writers import EPOCH, FIRST, LAST, NUMBERS, TRUTH, double_bytes, time_bytes
from schemas.lazy.polars import pl
from schemas.records import RECORD_TYPES, Record
from schemas.registry import NAMESPACE, Json, schema_of

_AT_ONCE = 1_000
"""Rows whose values are in memory at once."""


class _UnfitError(Exception):
    """A column that is not as its schema has it."""


def rows_as_messages(name: str, frame: pl.DataFrame) -> Iterator[bytes]:
    """The rows of a decoded frame in the encoding of the named type, in order; what was decoded need not be checked again."""
    return _rows(_ENCODINGS, name, frame, functools.partial(encode_fields, name), schema_of(name).prefix.__add__)


def rows_as_records(name: str, frame: pl.DataFrame) -> Iterator[Record]:
    """The rows of a decoded frame as records of the named type, in order."""
    return _rows(_VALUES, name, frame, functools.partial(record_from, RECORD_TYPES[name]), None)


class _Form(NamedTuple):
    """The form that a column's items take, by the shape of their type."""

    leaf: Callable[[str, pl.Series], Sequence[Any]]
    """Those of a column of plain values, none of them null."""
    absent: Any
    """A null."""
    present: Callable[[Sequence[Any]], Sequence[Any]]
    """Values beside which there are nulls, or could be."""
    array: Callable[[Sequence[Any], Sequence[int]], list[Any]]
    """The items of all arrays and the length of each."""
    record: Callable[[Json, Sequence[Sequence[Any]]], Sequence[Any]]
    """A record's definition and the columns of its fields."""


def _rows(
    form: _Form,
    name: str,
    frame: pl.DataFrame,
    single: Callable[[dict[str, Any]], Any],
    whole: Callable[[Any], Any] | None,
) -> Iterator[Any]:
    """The rows in a form; `single` makes it of one row, `whole` of what the columns come to."""
    schema = schema_of(name)
    named = dict(_types_in(schema.definition))
    for part in frame.select([known["name"] for known in schema.fields]).iter_slices(_AT_ONCE):
        made: Iterable[Any] | None = None
        with contextlib.suppress(_UnfitError):
            made = _record(form, schema.definition, part, named)
        if made is None:
            yield from map(single, part.iter_rows(named=True))
        else:
            yield from made if whole is None else map(whole, made)


def _types_in(kind: Any) -> Iterator[tuple[str, Json]]:
    """The record types that are defined in a type, by name: fields after the first that has one only name it."""
    if isinstance(kind, list):
        for branch in kind:
            yield from _types_in(branch)
    elif isinstance(kind, dict):
        yield from _types_in(kind.get("items"))
        if "fields" in kind:
            yield f"{NAMESPACE}.{kind['name']}", kind
        for field in kind.get("fields", ()):
            yield from _types_in(field["type"])


def _record(form: _Form, definition: Json, frame: pl.DataFrame, named: dict[str, Json]) -> Sequence[Any]:
    fields = [_column(form, one["type"], frame[one["name"]], named) for one in definition["fields"]]
    return form.record(definition, fields)


def _column(form: _Form, kind: Any, series: pl.Series, named: dict[str, Json]) -> Sequence[Any]:
    """The items of a column of an Avro type."""
    if isinstance(kind, list):
        return _optional(form, kind[1], series, named)
    if series.null_count():
        raise _UnfitError
    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, str):
        return form.leaf(kind, series)
    if kind["type"] == "array":
        if not isinstance(series.dtype, pl.List):
            raise _UnfitError
        lengths = series.list.len()
        items = series.filter(lengths > 0).explode()
        return form.array(_column(form, kind["items"], items, named) if len(items) else (), lengths.to_list())
    if kind["type"] == "record":
        return _record(form, kind, series.struct.unnest(), named)
    return form.leaf(kind.get("logicalType", kind["type"]), series)


def _optional(form: _Form, kind: Any, series: pl.Series, named: dict[str, Json]) -> Sequence[Any]:
    """The items of a column of a type that may be null."""
    nulls = series.null_count()
    if nulls == len(series):
        return [form.absent] * nulls
    if not nulls:
        return form.present(_column(form, kind, series, named))
    is_given = series.is_not_null()
    given = iter(form.present(_column(form, kind, series.filter(is_given), named)))
    return [next(given) if one else form.absent for one in is_given.to_list()]


@functools.cache
def _dtypes() -> dict[str, pl.DataType]:
    """The type that a column of a kind has."""
    return {
        "string": pl.String(),
        "bytes": pl.Binary(),
        "int": pl.Int32(),
        "long": pl.Int64(),
        "timestamp-micros": pl.Datetime("us", "UTC"),
        "double": pl.Float64(),
        "boolean": pl.Boolean(),
    }


def _fitting(kind: str, series: pl.Series) -> pl.Series:
    if kind not in _dtypes() or series.dtype != _dtypes()[kind]:
        raise _UnfitError
    return series


def _values(kind: str, series: pl.Series) -> Sequence[Any]:
    if kind != "timestamp-micros":
        return _fitting(kind, series).to_list()
    # A third of the time that polars takes for a time in a zone.
    return [EPOCH + timedelta(microseconds=micros) for micros in _fitting(kind, series).cast(pl.Int64).to_list()]


def _tuples(items: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
    rest = iter(items)
    return [tuple(islice(rest, length)) if length else () for length in lengths]


def _made(definition: Json, fields: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return list(map(_maker(definition["name"], tuple(one["name"] for one in definition["fields"])), *fields))


@functools.cache
def _maker(name: str, fields: tuple[str, ...]) -> Callable[..., Record]:
    """A function that makes a record of its fields in their order: records take them by name."""
    places = ", ".join(fields)
    source = f"lambda {places}: record_type({', '.join(f'{field}={field}' for field in fields)})"
    maker: Callable[..., Record] = eval(source, {"record_type": getattr(schemas.records, name)})  # noqa: S307 - made of the schemas, which are ours
    return maker


def _encoded_texts(series: pl.Series) -> list[bytes]:
    return [NUMBERS[len(data)] + data for data in series.cast(pl.Binary).to_list()]


def _encoded_times(series: pl.Series) -> list[bytes]:
    values = series.cast(pl.Int64).to_list()
    if min(values) < FIRST or max(values) > LAST:
        raise _UnfitError
    return list(map(time_bytes, values))


def _encoded_doubles(series: pl.Series) -> list[bytes]:
    values = series.to_list()
    if not all(map(math.isfinite, values)):
        raise _UnfitError
    return list(map(double_bytes, values))


def _encoded_numbers(series: pl.Series) -> list[bytes]:
    return list(map(NUMBERS.__getitem__, series.to_list()))


_ENCODERS: dict[str, Callable[[pl.Series], list[bytes]]] = {
    "string": _encoded_texts,
    "bytes": _encoded_texts,
    "int": _encoded_numbers,
    "long": _encoded_numbers,
    "timestamp-micros": _encoded_times,
    "double": _encoded_doubles,
    "boolean": lambda series: list(map(TRUTH.__getitem__, series.to_list())),
}


def _encodings(kind: str, series: pl.Series) -> Sequence[bytes]:
    return _ENCODERS[kind](_fitting(kind, series))


def _blocks(items: Sequence[bytes], lengths: Sequence[int]) -> list[Any]:
    rest = iter(items)
    return [b"".join((NUMBERS[length], *islice(rest, length), b"\0")) if length else b"\0" for length in lengths]


def _joined(_definition: Json, fields: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    return list(map(b"".join, zip(*fields, strict=True)))


_VALUES = _Form(_values, None, lambda items: items, _tuples, _made)
_ENCODINGS = _Form(_encodings, b"\0", lambda items: [b"\2" + item for item in items], _blocks, _joined)
