"""New records: which of the records from outside the log does not have yet.

1. A record whose identity was never taken in is new. Hashes of all identities in memory tell that, and nothing else is believed from them.
2. Any other record is compared with the tables, once these have everything: it is known, or a conflict, or new after all.
3. Records of an erased session are known: nothing of it is taken again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from analytics.deletion.erased import schemas_of_sessions
from analytics.identity.duplicate_matching import may_have_twin
from analytics.identity.identity_index import Identity, KnownIdentities, identities_of
from analytics.identity.repetitions import unknown
from analytics.store.store import Store
from schemas.codec.arrow import INDEX, decode_own
from schemas.records import AgentEvent, Record
from schemas.registry import schema_of
from streams.log.admission import CONFLICT, KNOWN, WRITTEN
from streams.upkeep.erasing import ErasedNow


class NewRecords:
    """See the module. Belongs to one event loop; `read` is called in a thread meanwhile."""

    def __init__(self, store: Store, seen: Callable[[], KnownIdentities] | None = None) -> None:
        """`seen` returns the hashes where somebody else has them follow the tables."""
        own = KnownIdentities()
        self._store = store
        self._hashes = seen or (lambda: own)
        self._erased = ErasedNow(store)
        self._of_sessions = frozenset(schema.name for schema in schemas_of_sessions())

    def has_read(self, topic: str) -> bool:
        """Tell whether the identities of the topic are in memory."""
        return self._hashes().has_read(topic, self._store.end_of(topic))

    def read(self, topic: str) -> None:
        """Read the identities that the tables have of the topic."""
        with contextlib.closing(self._store.cursor()) as cursor:
            self._hashes().read(cursor, topic, self._store.end_of(topic))

    def outcomes(self, topic: str, records: Sequence[Record]) -> list[str | None]:
        """What becomes of each record, WRITTEN or KNOWN; None if only the tables can tell."""
        hashes = self._hashes()
        # While a thread sorts hashes, the tables are asked: the event loop must not wait for it.
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
        """Ask the tables for the outcomes that are None; `messages` are the records, encoded. Everything they may repeat is in the tables."""
        doubtful = [message for outcome, message in zip(outcomes, messages, strict=True) if outcome is None]
        in_tables = iter(await asyncio.to_thread(self._look_up, topic, doubtful) if doubtful else ())
        return [outcome or next(in_tables) for outcome in outcomes]

    def _look_up(self, topic: str, messages: Sequence[bytes]) -> list[str]:
        """What the tables say of each encoded record: WRITTEN, KNOWN or CONFLICT."""
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
        """Remember the identities of records that were appended to a topic, which ends at `end` now."""
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
