"""Publishing straight into a store, for commands after which no stage runs: nothing is judged, and waiting work is not touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from analytics.store.store import Store
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Record
from streams.engine.record_intake import Published
from streams.topology import TOPOLOGY


class Publisher(Protocol):
    """Publishes records and reads the tables: an engine, a gateway, or a store alone."""

    @property
    def store(self) -> Store:
        """The store that records are written to and read from."""
        ...

    @property
    def policy(self) -> Policy:
        """The policy for judging."""
        ...

    def now(self) -> datetime:
        """The present, UTC."""
        ...

    async def publish(self, topic: str, records: Sequence[Record]) -> object:
        """Publish records, durable on return; known records are skipped."""
        ...


class StorePublisher:
    """Publishes to topics that no stage reads; a `Publisher`."""

    def __init__(self, store: Store, policy: Policy, now: Callable[[], datetime]) -> None:
        self.store = store
        self.policy = policy
        self._now = now

    def now(self) -> datetime:
        """The present, UTC."""
        return self._now()

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Append records, durable on return; known records are skipped. ValueError for a topic that a stage reads."""
        if any(stage.source == topic for stage in TOPOLOGY):
            raise ValueError(f"a stage reads {topic}, and would have to follow")
        return await asyncio.to_thread(self._append, topic, [encode(record) for record in records])

    def _append(self, topic: str, messages: Sequence[bytes]) -> Published:
        with self.store.transaction() as transaction:
            appended = transaction.append(topic, list(messages), skip_known=True)
        return Published(sum(appended.written.values()), appended.known, list(appended.conflicts))
