"""Proof that decoded columns are exactly what the bytes say, and that the bytes say it in the one canonical way.

A columnar decoder is fast because it asks few questions: it takes any byte but 1 for false, any branch of a union but the first
for a value, cuts numbers to their width, and knows nothing of where a message ends. What it returned is proven afterwards, for
all rows at once. From the values follows where in the block each of them stands *if* it was written canonically: shortest
numbers, one block an array. Nothing can be written shorter, so when the places of all messages come out as they are, all other
places do too. What is left are the bytes that could be another one of the same length; they are looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.lazy import pl
from schemas.registry import Json

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
        """The bytes of each row."""
        parts = [rows.columns[name] for name in self._sizes]
        for name, step in self._steps:
            if step is not None:
                parts.append(step.size(rows.inner[name]))  # type: ignore[arg-type]  # each step measures for itself
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return whole

    def past(self, rows: _Measured, at: pl.Series, checks: _Checks) -> pl.Series:
        """The places behind the rows when they start at the places `at`."""
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
        """The bytes of each array."""
        if arrays.sizes is None:
            return arrays.count_sizes
        # The items of one row follow each other: what all of them take is the difference between two sums.
        sums = pl.Series([0], dtype=pl.Int64).append(arrays.sizes.cum_sum())
        ends = arrays.counts.cum_sum()
        return arrays.count_sizes + (sums.gather(ends) - sums.gather(ends - arrays.counts)) + arrays.filled.cast(pl.Int64)

    def past(self, arrays: _Items, at: pl.Series, checks: _Checks) -> pl.Series:
        """The places behind the arrays when they start at the places `at`."""
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
    """The places behind the counts. Every byte of them is looked at: two blocks can be as long as one."""
    widest = size.max()
    if widest == 1:
        checks.add(at, (counts * 2).cast(pl.UInt8))
        return at + 1
    for place in range(widest if isinstance(widest, int) else 0):
        here = size > place
        more = (size > place + 1).cast(pl.Int64) * 128
        checks.add((at + place).filter(here), ((counts * 2 // (1 << 7 * place)) % 128 + more).filter(here).cast(pl.UInt8))
    return at + size
