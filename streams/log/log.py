"""The log of one installation, as the engine sees it: `LocalLog` beside a DuckDB file, or `KafkaLog` over the topics of a cluster.

Laws of both:

1. What `append` was given is durable when it returns, all of it; when it raises, the caller may bring it again, and it counts once.
2. Records of a topic (in Kafka: of a partition) keep their order, and no offset is given twice.
3. `outcomes` knows everything that was appended here before, and everything that the tables have.
4. `flush` returns when the tables have everything that was appended here before it was called.
5. After a kill nothing is missing of what was appended, and nothing is there twice.

`tests/log_laws.py` checks them on either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from schemas.errors import DriftlineError
from schemas.records import Record


class Commit(msgspec.Struct, array_like=True, frozen=True):
    """What becomes durable together: encoded records by topic, and the states and positions of the stages that made them."""

    records: dict[str, list[bytes]] = {}
    offsets: dict[str, int] = {}
    """The offset of the first record of each topic; the others follow without a gap. On Kafka the broker gives offsets."""
    states: dict[str, dict[str, bytes]] = {}
    """The states that changed, by stage and session key."""
    positions: dict[str, dict[int, int]] = {}
    """The offset that each stage reads next, by partition of its source."""


def move_forward(positions: dict[str, dict[int, int]], moved: Mapping[str, Mapping[int, int]]) -> None:
    """Change positions of stages to those of `moved` that are farther."""
    for stage, by_partition in moved.items():
        own = positions.setdefault(stage, {})
        for partition, position in by_partition.items():
            own[partition] = max(position, own.get(partition, 0))


class Log(Protocol):
    """See the module. Belongs to one event loop."""

    name: str
    """What it is called in messages."""
    runs_stages: bool
    """Whether all stages run in this process; else workers run all but that of traces, and what they make is not appended here."""
    broken: asyncio.Event
    """Set when it cannot go on without a new process."""
    flushed: Callable[[], None]
    """Called in the event loop whenever the tables have more."""

    async def start(self) -> None:
        """Take up what an earlier process left, and begin to flush."""
        ...

    async def stop(self) -> None:
        """Flush what can be flushed, and let go."""
        ...

    async def outcomes(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """What becomes of each record from outside: WRITTEN (it is new), KNOWN or CONFLICT. The messages are the records, encoded."""
        ...

    async def append(self, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """Make a commit durable; `records` are those of it that came from outside."""
        ...

    async def flush(self, topic: str | None = None) -> None:
        """Return when the tables have what was appended here, if any of that is of the topic (None: all)."""
        ...

    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything that the topic has, whoever appended it; BusyError when that takes too long."""
        ...

    async def settle(self, session: str) -> None:
        """Return when the tables have everything that was appended here of the session of this key; BusyError as above."""
        ...

    def is_current(self) -> bool:
        """Tell whether the tables have, but for moments, what senders have been told."""
        ...

    def end_of(self, topic: str) -> int:
        """The offset that the next record of the topic gets; on Kafka what the tables have."""
        ...

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """The offset up to which the tables have a topic, by partition."""
        ...

    def waiting(self, topic: str | None = None) -> int:
        """The number of records that were appended here and that the tables do not have, of a topic or of all."""
        ...

    def states(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The newest states of a stage that the tables do not have yet; for any thread."""
        ...

    def events_of(self, session: str) -> Mapping[str, int]:
        """The events of the session of this key that were appended here and that the tables do not have: id and position."""
        ...

    def no_room(self) -> str:
        """Why no more records can be appended at the moment, in words; empty if they can."""
        ...

    def trouble(self) -> str:
        """What else is wrong, in words; empty if nothing is."""
        ...

    def queues(self, submissions: int) -> Mapping[str, int]:
        """What waits, by name, where so many submissions wait for their commit; see `EngineState.queues`."""
        ...

    def failure(self) -> DriftlineError | None:
        """The error that broke it, where it has one of its own."""
        ...
