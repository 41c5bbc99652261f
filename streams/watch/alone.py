"""A store alone, for checks without a server: what is published is in its tables at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from analytics.store import Store
from audit.policy import Policy
from schemas.codec import encode
from schemas.records import Record


class StoreAlone:
    """See the module; a `streams.watch.watching.Log`. Nobody else may write to the store meanwhile."""

    def __init__(self, store: Store, policy: Policy, now: Callable[[], datetime]) -> None:
        self.store = store
        self.policy = policy
        self.now = now

    async def publish(self, topic: str, records: Sequence[Record]) -> None:
        """Append the records that the topic does not have, in one transaction."""
        with self.store.transaction() as transaction:
            transaction.append(topic, [encode(record) for record in records], skip_known=True)
