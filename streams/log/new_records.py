"""New records: which records from outside the log does not have yet, and which records of this process are still in flight.

1. A record whose identity was never stored is new. Hashes of all identities, in memory, show that; nothing else is concluded from them.
2. Any other record is compared with the tables, once these have everything: it is known, or a conflict, or new after all.
3. Records of an erased session count as known: none of them is stored again.
4. Over Kafka the tables lack the records in flight (`InFlight`).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from analytics.deletion.deleting import schemas_of_sessions
from analytics.identity.duplicate_matching import CONTENT, may_have_twin, unknown
from analytics.identity.identity_index import Identity, KnownIdentities, identities_of
from analytics.store.store import Store
from analytics.store.transaction import Partition
from schemas.codec.arrow import INDEX, decode_own
from schemas.records import AgentEvent, Record
from schemas.registry import schema_of
from streams.log.admission import CONFLICT, KNOWN, WRITTEN
from streams.upkeep.erasing import ErasedNow


class NewRecords:
    """See the module. Belongs to one event loop, except that `read` runs in a thread."""

    def __init__(self, store: Store, seen: Callable[[], KnownIdentities] | None = None) -> None:
        """`seen` returns the hashes if another object keeps them up to date with the tables."""
        own = KnownIdentities()
        self._store = store
        self._hashes = seen or (lambda: own)
        self._erased = ErasedNow(store)
        self._of_sessions = frozenset(schema.name for schema in schemas_of_sessions())

    def has_read(self, topic: str) -> bool:
        """Tell whether the identities of the topic are in memory."""
        return self._hashes().has_read(topic, self._store.end_of(topic))

    def read(self, topic: str) -> None:
        """Read the topic's identities from the tables."""
        with contextlib.closing(self._store.cursor()) as cursor:
            self._hashes().read(cursor, topic, self._store.end_of(topic))

    def outcomes(self, topic: str, records: Sequence[Record]) -> list[str | None]:
        """The outcome of each record, WRITTEN or KNOWN; None if only the tables can tell."""
        hashes = self._hashes()
        # While a thread sorts hashes, leave everything to the tables: the event loop must not wait for the thread.
        is_busy = hashes.is_busy
        outcomes: list[str | None] = [None] * len(records)
        for name, of_type in _identities(records).items():
            identities = [identity for _, identity in of_type]
            counts = Counter(identities)
            is_new = [False] * len(of_type) if is_busy else hashes.which_are_new(name, topic, identities)
            for (index, identity), is_unseen in zip(of_type, is_new, strict=True):
                record = records[index]
                if name in self._of_sessions and self._erased.has(record.connection, record.session_id):  # type: ignore[attr-defined]
                    outcomes[index] = KNOWN
                elif is_unseen and counts[identity] == 1 and not _may_have_twin(record):
                    outcomes[index] = WRITTEN
        return outcomes

    async def look_up(self, topic: str, outcomes: Sequence[str | None], messages: Sequence[bytes]) -> list[str]:
        """Fill in outcomes that are None from the tables, which must have everything; `messages` are the encoded records."""
        doubtful = [message for outcome, message in zip(outcomes, messages, strict=True) if outcome is None]
        in_tables = iter(await asyncio.to_thread(self._look_up, topic, doubtful) if doubtful else ())
        return [outcome or next(in_tables) for outcome in outcomes]

    def _look_up(self, topic: str, messages: Sequence[bytes]) -> list[str]:
        """The outcome of each encoded record by the tables: WRITTEN, KNOWN or CONFLICT."""
        outcomes = [KNOWN] * len(messages)
        with contextlib.closing(self._store.cursor()) as cursor:
            for name, frame in decode_own(messages).frames.items():
                fresh, conflicts = unknown(cursor, schema_of(name), frame, topic, self._hashes(), met=self._store.met)
                for index in fresh[INDEX].to_list():
                    outcomes[index] = WRITTEN
                for index in conflicts:
                    outcomes[index] = CONFLICT
        return outcomes

    def add(self, topic: str, records: Sequence[Record], end: int) -> None:
        """Add the identities of records that were appended to a topic, which now ends at `end`."""
        identities = {name: [identity for _, identity in of_type] for name, of_type in _identities(records).items()}
        self._hashes().note(topic, identities, end)


def _identities(records: Sequence[Record]) -> Mapping[str, list[tuple[int, Identity]]]:
    """The identity of each record with its index, by record type."""
    indexes: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        indexes[type(record).__name__].append(index)
    return {
        name: list(zip(of_type, identities_of(name, [records[index] for index in of_type]), strict=True))
        for name, of_type in indexes.items()
    }


def _may_have_twin(record: Record) -> bool:
    return isinstance(record, AgentEvent) and may_have_twin(record.payload)


Name = tuple[str, str, Identity]
"""The name of a record: its topic, its type and its identity."""


def names_of(topic: str, records: Sequence[Record]) -> list[Name]:
    """Return the names of records on a topic, in their order."""
    types = [type(record).__name__ for record in records]
    return [(topic, name, identities_of(name, (record,))[0]) for name, record in zip(types, records, strict=True)]


class _Entry(NamedTuple):
    """A record in flight: its session, its content, which distinguishes a repetition from a conflict, and an event's id and position."""

    session: bytes
    content: object
    event: tuple[str, int] | None


class InFlight:
    """Records in flight by name, dropped as soon as the tables have them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Name, _Entry] = {}
        self._sessions: dict[bytes, set[Name]] = defaultdict(set)
        self._queues: dict[Partition, list[tuple[int, Name]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: Name, record: Record, session: bytes, partition: Partition, offset: int) -> None:
        """Add a record that was produced under the key of its session."""
        event = (record.event_id, record.seq) if isinstance(record, AgentEvent) else None
        self._entries[name] = _Entry(session, _content(record), event)
        self._sessions[session].add(name)
        heapq.heappush(self._queues[partition], (offset, name))

    def outcome(self, name: Name, record: Record) -> str | None:
        """Return the outcome of a record whose name is in flight: known or a conflict; None for others."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        return KNOWN if entry.content == _content(record) else CONFLICT

    def on(self, topic: str) -> int:
        """The number of records in flight on a topic."""
        return sum(len(queue) for (name, _), queue in self._queues.items() if name == topic)

    def has_session(self, key: bytes) -> bool:
        """Tell whether a record of the session is in flight."""
        return bool(self._sessions.get(key))

    def events_of(self, key: bytes) -> dict[str, int]:
        """The events of a session in flight: id and position."""
        entries = (self._entries[name] for name in self._sessions.get(key, ()))
        return dict(entry.event for entry in entries if entry.event is not None)

    def release(self, position: Callable[[Partition], int]) -> None:
        """Drop the records before the positions of their partitions."""
        for partition in list(self._queues):
            queue, landed = self._queues[partition], position(partition)
            while queue and queue[0][0] < landed:
                self._forget(heapq.heappop(queue)[1])
            if not queue:
                del self._queues[partition]

    def _forget(self, name: Name) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._sessions[entry.session].discard(name)
        if not self._sessions[entry.session]:
            del self._sessions[entry.session]


def _content(record: Record) -> object:
    field = CONTENT.get(type(record).__name__)
    return None if field is None else getattr(record, field)
