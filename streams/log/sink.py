"""Writing commits to the tables: their rows, with the states and positions of the stages, in one transaction.

`StorePublisher` writes records without a log, for commands that publish records which no stage reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Protocol

from analytics.store.positions import WRITE_AHEAD_LOG, read_watermarks
from analytics.store.store import Store, Transaction
from analytics.store.tables import PARTITION
from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.errors import StoreError, first_line
from schemas.lazy import duckdb
from schemas.records import Record
from streams.engine.record_intake import PublishResult
from streams.log.log import Commit, move_forward
from streams.stage_progress import SOURCES
from streams.topology import TOPOLOGY

log = logging.getLogger(__name__)


@cache
def database_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a database that do not depend on the records, such as a full disk."""
    return StoreError, duckdb.OperationalError, duckdb.FatalException


def note_fatal(error: Exception, broken: asyncio.Event) -> None:
    """Set `broken` after a fatal database error: only another process can open the database again."""
    if isinstance(error, duckdb.FatalException) and not broken.is_set():
        log.critical("the database failed and must be reopened: %s", first_line(error))
        broken.set()


def write_commits(store: Store, commits: Sequence[Commit], end: int, *, are_own: bool = True) -> None:
    """Write consecutive commits to the tables; `end` is the number after the last. `are_own` is as in `Transaction.append_at`.

    Commits that the tables already have are skipped by their numbers: a DuckDB commit can fail and still be durable.
    """
    with store.transaction() as transaction:
        first = end - len(commits)
        next_number = transaction.watermark(WRITE_AHEAD_LOG, "")
        commits = commits[max(0, next_number - first) :]
        if not commits:
            return
        records: dict[str, list[bytes]] = defaultdict(list)
        offsets: dict[str, int] = {}
        states: dict[str, dict[str, bytes]] = defaultdict(dict)
        positions: dict[str, dict[int, int]] = {}
        for commit in commits:
            for topic, messages in commit.records.items():
                offsets.setdefault(topic, commit.offsets[topic])
                records[topic] += messages
            for stage, changed in commit.states.items():
                states[stage] |= changed
            move_forward(positions, commit.positions)
        for topic, messages in records.items():
            transaction.append_at(topic, offsets[topic], messages, are_own=are_own)
        write_states(transaction, states, positions)
        transaction.set_watermark(WRITE_AHEAD_LOG, "", end)


def write_states(
    transaction: Transaction, states: Mapping[str, Mapping[str, bytes]], positions: Mapping[str, Mapping[int, int]]
) -> None:
    """Write states and positions of stages to the tables; no position goes back."""
    furthest = {stage: max(by_partition.values(), default=0) for stage, by_partition in positions.items()}
    transaction.set_states_of_stages(states, furthest)
    for stage, by_partition in positions.items():
        stored = transaction.watermarks(stage)
        watermarks: dict[tuple[str, int], int] = {}
        for number, position in by_partition.items():
            partition = (SOURCES[stage], number)
            watermarks[partition] = max(position, stored.get(partition, 0))
        transaction.set_watermarks(stage, watermarks)


def next_commit(cursor: duckdb.DuckDBPyConnection) -> int:
    """Return the number of the commit that the database expects next."""
    return read_watermarks(cursor, WRITE_AHEAD_LOG).get(("", PARTITION), 0)


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
        """Return the current time in UTC."""
        ...

    async def publish(self, topic: str, records: Sequence[Record]) -> object:
        """Publish records, durable on return; known records are skipped."""
        ...


class StorePublisher:
    """A `Publisher` that writes to the store directly, for topics that no stage reads."""

    def __init__(self, store: Store, policy: Policy, now: Callable[[], datetime]) -> None:
        self.store = store
        self.policy = policy
        self._now = now

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return self._now()

    async def publish(self, topic: str, records: Sequence[Record]) -> PublishResult:
        """Append records, durable on return; known records are skipped. Raises ValueError for a topic that a stage reads."""
        if any(stage.source == topic for stage in TOPOLOGY):
            raise ValueError(f"a stage reads {topic}, and none runs after this command: publish through an engine")
        return await asyncio.to_thread(self._append, topic, [encode(record) for record in records])

    def _append(self, topic: str, messages: Sequence[bytes]) -> PublishResult:
        with self.store.transaction() as transaction:
            appended = transaction.append(topic, list(messages), skip_known=True)
        return PublishResult(sum(appended.written.values()), appended.known, list(appended.conflicts))
