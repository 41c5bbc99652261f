"""Records in flight: produced by this process and not yet landed, so the tables do not know them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from analytics.identity.identity_index import Identity, identities_of
from analytics.identity.repetitions import CONTENT
from analytics.store.transaction import Partition
from schemas.records import AgentEvent, Record
from streams.log.admission import CONFLICT, KNOWN

Name = tuple[str, str, Identity]
"""The name of a record: its topic, its type and its identity."""


def names_of(topic: str, records: Sequence[Record]) -> list[Name]:
    """Return the names of records on a topic, in their order."""
    types = [type(record).__name__ for record in records]
    return [(topic, name, identities_of(name, (record,))[0]) for name, record in zip(types, records, strict=True)]


class _Entry(NamedTuple):
    """A record in flight: its session, the content that tells a repetition from a conflict, and an event's id and position."""

    session: bytes
    content: object
    event: tuple[str, int] | None


class InFlight:
    """Records by name, given up as soon as their position has landed. Belongs to one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Name, _Entry] = {}
        self._sessions: dict[bytes, set[Name]] = defaultdict(set)
        self._queues: dict[Partition, list[tuple[int, Name]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: Name, record: Record, session: bytes, partition: Partition, offset: int) -> None:
        """A record was produced under the key of its session."""
        event = (record.event_id, record.seq) if isinstance(record, AgentEvent) else None
        self._entries[name] = _Entry(session, _content(record), event)
        self._sessions[session].add(name)
        heapq.heappush(self._queues[partition], (offset, name))

    def outcome(self, name: Name, record: Record) -> str | None:
        """Return the outcome of a record whose name is here: known or a conflict; None for others."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        return KNOWN if entry.content == _content(record) else CONFLICT

    def on(self, topic: str) -> int:
        """The number of records of a topic that are here."""
        return sum(len(queue) for (name, _), queue in self._queues.items() if name == topic)

    def has_session(self, key: bytes) -> bool:
        """Tell whether a record of the session is here."""
        return bool(self._sessions.get(key))

    def events_of(self, key: bytes) -> dict[str, int]:
        """The events of a session that are here: id and position."""
        entries = (self._entries[name] for name in self._sessions.get(key, ()))
        return dict(entry.event for entry in entries if entry.event is not None)

    def release(self, position: Callable[[Partition], int]) -> None:
        """Give up what stands before the position of its partition."""
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
