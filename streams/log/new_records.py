"""New records: which of the records from outside the log does not have yet.

1. A record whose identity was never stored is new. Hashes of all identities are in memory, and only an unknown hash decides alone.
2. Any other record is compared with the tables once they have everything: it is known, in conflict, or new after all.
3. Records of an erased session count as known, so that none of them is stored again.
4. Over Kafka the tables lack the records in flight; `InFlight` has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from analytics.deletion.deleting import ERASURES, ErasureScope, read_erasures, schemas_of_sessions
from analytics.identity.duplicate_matching import (
    CONTENT_COLUMNS,
    Identity,
    KnownIdentities,
    find_new_rows,
    identities_of,
    may_have_duplicate,
)
from analytics.store.store import Partition, Store
from schemas.codec.arrow import INDEX, decode_own
from schemas.records import AgentEvent, Record
from schemas.registry import schema_of
from streams.log.log import CONFLICT, KNOWN, WRITTEN


class NewRecords:
    """Decides which records are new; see the module. Belongs to one event loop, except that `read` runs in a thread."""

    def __init__(self, store: Store, hashes: Callable[[], KnownIdentities] | None = None) -> None:
        """Keep hashes of its own, unless `hashes` returns those that another object keeps up to date with the tables."""
        own_hashes = KnownIdentities()
        self._store = store
        self._hashes = hashes or (lambda: own_hashes)
        self._erased = ErasedSessions(store)
        self._session_types = frozenset(schema.name for schema in schemas_of_sessions())

    def has_read(self, topic: str) -> bool:
        """Return whether the identities of the topic are in memory."""
        return self._hashes().has_read(topic, self._store.end_of(topic))

    def read(self, topic: str) -> None:
        """Read the topic's identities from the tables."""
        with contextlib.closing(self._store.cursor()) as cursor:
            self._hashes().read(cursor, topic, self._store.end_of(topic))

    def outcomes(self, topic: str, records: Sequence[Record]) -> list[str | None]:
        """Return the outcome of each record, WRITTEN or KNOWN; None if only the tables can tell."""
        hashes = self._hashes()
        # While a thread sorts the hashes, leave every record to the tables: the event loop must not wait for the thread.
        is_busy = hashes.is_busy
        outcomes: list[str | None] = [None] * len(records)
        for name, indexed_identities in _identities_by_type(records).items():
            identities = [identity for _, identity in indexed_identities]
            counts = Counter(identities)
            are_new = [False] * len(identities) if is_busy else hashes.which_are_new(name, topic, identities)
            for (index, identity), is_new in zip(indexed_identities, are_new, strict=True):
                record = records[index]
                if name in self._session_types and self._erased.covers(record.connection, record.session_id):  # type: ignore[attr-defined]
                    outcomes[index] = KNOWN
                elif is_new and counts[identity] == 1 and not _may_have_duplicate(record):
                    outcomes[index] = WRITTEN
        return outcomes

    async def look_up(self, topic: str, outcomes: Sequence[str | None], messages: Sequence[bytes]) -> list[str]:
        """Return the outcomes, with those that are None taken from the tables. Before this call, flush the log.

        `messages` are the encoded records.
        """
        undecided = [message for outcome, message in zip(outcomes, messages, strict=True) if outcome is None]
        if not undecided:
            return [outcome for outcome in outcomes if outcome is not None]
        decided = iter(await asyncio.to_thread(self._look_up_in_tables, topic, undecided))
        return [next(decided) if outcome is None else outcome for outcome in outcomes]

    def _look_up_in_tables(self, topic: str, messages: Sequence[bytes]) -> list[str]:
        """Compare encoded records with the tables; returns the outcome of each."""
        outcomes = [KNOWN] * len(messages)
        with contextlib.closing(self._store.cursor()) as cursor:
            for name, frame in decode_own(messages).frames.items():
                new, conflicts = find_new_rows(
                    cursor, schema_of(name), frame, topic, self._hashes(), recent_matches=self._store.recent_matches
                )
                for index in new[INDEX].to_list():
                    outcomes[index] = WRITTEN
                for index in conflicts:
                    outcomes[index] = CONFLICT
        return outcomes

    def add(self, topic: str, records: Sequence[Record], end: int) -> None:
        """Add the identities of records that were appended to a topic, which now ends at `end`."""
        identities = {name: [identity for _, identity in indexed] for name, indexed in _identities_by_type(records).items()}
        self._hashes().add_identities(topic, identities, end)


