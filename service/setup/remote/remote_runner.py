"""Publishing records of commands into a running server, in the part of an `EmbeddedRunner` and a `StorePublisher`."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from analytics.store.store import Appended, Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import decode, encode, writer_schema
from schemas.records import ImportProgress, Record
from schemas.registry import schema_of
from service.setup.remote.server_link import PublishResult, ServerLink
from streams.engine.engine_state import Published
from streams.log.admission import Accepted, Admission

AT_ONCE = 500
"""Records that are published together: deliveries over HTTP wait at most for these."""


class RemoteRunner:
    """Publishes to a server and waits for its stages. `now` stamps dead letters and nothing else."""

    def __init__(self, link: ServerLink, redactor: Redactor, now: Callable[[], datetime]) -> None:
        self._link = link
        self._redactor = redactor
        self._now = now

    def publish(
        self,
        accepted: Accepted,
        progress: Sequence[ImportProgress] = (),
        *,
        are_own: bool = False,  # noqa: ARG002 - see below
    ) -> dict[str, Appended]:
        """Publish accepted records, durable on return, and note the import's progress then. Return the outcome by topic.

        Known records are left out; one that conflicts with what is known is set aside as a dead letter, as without a server. To the
        server no record is its own, so `are_own` changes nothing.
        """
        done: dict[str, Appended] = {}
        letters = Accepted()
        for topic, messages in accepted.messages.items():
            done[topic] = self._published(topic, messages, letters)
        for topic, messages in letters.messages.items():
            added, before = self._published(topic, messages, Accepted()), done.setdefault(topic, Appended())
            before.known += added.known
            before.written = dict(Counter(before.written) + Counter(added.written))
        if progress:
            self._link.call("note_progress", list(progress))
        return done

    def run(self) -> object:
        """Return when the server's stages have read the present records."""
        return self._link.call("settled")

    def _published(self, topic: str, messages: Sequence[bytes], letters: Accepted) -> Appended:
        done, start = Appended(), 0
        written: Counter[str] = Counter()
        for name, part in _parts(messages):
            result: PublishResult = self._link.call("publish", topic, part)
            written[schema_of(name).table] += result.written
            done.known += result.known
            for place, fields in result.differing.items():
                done.conflicts.append(start + place)
                Admission(self._redactor, self._now()).set_aside_conflict(letters, topic, decode(part[place]), fields)
            start += len(part)
        done.written = dict(written)
        return done


class RemotePublisher:
    """A `Log` at whose other end is a server."""

    def __init__(self, link: ServerLink, store: Store, policy: Policy, now: Callable[[], datetime]) -> None:
        self.store = store
        self.policy = policy
        self._link = link
        self._now = now

    def now(self) -> datetime:
        """The present, UTC."""
        return self._now()

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Publish records, durable on return; known ones are left out."""
        result = await asyncio.to_thread(self._link.call, "publish", topic, [encode(record) for record in records])
        return Published(result.written, result.known, sorted(result.differing))


def _parts(messages: Sequence[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield messages in parts, in order: each of one record type, and no more than are published together."""
    for name, run in itertools.groupby(messages, lambda message: writer_schema(message).name):
        together = list(run)
        for start in range(0, len(together), AT_ONCE):
            yield name, together[start : start + AT_ONCE]
