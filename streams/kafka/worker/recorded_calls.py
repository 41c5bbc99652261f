"""Recorded judge calls, read back from `judgements` when a partition of tasks is taken up.

1. Nothing that a task does not carry is recorded of it before it is on its topic. So reading begins when the first task that is not committed came, a margin
   earlier: the clocks of two brokers may differ.
2. Tasks that their session's state knows are done, and what was recorded of them is in what came of them: it is left out.
3. A reservation that no judgement settles belongs to a call whose process is gone. Calls of other stages on the same topic are not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.records import Judgement, Record, Reservation
from streams.judging.judged_stages import JudgedStage
from streams.judging.recorded_judgements import Subject
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import decode_chunk
from streams.kafka.deduplication import Window, hashes_of
from streams.kafka.reading import PartitionReader, RawRecord
from streams.kafka.states import StateTopic
from streams.stage_batches import StageBatch

JUDGEMENTS = "judgements"
MARGIN_MS = 5 * 60 * 1000
"""The largest difference between the clocks of two brokers."""
(NO_CONTENT,) = hashes_of([b""])
"""The content of a task in the window of a session: its identity says everything."""


def task_identity(stage: JudgedStage[Any], connection: str, subject_id: str, revision: int) -> int:
    """The hash of the identity of a stage's task, as the window of its session keeps it."""
    identity = stage.identity(connection, subject_id, revision)
    (hashed,) = hashes_of(["\x1f".join([stage.task_type.__name__, *identity]).encode()])
    return hashed


@dataclass
class RecordedCalls:
    """Judgements of a stage by subject, and reservations; a record that came before counts once."""

    stage: JudgedStage[Any]
    _judgements: dict[Subject, dict[str, Judgement]] = field(default_factory=dict)
    _reservations: dict[str, Reservation] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Take in a record of the topic."""
        if isinstance(record, Reservation):
            self._reservations.setdefault(record.reservation_id, record)
        elif isinstance(record, Judgement):
            about = self._judgements.setdefault((record.connection, record.subject_id), {})
            about.setdefault(record.judgement_id, record)
            self._settled.update(record.reservation_ids)

    def of(self, task: Record) -> Sequence[Judgement]:
        """The judgements of a task's subject, in the order they were recorded."""
        return list(self._judgements.get(self.stage.subject_of(task), {}).values())

    def of_all(self, subjects: Iterable[Subject]) -> dict[Subject, list[Judgement]]:
        """The judgements of those of the subjects that have any."""
        return {one: list(self._judgements[one].values()) for one in subjects if one in self._judgements}

    def unsettled(self) -> list[Reservation]:
        """The reservations that no judgement settles, oldest first."""
        found = (one for name, one in self._reservations.items() if name not in self._settled)
        return sorted(found, key=lambda one: (one.reserved_at, one.reservation_id))


async def read_calls(
    stage: JudgedStage[Any], connection: KafkaConnection, states: StateTopic, partition: int, since: int
) -> RecordedCalls:
    """Read the calls recorded of a stage's tasks that are not done, in the partition of that number.

    `since` is when the first of them came, in milliseconds since 1970; the partition's states are loaded. BrokerError when the topic
    cannot be read.
    """
    calls, place = RecordedCalls(stage), (JUDGEMENTS, partition)
    async with PartitionReader(connection) as reader:
        end = (await reader.ranges([place]))[place].end
        start = (await reader.offsets_at(max(0, since - MARGIN_MS), [place]))[place]
        if start is not None:
            async for records, _ in reader.read_until(place, start, end):
                await asyncio.to_thread(_take_in, calls, records, states, partition)
    return calls


def _take_in(calls: RecordedCalls, records: Sequence[RawRecord], states: StateTopic, partition: int) -> None:
    """Add what is about tasks that are not done. What cannot be decoded is none of ours, and a dead letter elsewhere."""
    batch = StageBatch.of(JUDGEMENTS, decode_chunk(JUDGEMENTS, records).frames)
    stored = states.get(partition, batch.keys())
    windows = {key: Window.of(state.identities) for key, state in stored.items()}
    for record in _open(calls.stage, batch, windows):
        calls.add(record)


def _open(stage: JudgedStage[Any], batch: StageBatch, windows: Mapping[str, Window]) -> Iterator[Judgement | Reservation]:
    for _, key, record in batch.records():
        if isinstance(record, Judgement | Reservation) and record.purpose in stage.purposes:
            identity = task_identity(stage, record.connection, record.subject_id, record.subject_revision)
            if key not in windows or identity not in windows[key].contents:
                yield record
