"""The identities of a log as hashes in memory, eight bytes each, to recognise a new record without reading the log.

Two identities can have the same hash, so the index can only prove that a record is new. Any other record is looked up in the log.
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
from schemas.lazy import duckdb, pl
from schemas.registry import RecordSchema, schema_of, topics

AT_ONCE = 1_000_000
"""Positions read in one query."""
RECENT = 50_000
"""Maximum number of unsorted hashes."""
Identity = tuple[str | int, ...]
"""The values that identify a record among those of its type: texts, and numbers as `_number` returns them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GROWTH = 4
"""A sorted run is merged with the next one until it is this many times larger, so each hash is sorted only a few times."""


class _Run:
    """Sorted hashes. Indexing a polars series takes a microsecond, so searches read the same memory as plain integers."""

    def __init__(self, hashes: pl.Series) -> None:
        self.hashes = hashes.sort()
        self._each = self.hashes.to_numpy().data

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._each, value)
        return index < len(self._each) and self._each[index] == value


@dataclass
class Hashes:
    """A set of hashes: sorted runs, each larger than the next, and a small unsorted buffer."""

    runs: list[_Run] = field(default_factory=list)
    recent: set[int] = field(default_factory=set)

    def add(self, hashes: Collection[int]) -> None:
        """Add hashes."""
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
        """Tell for each hash whether the set has it."""
        return [value in self.recent or any(value in run for run in self.runs) for value in hashes]


class KnownIdentities:
    """The index of one store. It follows the log by position: records of any writer are read before it answers."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], Hashes] = {}
        self._read: dict[str, int] = {}
        self._lock = threading.Lock()

    def doubtful(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows whose identity may be on the topic, as far as it was read. Call `read` first."""
        with self._lock:
            hashes = self._hashes.get((topic, schema.name))
            return frame.clear() if hashes is None else frame.filter(hashes.which_of(_hashed(schema, frame)))

    def which_are_new(self, name: str, topic: str, identities: Sequence[Identity]) -> list[bool]:
        """Tell for each identity whether it is certainly not on the topic, as far as it was read; `name` is the record type."""
        with self._lock:
            hashes = self._hashes.get((topic, name))
            if hashes is None:
                return [True] * len(identities)
            return [not is_seen for is_seen in hashes.which_of(list(map(hash, identities)))]

    @property
    def is_busy(self) -> bool:
        """True while another thread holds the lock, so that `which_are_new` would wait."""
        return self._lock.locked()

    def has_read(self, topic: str, end: int) -> bool:
        """Tell whether the topic was read up to position `end`."""
        return self._read.get(topic, 0) >= end

    def read(self, connection: duckdb.DuckDBPyConnection, topic: str, end: int) -> None:
        """Read the topic's new records, up to position `end`."""
        start = self._read.setdefault(topic, 0)
        for first in range(start, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            for name in topics()[topic]:
                self._read_part(connection, schema_of(name), topic, first, last)
        if end > start:  # otherwise another thread may just have read further
            self._read[topic] = end

    def note(self, topic: str, identities: Mapping[str, Sequence[Identity]], end: int) -> None:
        """Add the identities just appended to a topic, by record type, if all earlier ones were read; the topic now ends at `end`."""
        with self._lock:
            for name, of_type in identities.items():
                self._hashes.setdefault((topic, name), Hashes()).add(list(map(hash, of_type)))
        self._read[topic] = end

    def take_in(self, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Add the rows just committed by the only writer of the topic, if all earlier ones were read."""
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
    """The columns that identify a record: its identity and, if it has one, its revision."""
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
    """A number as it is, a time as microseconds since the epoch: the form in which columns hold them."""
    return value if isinstance(value, int) else (value - _EPOCH) // timedelta(microseconds=1)


def _hashed(schema: RecordSchema, frame: pl.DataFrame) -> list[int]:
    """The hash of each row's identity. The log returns numbers and times as other types than decoding does."""
    # Hashed in Python, not in polars: for a single exchange, starting polars' threads costs more than the whole look-up.
    names, texts = _identity_columns(schema.name)
    columns = [frame[name] if name in texts else frame[name].to_physical().cast(pl.Int64) for name in names]
    return list(map(hash, zip(*(column.to_list() for column in columns), strict=True)))


@cache
def _identity_columns(name: str) -> tuple[list[str], list[str]]:
    """The columns of a record type's identity, and those of them that are texts."""
    # Read from the schema, not from a frame: otherwise the first sender would wait for polars to load.
    schema = schema_of(name)
    texts = {field["name"] for field in schema.fields if field["type"] == "string"}
    names = identity_of(schema)
    return names, [column for column in names if column in texts]
