"""New records: tells of records from outside whether they are certainly new, without asking the tables.

A record is certainly new when neither the tables nor the log can have its identity, it comes once in its group, and its session is not
erased. For all others the tables are asked, which takes a transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import duckdb

from analytics.deletion.erased import ERASURES
from analytics.identity.duplicate_matching import may_have_twin
from analytics.identity.identity_index import KnownIdentities, identity_of
from analytics.store.store import Store
from schemas.codec.arrow import empty_frame
from schemas.lazy.polars import pl
from schemas.records import AgentEvent, Record
from schemas.registry import schema_of
from streams.upkeep.erased_now import ErasedNow

Outside = Mapping[str, Sequence[Record]]
"""Records from outside by topic."""


class NewRecords:
    """See the module. Belongs to the thread that commits; `seen` follows the tables."""

    def __init__(self, store: Store, seen: KnownIdentities) -> None:
        self._store = store
        self._seen = seen
        self._erased = ErasedNow(store)
        self._unlanded: set[tuple[str, str, Any]] = set()
        """Topic, type and identity of what is in the log alone."""

    def are_new(self, cursor: duckdb.DuckDBPyConnection, outside: Outside) -> bool:
        """Tell whether all of the records are certainly new; `cursor` reads the identities that others have written to the tables."""
        return all(
            self._are_new(cursor, topic, name, of_type)
            for topic, records in outside.items()
            for name, of_type in _by_type(records).items()
        )

    def note(self, outside: Outside) -> None:
        """Note what has become durable in the log."""
        for topic, records in outside.items():
            for name, of_type in _by_type(records).items():
                self._unlanded.update((topic, name, one) for one in _identities(name, of_type))

    def landed(self) -> None:
        """Note that everything has landed: the tables tell of it."""
        self._unlanded.clear()

    def _are_new(self, cursor: duckdb.DuckDBPyConnection, topic: str, name: str, records: Sequence[Record]) -> bool:
        identities = _identities(name, records)
        if len(set(identities)) < len(identities) or any((topic, name, one) in self._unlanded for one in identities):
            return False
        if self._store.end_of(ERASURES) and any(map(self._may_be_erased, records)):
            return False
        self._seen.read(cursor, topic, self._store.end_of(topic))
        schema = schema_of(name)
        return not self._seen.has_any(schema, topic) or self._seen.is_new(schema, topic, _frame(name, identities))

    def _may_be_erased(self, record: Record) -> bool:
        """Whether the record's session is erased; what belongs to no session, the tables tell."""
        connection, session = getattr(record, "connection", None), getattr(record, "session_id", None)
        return connection is None or session is None or self._erased.has(connection, session)


def are_certainly_new(seen: KnownIdentities, topic: str, records: Sequence[Record]) -> bool:
    """Tell, without asking the tables, whether `seen` knows none of the records, and none repeats another or can have a twin."""
    for name, of_type in _by_type(records).items():
        identities = _identities(name, of_type)
        if len(set(identities)) < len(identities) or any(
            isinstance(one, AgentEvent) and may_have_twin(one.payload) for one in of_type
        ):
            return False
        if not seen.is_new(schema_of(name), topic, _frame(name, identities)):
            return False
    return True


def _by_type(records: Iterable[Record]) -> Mapping[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[type(record).__name__].append(record)
    return found


@cache
def _columns(name: str) -> tuple[str, ...]:
    return tuple(identity_of(schema_of(name)))


@cache
def _types(name: str) -> dict[str, pl.DataType]:
    types = empty_frame(name).schema
    return {column: types[column] for column in _columns(name)}


def _identities(name: str, records: Sequence[Record]) -> list[Any]:
    """The identity of each record: a value where its type has one column, else a tuple."""
    return list(map(attrgetter(*_columns(name)), records))


def _frame(name: str, identities: Sequence[Any]) -> pl.DataFrame:
    types = _types(name)
    columns = [identities] if len(types) == 1 else list(zip(*identities, strict=True))
    return pl.DataFrame(dict(zip(types, columns, strict=True)), schema=types)