def _identities_by_type(records: Sequence[Record]) -> Mapping[str, list[tuple[int, Identity]]]:
    """Return the identity of each record with its index, by record type."""
    indexes: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        indexes[type(record).__name__].append(index)
    return {
        name: list(zip(type_indexes, identities_of(name, [records[index] for index in type_indexes]), strict=True))
        for name, type_indexes in indexes.items()
    }


def _may_have_duplicate(record: Record) -> bool:
    return isinstance(record, AgentEvent) and may_have_duplicate(record.payload)


RecordKey = tuple[str, str, Identity]
"""The key of a record: its topic, its type and its identity."""


def record_keys(topic: str, records: Sequence[Record]) -> list[RecordKey]:
    """Return the keys of records on a topic, in their order."""
    keys = []
    for record in records:
        name = type(record).__name__
        (identity,) = identities_of(name, (record,))
        keys.append((topic, name, identity))
    return keys


class _InFlightRecord(NamedTuple):
    """A record in flight: its session and its content."""

    session: bytes
    content: object
    """Distinguishes a repetition from a conflict."""
    event: tuple[str, int] | None
    """Id and position, if the record is an event."""


class InFlight:
    """The records that are on Kafka but not in the tables yet, by key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._records: dict[RecordKey, _InFlightRecord] = {}
        self._sessions: dict[bytes, set[RecordKey]] = defaultdict(set)
        self._offsets: dict[Partition, list[tuple[int, RecordKey]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, key: RecordKey, record: Record, session: bytes, partition: Partition, offset: int) -> None:
        """Add a record that was produced under the key of its session."""
        event = (record.event_id, record.seq) if isinstance(record, AgentEvent) else None
        self._records[key] = _InFlightRecord(session, _content_of(record), event)
        self._sessions[session].add(key)
        heapq.heappush(self._offsets[partition], (offset, key))

    def outcome(self, key: RecordKey, record: Record) -> str | None:
        """Return KNOWN or CONFLICT for a record whose key is in flight, otherwise None."""
        entry = self._records.get(key)
        if entry is None:
            return None
        return KNOWN if entry.content == _content_of(record) else CONFLICT

    def count(self, topic: str) -> int:
        """Return the number of records in flight on a topic."""
        return sum(len(queue) for (queue_topic, _), queue in self._offsets.items() if queue_topic == topic)

    def has_session(self, session: bytes) -> bool:
        """Return whether a record of the session is in flight."""
        return bool(self._sessions.get(session))

    def events_of(self, session: bytes) -> dict[str, int]:
        """Return the position of each event of a session in flight, by event id."""
        entries = (self._records[key] for key in self._sessions.get(session, ()))
        return dict(entry.event for entry in entries if entry.event is not None)

    def release(self, position: Callable[[Partition], int]) -> None:
        """Drop the records before the positions of their partitions."""
        for partition in list(self._offsets):
            queue = self._offsets[partition]
            end = position(partition)
            while queue and queue[0][0] < end:
                _, key = heapq.heappop(queue)
                self._drop(key)
            if not queue:
                del self._offsets[partition]

    def _drop(self, key: RecordKey) -> None:
        entry = self._records.pop(key, None)
        if entry is None:
            return
        self._sessions[entry.session].discard(key)
        if not self._sessions[entry.session]:
            del self._sessions[entry.session]


def _content_of(record: Record) -> object:
    field = CONTENT_COLUMNS.get(type(record).__name__)
    return None if field is None else getattr(record, field)


class ErasedSessions:
    """The sessions whose erasure was requested, read again when there are more. Belongs to one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._end = 0
        self._erased = ErasureScope.from_pairs([])

    @property
    def is_read(self) -> bool:
        """Whether all requested erasures were read."""
        return self._store.end_of(ERASURES) == self._end

    def covers(self, connection: str, session_id: str) -> bool:
        """Return whether the session is erased."""
        if not self.is_read:
            end = self._store.end_of(ERASURES)
            with contextlib.closing(self._store.cursor()) as cursor:
                self._erased = read_erasures(cursor)
            self._end = end
        return self._erased.covers(connection, session_id)
