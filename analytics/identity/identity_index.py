"""The identities of a log as hashes in memory, eight bytes each: tells that a record is new without reading the log.

Two identities can have the same hash, so only "certainly new" is believed from here. What may be known is looked up in the log.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import duckdb

from analytics.store.connection import fetch
from analytics.store.tables import full_name, quote
from schemas.codec.arrow import empty_frame
from schemas.lazy.polars import pl
from schemas.registry import RecordSchema, schema_of, topics

AT_ONCE = 1_000_000
"""Positions that are read at once."""
RECENT = 50_000
"""Hashes that wait to be sorted."""
FEW = 64
"""Hashes that are looked for one by one: sooner than the query engine has begun."""
_GROWTH = 4
"""A run of sorted hashes takes in the one after it until it is so many times as large: so each hash is sorted a few times only."""


@dataclass
class _Hashes:
    """The hashes of one record type's identities on one topic: sorted runs, each larger than the next, and a few that wait."""

    runs: list[pl.Series] = field(default_factory=list)
    recent: set[int] = field(default_factory=set)

    def add(self, hashes: pl.Series) -> None:
        if len(hashes) < RECENT:
            self.recent.update(hashes.to_list())
        if len(hashes) >= RECENT or len(self.recent) >= RECENT:
            rest = pl.Series(list(self.recent), dtype=pl.UInt64)
            self._sort_in(pl.concat([hashes, rest]) if len(hashes) >= RECENT else rest)
            self.recent = set()

    def _sort_in(self, added: pl.Series) -> None:
        while self.runs and len(self.runs[-1]) < _GROWTH * len(added):
            added = pl.concat([self.runs.pop(), added])
        self.runs.append(added.sort())

    def which_of(self, hashes: pl.Series) -> pl.Series:
        """For each of the hashes whether it is here."""
        if len(hashes) <= FEW:
            return pl.Series([one in self.recent or self._is_in_a_run(one) for one in hashes.to_list()], dtype=pl.Boolean)
        listed = hashes.to_list() if self.recent else []
        found = pl.Series([one in self.recent for one in listed] if listed else [False], dtype=pl.Boolean)
        found = found if listed else found.new_from_index(0, len(hashes))
        for run in self.runs:
            places = run.search_sorted(hashes).clip(0, len(run) - 1)
            found |= run.gather(places) == hashes
        return found

    def _is_in_a_run(self, value: int) -> bool:
        places = ((run, bisect_left(run, value)) for run in self.runs)
        return any(place < len(run) and run[place] == value for run, place in places)


class KnownIdentities:
    """Belongs to one store and follows its log by position: a record of any writer is read before anything is answered."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], _Hashes] = {}
        self._read: dict[str, int] = {}
        self._lock = threading.Lock()

    def doubtful(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows whose identity may be on the topic, as far as it was read; `read` comes before."""
        with self._lock:
            known = self._hashes.get((topic, schema.name))
            return frame.clear() if known is None else frame.filter(known.which_of(_hashed(schema, frame)))

    def has_any(self, schema: RecordSchema, topic: str) -> bool:
        """Tell whether the topic has any record of the type, as far as it was read."""
        with self._lock:
            return (topic, schema.name) in self._hashes

    @property
    def is_busy(self) -> bool:
        """True while another thread has it, so that `is_new` would wait."""
        return self._lock.locked()

    def is_new(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> bool:
        """Tell whether none of the rows is doubtful."""
        with self._lock:
            known = self._hashes.get((topic, schema.name))
            return known is None or not known.which_of(_hashed(schema, frame)).any()

    def read(self, connection: duckdb.DuckDBPyConnection, topic: str, end: int) -> None:
        """Read what the topic has beyond what was read, up to position `end`."""
        start = self._read.get(topic, 0)
        for first in range(start, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            for name in topics()[topic]:
                self._read_part(connection, schema_of(name), topic, first, last)
        self._read[topic] = max(start, end)

    def add(self, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Take in what was just written and committed, with its `_offset`, where nothing lies between that and what was read."""
        if not frames or min(frame["_offset"][0] for frame in frames.values()) != self._read.get(topic):
            return
        self.take_in(topic, frames)
        self._read[topic] = 1 + max(frame["_offset"][-1] for frame in frames.values())

    def take_in(self, topic: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Take in what was just committed by the only writer of the topic, once all that was there before was read."""
        for name, frame in frames.items():
            self._add(schema_of(name), topic, frame)

    def rewind(self, ends: Mapping[str, int]) -> None:
        """Positions from these ends on were taken back and will be given again."""
        self._read = {topic: min(position, ends[topic]) for topic, position in self._read.items()}

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
                self._hashes.setdefault((topic, schema.name), _Hashes()).add(hashes)


def identity_of(schema: RecordSchema) -> list[str]:
    """The columns that tell a record from others: its identity and, where it has one, its revision."""
    return [*schema.identity, "revision"] if schema.has_revisions else list(schema.identity)


def _hashed(schema: RecordSchema, frame: pl.DataFrame) -> pl.Series:
    """The hash of each row's identity. The log gives numbers and times back as other types than decoding does."""
    names, texts = _identity_columns(schema.name)
    if frame.columns == names == texts:
        return frame.hash_rows(seed=0)  # a select would start the query engine, which takes twice as long as all of it
    columns = [pl.col(name) if name in texts else pl.col(name).to_physical().cast(pl.Int64) for name in names]
    return frame.select(columns).hash_rows(seed=0)


@cache
def _identity_columns(name: str) -> tuple[list[str], list[str]]:
    """The columns of a record type's identity, and those of them that are texts."""
    names, types = identity_of(schema_of(name)), empty_frame(name).schema
    return names, [one for one in names if types[one] == pl.String]
