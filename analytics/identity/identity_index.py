"""The identities of a log as hashes in memory, eight bytes each: tells that a record is new without reading the log.

Two identities can have the same hash, so only "certainly new" is believed from here. What may be known is looked up in the log.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any

from analytics.store.connection import fetch
from analytics.store.tables import full_name, quote
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl
from schemas.registry import RecordSchema, schema_of, topics

AT_ONCE = 1_000_000
"""Positions that are read at once."""
RECENT = 50_000
"""Hashes that wait to be sorted."""
Identity = tuple[str | int, ...]
"""The values that tell a record from others of its type: texts, and numbers as `_number` has them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GROWTH = 4
"""A run of sorted hashes takes in the one after it until it is so many times as large: so each hash is sorted a few times only."""


class _Run:
    """Sorted hashes. An element of a series takes a microsecond, so they are looked for in the same memory, read as numbers."""

    def __init__(self, hashes: pl.Series) -> None:
        self.hashes = hashes.sort()
        self._each = self.hashes.to_numpy().data

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._each, value)
        return index < len(self._each) and self._each[index] == value


@dataclass
class Hashes:
    """A set of hashes: sorted runs, each larger than the next, and a few that wait."""

    runs: list[_Run] = field(default_factory=list)
    recent: set[int] = field(default_factory=set)

    def add(self, hashes: Collection[int]) -> None:
        """Take hashes in."""
        if len(hashes) < RECENT:
            self.recent.update(hashes)
        if len(hashes) >= RECENT or len(self.recent) >= RECENT:
            self._sort_in(pl.Series([*hashes, *self.recent] if len(hashes) >= RECENT else list(self.recent), dtype=pl.Int64))
            self.recent = set()

    def _sort_in(self, added: pl.Series) -> None:
        while self.runs and len(self.runs[-1].hashes) < _GROWTH * len(added):
            added = pl.concat([self.runs.pop().hashes, added])
        self.runs.append(_Run(added))

    def which_of(self, hashes: Sequence[int]) -> list[bool]:
        """For each of the hashes whether it is here."""
        return [value in self.recent or any(value in run for run in self.runs) for value in hashes]


class KnownIdentities:
    """Belongs to one store and follows its log by position: a record of any writer is read before anything is answered."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], Hashes] = {}
        self._read: dict[str, int] = {}
        self._lock = threading.Lock()

    def doubtful(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows whose identity may be on the topic, as far as it was read; `read` comes before."""
        with self._lock:
            hashes = self._hashes.get((topic, schema.name))
            return frame.clear() if hashes is None else frame.filter(hashes.which_of(_hashed(schema, frame)))

    def which_are_new(self, name: str, topic: str, identities: Sequence[Identity]) -> list[bool]:
        """For each of the identities, whether it is certainly not on the topic, as far as it was read; `name` is of their record type."""
        with self._lock:
            hashes = self._hashes.get((topic, name))
            if hashes is None:
                return [True] * len(identities)
            return [not is_seen for is_seen in hashes.which_of(list(map(hash, identities)))]

    @property
    def is_busy(self) -> bool:
        """True while another thread has it, so that `which_are_new` would wait."""
        return self._lock.locked()

    def has_read(self, topic: str, end: int) -> bool:
        """Tell whether the topic was read up to position `end`."""
        return self._read.get(topic, 0) >= end

    def read(self, connection: duckdb.DuckDBPyConnection, topic: str, end: int) -> None:
        """Read what the topic has beyond what was read, up to position `end`."""
        start = self._read.setdefault(topic, 0)
        for first in range(start, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            for name in topics()[topic]:
                self._read_part(connection, schema_of(name), topic, first, last)
        if end > start:  # else another thread may just have taken in more
            self._read[topic] = end

    def note(self, topic: str, identities: Mapping[str, Sequence[Identity]], end: int) -> None:
        """Take in identities, by record type, that were just appended to a topic whose earlier ones were read; it ends at `end` now."""
        with self._lock:
            for name, of_type in identities.items():
                self._hashes.setdefault((topic, name), Hashes()).add(list(map(hash, of_type)))
        self._read[topic] = end

    def take_in(self, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Take in what was just committed by the only writer of the topic, once all that was there before was read."""
        for name, frame in frames.items():
            self._add(schema_of(name), topic, frame)

    def _read_part(
        self, connection: duckdb.DuckDBPyConnection, schema: RecordSchema, topic: str, first: int, last: int
    ) -> None:
        statement = (
            f"SELECT {', '.join(map(quote, identity_of(schema)))} FROM {full_name(schema)} "  # noqa: S608 - names from the schemas, quoted
            "WHERE _topic = $topic AND _offset >= $first AND _offset < $last"
        )
        self._add(schema, topic, fetch(connection, statement, {"topic": topic, "first": first, "last": last}))

    def _add(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> None:
        if frame.height:
            hashes = _hashed(schema, frame)
            with self._lock:
                self._hashes.setdefault((topic, schema.name), Hashes()).add(hashes)


def identity_of(schema: RecordSchema) -> list[str]:
    """The columns that tell a record from others: its identity and, where it has one, its revision."""
    return [*schema.identity, "revision"] if schema.has_revisions else list(schema.identity)


def identities_of(name: str, records: Iterable[Any]) -> list[Identity]:
    """The identities of records of one type."""
    return list(map(_identity_reader(name), records))


@cache
def _identity_reader(name: str) -> Callable[[Any], Identity]:
    """Return the function that reads the identity of a record of a type."""
    names, texts = _identity_columns(name)
    times = {field["name"] for field in schema_of(name).fields if isinstance(field["type"], dict)}
    if len(names) > 1 and times.isdisjoint(names):
        return attrgetter(*names)
    columns = [(attrgetter(column), column in texts) for column in names]
    return lambda record: tuple(read(record) if is_text else _number(read(record)) for read, is_text in columns)


def _number(value: int | datetime) -> int:
    """A number, or a time in microseconds, as columns have it."""
    return value if isinstance(value, int) else (value - _EPOCH) // timedelta(microseconds=1)


def _hashed(schema: RecordSchema, frame: pl.DataFrame) -> list[int]:
    """The hash of each row's identity. The log gives numbers and times back as other types than decoding does."""
    # Not by the library for columns: its threads cost an exchange that comes alone more than all the rest of the question.
    names, texts = _identity_columns(schema.name)
    columns = [frame[name] if name in texts else frame[name].to_physical().cast(pl.Int64) for name in names]
    return list(map(hash, zip(*(column.to_list() for column in columns), strict=True)))


@cache
def _identity_columns(name: str) -> tuple[list[str], list[str]]:
    """The columns of a record type's identity, and those of them that are texts."""
    # Asked of the schema, and not of a frame: the first sender would wait until polars is loaded.
    schema = schema_of(name)
    texts = {field["name"] for field in schema.fields if field["type"] == "string"}
    names = identity_of(schema)
    return names, [column for column in names if column in texts]
