"""The identities of a log as hashes in memory, four bytes each: tells that a record is new without reading the log.

Two identities can have the same hash, so only "certainly new" is believed from here. What may be known is looked up in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import duckdb
import polars as pl

from analytics.connection import fetch
from analytics.tables import full_name, quote
from schemas.arrow import empty_frame
from schemas.registry import RecordSchema, schema_of, topics

AT_ONCE = 1_000_000
"""Positions that are read at once."""
RECENT = 50_000
"""Hashes that wait to be sorted in with the others."""
_BITS = 0xFFFFFFFF


@dataclass
class _Hashes:
    """The hashes of one record type's identities on one topic."""

    sorted: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.UInt32))
    recent: set[int] = field(default_factory=set)

    def add(self, hashes: pl.Series) -> None:
        if len(hashes) < RECENT:
            self.recent.update(hashes.to_list())
        if len(hashes) >= RECENT or len(self.recent) >= RECENT:
            rest = pl.Series(list(self.recent), dtype=pl.UInt32)
            added = [hashes, rest] if len(hashes) >= RECENT else [rest]
            self.sorted, self.recent = pl.concat([self.sorted, *added]).sort(), set()

    def any_of(self, hashes: pl.Series) -> bool:
        if not self.recent.isdisjoint(hashes.to_list()):
            return True
        if self.sorted.is_empty():
            return False
        places = self.sorted.search_sorted(hashes).clip(0, len(self.sorted) - 1)
        return bool((self.sorted.gather(places) == hashes).any())


class KnownIdentities:
    """Belongs to one store and follows its log by position: whoever wrote a record, it is read before anything is answered."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], _Hashes] = {}
        self._read: dict[str, int] = {}

    def may_have(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> bool:
        """Whether one of the frame's identities may be on the topic, as far as it was read; `read` comes before."""
        identity = _identity(schema)
        known = self._hashes.get((topic, schema.name))
        return not identity or (known is not None and known.any_of(_hashed(frame, identity)))

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
        for name, frame in frames.items():
            self._add(schema_of(name), topic, frame)
        self._read[topic] = 1 + max(frame["_offset"][-1] for frame in frames.values())

    def rewind(self, ends: Mapping[str, int]) -> None:
        """Positions from these ends on were taken back and will be given again."""
        self._read = {topic: min(position, ends[topic]) for topic, position in self._read.items()}

    def _read_part(
        self, connection: duckdb.DuckDBPyConnection, schema: RecordSchema, topic: str, first: int, last: int
    ) -> None:
        identity = _identity(schema)
        if identity:
            statement = (
                f"SELECT {', '.join(map(quote, identity))} FROM {full_name(schema)} "  # noqa: S608 - names from the schemas, quoted
                "WHERE _topic = $topic AND _offset >= $first AND _offset < $last"
            )
            self._add(schema, topic, fetch(connection, statement, {"topic": topic, "first": first, "last": last}))

    def _add(self, schema: RecordSchema, topic: str, frame: pl.DataFrame) -> None:
        identity = _identity(schema)
        if identity:
            self._hashes.setdefault((topic, schema.name), _Hashes()).add(_hashed(frame, identity))


def _identity(schema: RecordSchema) -> list[str]:
    """The columns of an identity that is all text; of others nothing is kept, because the log gives them back as other types."""
    columns = empty_frame(schema.name).schema
    names = [*schema.identity, "revision"] if schema.has_revisions else list(schema.identity)
    return names if all(columns[name] == pl.String for name in names) else []


def _hashed(frame: pl.DataFrame, identity: list[str]) -> pl.Series:
    return (frame.select(identity).hash_rows(seed=0) & _BITS).cast(pl.UInt32)
