"""The log of one installation, as the engine sees it: `LocalLog` beside a DuckDB file, or `KafkaLog` over the topics of a cluster.

Laws of both:

1. When `append` returns, the whole commit is durable. When it raises, the caller may append the same again, and it counts once.
2. Records of a topic (in Kafka: of a partition) keep their order, and no offset is assigned twice.
3. `outcomes` knows everything that was appended here before, and everything that the tables have.
4. `flush` returns when the tables have everything that was appended here before the call.
5. After a kill no appended record is missing, and none is there twice.

`tests/log_laws.py` checks both against these laws. A database belongs to one of the two, never both: either the engine fills it through
the local log, or a sink fills it from Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from analytics.store.positions import read_watermarks
from analytics.store.store import Store
from schemas.errors import DriftlineError, SettingsError
from schemas.records import Record
from schemas.registry import topics


class Commit(msgspec.Struct, array_like=True, frozen=True):
    """An atomic unit of the log: encoded records by topic, and the states and positions of the stages that made them."""

    records: dict[str, list[bytes]] = {}
    offsets: dict[str, int] = {}
    """The offset of the first record of each topic; the others follow without a gap. On Kafka the broker assigns offsets."""
    states: dict[str, dict[str, bytes]] = {}
    """The states that changed, by stage and session key."""
    positions: dict[str, dict[int, int]] = {}
    """The offset that each stage reads next, by partition of its source."""


def move_forward(positions: dict[str, dict[int, int]], moved: Mapping[str, Mapping[int, int]]) -> None:
    """Advance positions of stages to those in `moved` that are higher."""
    for stage, by_partition in moved.items():
        own = positions.setdefault(stage, {})
        for partition, position in by_partition.items():
            own[partition] = max(position, own.get(partition, 0))


class Log(Protocol):
    """See the module. Belongs to one event loop."""

    name: str
    """The name of the log in messages."""
    runs_stages: bool
    """Whether all stages run in this process; else workers run all but that of traces, and their records are not appended here."""
    broken: asyncio.Event
    """Set when only a new process can continue."""
    flushed: Callable[[], None]
    """Called in the event loop whenever the tables have more."""

    async def start(self) -> None:
        """Recover the commits of an earlier process, and start flushing."""
        ...

    async def stop(self) -> None:
        """Flush as much as possible, and close."""
        ...

    async def outcomes(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """Return the outcome of each record from outside: WRITTEN (it is new), KNOWN or CONFLICT. The messages are the encoded records."""
        ...

    async def append(self, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """Make a commit durable; `records` are its records from outside."""
        ...

    async def flush(self, topic: str | None = None) -> None:
        """Return when the tables have what was appended here, if any of it is of the topic (None: any topic)."""
        ...

    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything on the topic, whoever appended it. Raises BusyError if that takes too long."""
        ...

    async def flush_session(self, session: str) -> None:
        """Return when the tables have all records of this session key that were appended here. Raises BusyError as above."""
        ...

    def is_current(self) -> bool:
        """Return whether the tables have everything that was acknowledged to senders, apart from the last moments."""
        ...

    def end_of(self, topic: str) -> int:
        """Return the offset of the topic's next record; on Kafka the end of the topic in the tables."""
        ...

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """Return the offset up to which the tables have a topic, by partition."""
        ...

    def waiting(self, topic: str | None = None) -> int:
        """Return the number of records appended here that the tables do not have, of one topic or of all."""
        ...

    def states(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the newest states of a stage that the tables do not have yet; safe in any thread."""
        ...

    def pending_events(self, session: str) -> Mapping[str, int]:
        """Return the position of each event of this session key that was appended here and is not in the tables, by event id."""
        ...

    def backpressure_reason(self) -> str:
        """Return the reason why no records can be appended at the moment; empty if they can."""
        ...

    def warning(self) -> str:
        """Return any other problem as text; empty if there is none."""
        ...

    def queues(self, submissions: int) -> Mapping[str, int]:
        """Return the queue lengths by name, given the number of submissions that wait for their commit; see `EngineState.queues`."""
        ...

    def failure(self) -> DriftlineError | None:
        """Return the error that broke the log, if the log has its own."""
        ...


SINK = "sink"
"""Consumer whose watermarks are the positions read from Kafka."""


def log_folder(database: Path) -> Path:
    """Return the folder of a database's write-ahead log; it exists while a server uses the database, and after a server was killed."""
    return database.with_name(f"{database.name}.ahead")


def is_fed_by_kafka(store: Store) -> bool:
    """Return whether a sink has ever read topics into the database."""
    with contextlib.closing(store.cursor()) as cursor:
        return bool(read_watermarks(cursor, SINK))


def require_embedded(store: Store) -> None:
    """Raise SettingsError if records come from Kafka: no worker would see records that are written directly."""
    if is_fed_by_kafka(store):
        raise SettingsError(
            f"{store.path} is filled from Kafka",
            hint="Use its server instead: it accepts records, session ends and rejudging requests over HTTP (/docs), and evaluates with "
            "`driftline evaluate --server`. `driftline serve` and `driftline rebuild` open the database with --kafka. Or name another "
            "database with --db.",
        )


def require_kafka(store: Store) -> None:
    """Raise SettingsError if the database has records that did not come from Kafka."""
    if any(store.end_of(topic) for topic in topics()) and not is_fed_by_kafka(store):
        raise SettingsError(
            f"{store.path} holds records that did not come from Kafka",
            hint="Name a new database with --db, or leave out --kafka and DRIFTLINE_KAFKA.",
        )
