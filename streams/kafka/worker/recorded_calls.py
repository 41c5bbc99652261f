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

import xxhash
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.errors import BrokerError
from schemas.records import Judgement, Record, Reservation
from streams.judging.judged_stages import JudgedStage
from streams.judging.recorded_judgements import Subject
from streams.kafka import clients
from streams.kafka.connection import KafkaConnection
from streams.kafka.segments import read_until
from streams.kafka.state.deduplication import Window
from streams.kafka.state.state_topic import StateTopic
from streams.kafka.values.decoding import decode_chunk
from streams.kafka.worker.processing import RawRecord
from streams.stage_batches import StageBatch

JUDGEMENTS = "judgements"
MARGIN_MS = 5 * 60 * 1000
"""The largest difference between the clocks of two brokers."""
READ_SECONDS = 60.0
"""Seconds that the broker may be silent while calls are read."""
NO_CONTENT = xxhash.xxh3_64_digest(b"")
"""The content of a task in the window of a session: its identity says everything."""


def task_identity(stage: JudgedStage[Any], connection: str, subject_id: str, revision: int) -> bytes:
    """The hash of the identity of a stage's task, as the window of its session keeps it."""
    identity = stage.identity(connection, subject_id, revision)
    return xxhash.xxh3_64_digest("\x1f".join([stage.task_type.__name__, *identity]).encode())


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
    options = connection.for_aiokafka() | {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    calls, consumer = RecordedCalls(stage), AIOKafkaConsumer(**options)
    place = TopicPartition(connection.topic(JUDGEMENTS), partition)
    try:
        await clients.start(consumer)
        await _read(consumer, place, since, calls, states)
    except (KafkaError, TimeoutError) as error:
        words = " ".join(str(error).split()) or f"the broker said nothing for {READ_SECONDS:g} s"
        raise BrokerError(f"topic {place.topic}, partition {partition}: recorded calls cannot be read: {words}") from error
    finally:
        await clients.stop(consumer)
    return calls


async def _read(
    consumer: AIOKafkaConsumer, place: TopicPartition, since: int, calls: RecordedCalls, states: StateTopic
) -> None:
    found = (await consumer.offsets_for_times({place: max(0, since - MARGIN_MS)}))[place]
    if found is None:
        return
    end = (await consumer.end_offsets([place]))[place]
    # Not before: a broker answers a question about offsets only after the fetch before it on the same connection.
    consumer.assign([place])
    consumer.seek(place, found.offset)
    async for records in read_until(consumer, place, end, READ_SECONDS):
        await asyncio.to_thread(_take_in, calls, records, states, place.partition)


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
            if key not in windows or windows[key].content_of(identity) is None:
                yield record
