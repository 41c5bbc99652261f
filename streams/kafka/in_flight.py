"""Records in flight: produced by this process and not yet landed, so the tables do not know them."""

from __future__ import annotations

import functools
import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from analytics.identity.identity_index import identity_of
from analytics.identity.repetitions import CONTENT
from analytics.store.transaction import Partition
from schemas.records import AgentEvent, Record
from schemas.registry import schema_of
from streams.kafka.keys import key_of
from streams.log.admission import CONFLICT, KNOWN

Identity = tuple[Hashable, ...]


@dataclass(frozen=True)
class _Entry:
    """A record in flight: its session, the content that tells a repetition from a conflict, and an event's id and position."""

    session: bytes
    content: object
    event: tuple[str, int] | None


class InFlight:
    """Records by identity, given up as soon as their position has landed. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Identity, _Entry] = {}
        self._sessions: dict[bytes, set[Identity]] = defaultdict(set)
        self._queues: dict[Partition, list[tuple[int, Identity]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, record: Record, partition: Partition, offset: int) -> None:
        """A record was produced."""
        identity, session = _identity(partition[0], record), key_of(record)
        event = (record.event_id, record.seq) if isinstance(record, AgentEvent) else None
        self._entries[identity] = _Entry(session, _content(record), event)
        self._sessions[session].add(identity)
        heapq.heappush(self._queues[partition], (offset, identity))

    def fate(self, topic: str, record: Record) -> str | None:
        """Return the fate of a record whose identity is here: known or a conflict; None for others."""
        entry = self._entries.get(_identity(topic, record))
        if entry is None:
            return None
        return KNOWN if entry.content == _content(record) else CONFLICT

    def has_session(self, key: bytes) -> bool:
        """Tell whether a record of the session is here."""
        return bool(self._sessions.get(key))

    def events_of(self, key: bytes) -> dict[str, int]:
        """The events of a session that are here: id and position."""
        entries = (self._entries[identity] for identity in self._sessions.get(key, ()))
        return dict(entry.event for entry in entries if entry.event is not None)

    def release(self, position: Callable[[Partition], int]) -> None:
        """Give up what stands before the position of its partition."""
        for partition in list(self._queues):
            queue, landed = self._queues[partition], position(partition)
            while queue and queue[0][0] < landed:
                self._forget(heapq.heappop(queue)[1])
            if not queue:
                del self._queues[partition]

    def _forget(self, identity: Identity) -> None:
        entry = self._entries.pop(identity, None)
        if entry is None:
            return
        self._sessions[entry.session].discard(identity)
        if not self._sessions[entry.session]:
            del self._sessions[entry.session]


@functools.cache
def _columns(name: str) -> list[str]:
    return identity_of(schema_of(name))


def _identity(topic: str, record: Record) -> Identity:
    name = type(record).__name__
    return (topic, name, *(getattr(record, column) for column in _columns(name)))


def _content(record: Record) -> object:
    field = CONTENT.get(type(record).__name__)
    return None if field is None else getattr(record, field)
