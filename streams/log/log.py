"""The log of an installation, as the engine sees it: `LocalLog` beside a DuckDB file, or `KafkaLog` over the topics of a cluster.

Both kinds keep these laws:

1. When `append` returns, the whole commit is durable. When it raises, the caller may append the same commit again, and it counts once.
2. Records of a topic (on Kafka, of a partition) keep their order, and no offset is assigned twice.
3. `outcomes` takes into account every record that this log has appended and every record in the tables.
4. `flush` returns when the tables have every record that was appended before the call.
5. After a kill, every appended record is there exactly once.

`tests/support/log_laws.py` checks both kinds. A database belongs to one of them: the engine fills it through the local log, or a sink
fills it from Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from analytics.deletion.text_keys import ForgetTexts
from analytics.store.positions import read_watermarks
from analytics.store.store import Store
from schemas.errors import DriftlineError, SettingsError
from schemas.records import Record, Score, ScoringTask
from schemas.registry import topics

if TYPE_CHECKING:
    from streams.judging.judged_stages import Subject


class Commit(msgspec.Struct, array_like=True, frozen=True):
    """An entry of the log: encoded records by topic, with the states and positions of the stages that made them."""

    records: dict[str, list[bytes]] = {}
    offsets: dict[str, int] = {}
    """The offset of the first record of each topic; the others follow without a gap. On Kafka the broker assigns offsets."""
    states: dict[str, dict[str, bytes]] = {}
    """The changed states, by stage and session key."""
    positions: dict[str, dict[int, int]] = {}
    """The offset that each stage reads next, by partition of its source."""


def move_forward(positions: dict[str, dict[int, int]], advanced: Mapping[str, Mapping[int, int]]) -> None:
    """Raise the positions of stages, by partition, to those in `advanced`; no position goes back."""
    for stage, advanced_partitions in advanced.items():
        partitions = positions.setdefault(stage, {})
        for partition, position in advanced_partitions.items():
            partitions[partition] = max(position, partitions.get(partition, 0))


WRITTEN = "written"
KNOWN = "known"
CONFLICT = "conflict"


@dataclass(frozen=True)
class Submission:
    """Records to commit together: from a sender, or from a stage with its states and positions."""

    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Records from outside, by topic. Known ones are skipped when the submission is committed."""
    messages: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """The encodings of `records`."""
    commit: Commit = field(default_factory=Commit)
    """A stage's records, states and positions. Offsets are assigned when the submission is committed."""


@dataclass(frozen=True)
class CommitResult:
    """The result of a submission."""

    outcomes: Mapping[str, Sequence[str]]
    """The outcome of each record from outside, by topic: WRITTEN, KNOWN (the log has it) or CONFLICT (the log has other content)."""
    decisions: Mapping[Subject, ScoringTask | Score]
    """Intake's decisions on the exchanges of the whole group: a task if the exchange is judged, otherwise its score."""
    spent: Mapping[str, int]
    """Nano-USD that the tasks' sessions have spent, by session key; a session without calls is missing."""


class Log(Protocol):
    """See the module. Belongs to one event loop."""

    name: str
    """The name of the log in messages."""
    runs_stages: bool
    """Whether all stages run in this process. Otherwise workers run every stage but `traces` and produce their own records."""
    broken: asyncio.Event
    """Set when only a new process can continue."""
    on_flushed: Callable[[], None]
    """Called in the event loop whenever the tables have more records."""
    forget_texts: ForgetTexts | None
    """Called in any other thread before records are erased; None if the log needs no call, because it does not keep records."""

    async def start(self) -> None:
        """Recover the commits of an earlier process, and start flushing."""
        ...

    async def stop(self) -> None:
        """Flush as much as possible, and close."""
        ...

    async def outcomes(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """Return the outcome of each record from outside: WRITTEN if it is new, KNOWN or CONFLICT. `messages` are the encoded records."""
        ...

    async def append(self, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """Make a commit durable; `records` are its records from outside."""
        ...

    async def flush(self, topic: str | None = None) -> None:
        """Flush all pending commits to the tables. With a `topic`, do so only if one of its records is pending."""
        ...

    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything on the topic, from any writer. Raises BusyError if that takes too long."""
        ...

    async def flush_session(self, session: str) -> None:
        """Return when the tables have all records of a session, given by its key, that this log appended. Raises BusyError as above."""
        ...

    def is_current(self) -> bool:
        """Return whether the tables have everything that was acknowledged to senders. On Kafka the last moments may be missing."""
        ...

    def end_of(self, topic: str) -> int:
        """Return the offset of the topic's next record; on Kafka, the end of the topic in the tables."""
        ...

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """Return the offset up to which the tables have a topic, by partition."""
        ...

    def waiting(self, topic: str | None = None) -> int:
        """Return the number of pending records of a topic, or of all topics."""
        ...

    def states(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the newest states of a stage that the tables do not have yet; safe in any thread."""
        ...

    def pending_events(self, session: str) -> Mapping[str, int]:
        """Return the position of each pending event of a session, given by its key, by event id."""
        ...

    def backpressure_reason(self) -> str:
        """Return the reason why no records can be appended at the moment; empty if they can."""
        ...

    def warning(self) -> str:
        """Return a description of any other problem; empty if there is none."""
        ...

    def queues(self, submissions: int) -> Mapping[str, int]:
        """Return the queue lengths by name, given the number of submissions that wait for their commit; see `EngineState.queues`."""
        ...

    def erased(self) -> Mapping[str, int]:
        """Return the numbers of records of erased sessions that were read from topics and skipped, since the start, by topic."""
        ...

    def failure(self) -> DriftlineError | None:
        """Return the error that broke the log, if the log has an error of its own."""
        ...


SINK = "sink"
"""Consumer whose watermarks are the positions read from Kafka."""


def log_folder(database: Path) -> Path:
    """Return the folder of a database's write-ahead log. It exists while a server runs, and after a server was killed."""
    return database.with_name(f"{database.name}.ahead")


def is_fed_by_kafka(store: Store) -> bool:
    """Return whether a sink has ever read topics into the database."""
    with contextlib.closing(store.cursor()) as cursor:
        return bool(read_watermarks(cursor, SINK))


def require_embedded(store: Store) -> None:
    """Raise SettingsError if a sink fills the database from Kafka: no worker would see records that are written directly."""
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
            f"{store.path} has records that did not come from Kafka",
            hint="Name a new database with --db, or leave out --kafka and DRIFTLINE_KAFKA.",
        )
