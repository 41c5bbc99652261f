"""The log over the topics of a cluster: records are produced to their topics, workers run the stages, a sink fills the tables.

1. An append returns when the broker has its records.
2. Records produced here count as known even before the tables have them (`streams.log.admission`).
3. No record is accepted before the tables have everything that was on the topics at the start: until then the log cannot tell which
   records are new.
4. A record whose acknowledgement was lost may be on its topic twice: sink and workers drop repetitions.
5. States and positions of the stage of traces, which runs in this process, are written to the tables once its records are produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from analytics.store.store import Store
from audit.redaction import Redactor
from schemas.errors import BusyError, DriftlineError, StoreError
from schemas.records import Record
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.sink import Sink, SinkLimits, finish
from streams.log.admission import InFlight, NewRecords, names_of
from streams.log.log import Commit, require_kafka
from streams.log.sink import write_states
from streams.topology import ASSEMBLING

PRODUCING_SECONDS = 10.0
"""Seconds that a broker has to acknowledge a record."""
SETTLING_SECONDS = 10.0
"""Seconds to wait for a session's last records to reach the tables."""
MOST_PENDING = 200_000
"""Records that may be in flight to the tables."""
_ORDER = {topic: number for number, topic in enumerate(ASSEMBLING.sinks)}
"""The order in which records are produced, by topic."""


class KafkaLog:
    """See the module; a `streams.log.log.Log`. `reframe` is for the sink."""

    name = "Kafka"
    runs_stages = False

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        now: Callable[[], datetime],
        connection: KafkaConnection,
        *,
        reframe: Reframe | None = None,
        sink_limits: SinkLimits | None = None,
    ) -> None:
        self._store = store
        self._producer = RecordProducer(connection, time_limit=PRODUCING_SECONDS)
        self._sink = Sink(store, connection, redactor, now, reframe=reframe, limits=sink_limits)
        self._sink.landed = self._take_note
        # The sink rebuilds them after a failed transaction.
        self._new = NewRecords(store, lambda: self._sink.writer.seen)
        self._pending = InFlight()
        self._moved = asyncio.Event()
        self.broken = self._sink.broken
        self.flushed: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Connect, and start filling the tables from the topics. BrokerError or SettingsError."""
        await asyncio.to_thread(require_kafka, self._store)
        await asyncio.to_thread(finish, self._store)
        await self._sink.start()
        await self._producer.start()

    async def stop(self) -> None:
        """Wait for the current write to the tables; the rest is written after the next start."""
        await self._producer.stop()
        await self._sink.stop()

    async def outcomes(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """See `Log`."""
        outcomes = [self._pending.outcome(name, record) for name, record in zip(names_of(topic, records), records, strict=True)]
        rest = [index for index, outcome in enumerate(outcomes) if outcome is None]
        for index, outcome in zip(rest, self._new.outcomes(topic, [records[index] for index in rest]), strict=True):
            outcomes[index] = outcome
        return await self._new.look_up(topic, outcomes, messages)

    async def append(self, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """See `Log`. BrokerError: the broker may have some of the records, and all of them may be sent again."""
        for topic, of_topic in sorted(records.items(), key=lambda item: _ORDER.get(item[0], 0)):
            keys = [key_of(record) for record in of_topic]
            produced = await self._producer.send(topic, list(zip(keys, commit.records[topic], strict=True)))
            for record, name, key, (number, offset) in zip(of_topic, names_of(topic, of_topic), keys, produced, strict=True):
                partition = (topic, number)
                # If the broker only reports a duplicate, the record is somewhere before the end.
                at = offset if offset >= 0 else await self._sink.end_of(partition) - 1
                self._pending.add(name, record, key, partition, at)
        if commit.positions:
            await asyncio.to_thread(self._write_states, commit)
        self._release()

    async def flush(self, topic: str | None = None) -> None:
        """See `Log`."""
        await self._until(lambda: not self.waiting(topic), "accepted records are not in the tables yet")

    async def wait_for_tables(self, topic: str) -> None:
        """See `Log`."""
        ends = await self._sink.ends_of(topic)
        await self._until(
            lambda: not self._sink.progress.behind(ends), f"the last records of {topic} are not in the tables yet"
        )

    async def flush_session(self, session: str) -> None:
        """See `Log`."""
        key = session.encode()

        def is_settled() -> bool:
            # Until the tables have caught up after a start, they may lack records of other processes.
            return self._sink.progress.reached.is_set() and not self._pending.has_session(key)

        await self._until(is_settled, "the session's last records are not in the tables yet")

    def is_current(self) -> bool:
        """See `Log`."""
        return self._sink.progress.delay <= PRODUCING_SECONDS + 1.0

    def end_of(self, topic: str) -> int:
        """See `Log`."""
        return self._store.end_of(topic)

    def ends_in_tables(self, topic: str) -> Mapping[int, int]:
        """See `Log`."""
        return {number: position for (name, number), position in self._sink.progress.positions.items() if name == topic}

    def waiting(self, topic: str | None = None) -> int:
        """See `Log`."""
        return len(self._pending) if topic is None else self._pending.on(topic)

    def states(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:  # noqa: ARG002 - workers have them
        """See `Log`."""
        return {}

    def pending_events(self, session: str) -> Mapping[str, int]:
        """See `Log`."""
        return self._pending.events_of(session.encode())

    def backpressure_reason(self) -> str:
        """See `Log`."""
        if not self._sink.progress.reached.is_set():
            return f"records on the topics are flushed first: {self._sink.progress.lag} records are left"
        return "too many records wait for the tables" if len(self._pending) >= MOST_PENDING else ""

    def warning(self) -> str:
        """See `Log`."""
        return "the sink has stopped writing records to the tables" if self.broken.is_set() else self._sink.trouble

    def queues(self, submissions: int) -> Mapping[str, int]:
        """See `Log`."""
        return {"sink": self._sink.progress.lag, "unlanded": len(self._pending), "producing": submissions}

    def failure(self) -> DriftlineError:
        """See `Log`."""
        if isinstance(self._sink.failure, DriftlineError):
            return self._sink.failure
        return StoreError(
            f"{self._store.path}: a bug in Driftline ended the sink",
            hint="The server's log has the traceback. Restart the server.",
        )

    def _write_states(self, commit: Commit) -> None:
        with self._store.transaction() as transaction:
            write_states(transaction, commit.states, commit.positions)

    async def _until(self, is_done: Callable[[], bool], otherwise: str) -> None:
        try:
            async with asyncio.timeout(SETTLING_SECONDS):
                while not is_done():
                    moved = self._moved
                    self._sink.hurry()
                    await moved.wait()
        except TimeoutError as error:
            raise BusyError(otherwise) from error

    def _take_note(self) -> None:
        """Release the records that the sink has written to the tables."""
        self._release()
        self.flushed()

    def _release(self) -> None:
        positions = self._sink.progress.positions
        self._pending.release(lambda partition: positions.get(partition, 0))
        self._moved.set()
        self._moved = asyncio.Event()
