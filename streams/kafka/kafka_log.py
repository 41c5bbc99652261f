"""The log over the topics of a cluster: records are produced to their topics, workers run the stages, a sink fills the tables.

1. An append returns when the broker has acknowledged its records.
2. Records that were produced here count as known even before the tables have them (`streams.log.new_records`).
3. No record is accepted before the tables have everything that was on the topics at the start: until then the log cannot tell which
   records are new.
4. A record whose acknowledgement was lost may be on its topic twice. The sink and the workers drop repetitions.
5. The stage `traces` runs in this process. Its states and positions are written to the tables once its records are produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from analytics.deletion.text_keys import ForgetTexts
from analytics.store.store import Store
from audit.redaction import Redactor
from schemas.errors import BusyError, DriftlineError, StoreError
from schemas.records import Record
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe
from streams.kafka.encryption import TextEncryption
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.sink import History, Sink, SinkLimits, SinkWriter, end_rebuild
from streams.log.log import Commit, require_kafka
from streams.log.new_records import InFlight, NewRecords, record_keys
from streams.log.sink import write_states
from streams.topology import ASSEMBLING

PRODUCING_SECONDS = 10.0
"""Seconds that a broker has to acknowledge a record."""
FLUSH_SECONDS = 10.0
"""Seconds to wait for records to reach the tables."""
MAX_IN_FLIGHT = 200_000
"""Records in flight from which on no more are accepted."""
_PRODUCE_ORDER = {topic: number for number, topic in enumerate(ASSEMBLING.sinks)}
"""The order in which records are produced, by topic."""


class KafkaLog:
    """See the module; a `streams.log.log.Log`. `reframe` and `history` are for the sink."""

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
        history: History | None = None,
        sink_limits: SinkLimits | None = None,
    ) -> None:
        self._store = store
        self.encryption = TextEncryption.of(connection, keeps_keys=True)
        self._producer = RecordProducer(connection, time_limit=PRODUCING_SECONDS, encryption=self.encryption)
        self._sink = Sink(
            store,
            connection,
            redactor,
            now,
            reframe=reframe,
            history=history,
            limits=sink_limits,
            encryption=self.encryption,
        )
        self._sink.on_progress = self._handle_progress
        # Ask the writer for the hashes each time: it replaces them after a failed transaction.
        self._new = NewRecords(store, lambda: self._sink.writer.identities)
        self._in_flight = InFlight()
        self._progressed = asyncio.Event()
        self.broken = self._sink.broken
        self.forget_texts: ForgetTexts | None = None if self.encryption is None else self.encryption.forget_in_loop
        self.on_flushed: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Connect, and start filling the tables from the topics. Raises BrokerError or SettingsError."""
        await asyncio.to_thread(require_kafka, self._store)
        await asyncio.to_thread(end_rebuild, self._store)
        if self.encryption is not None:
            await self.encryption.start()
        await self._sink.start()
        await self._producer.start()

    async def stop(self) -> None:
        """Wait for the current write to the tables; the rest is written after the next start."""
        await self._producer.stop()
        await self._sink.stop()
        if self.encryption is not None:
            await self.encryption.stop()

    @property
    def writer(self) -> SinkWriter:
        """The writer of the tables."""
        return self._sink.writer

    async def outcomes(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """See `Log`."""
        keys = record_keys(topic, records)
        outcomes = [self._in_flight.outcome(key, record) for key, record in zip(keys, records, strict=True)]
        undecided = [index for index, outcome in enumerate(outcomes) if outcome is None]
        decided = self._new.outcomes(topic, [records[index] for index in undecided])
        for index, outcome in zip(undecided, decided, strict=True):
            outcomes[index] = outcome
        return await self._new.look_up(topic, outcomes, messages)

    async def append(self, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """See `Log`. After BrokerError the broker may have some of the records, and all of them may be sent again."""
        for topic in sorted(records, key=lambda topic: _PRODUCE_ORDER.get(topic, 0)):
            sessions = [key_of(record) for record in records[topic]]
            keys = record_keys(topic, records[topic])
            produced = await self._producer.send(topic, list(zip(sessions, commit.records[topic], strict=True)))
            for record, key, session, (number, offset) in zip(records[topic], keys, sessions, produced, strict=True):
                partition = (topic, number)
                if offset < 0:
                    # The broker only reported a duplicate, so the record is somewhere before the end.
                    offset = await self._sink.end_of(partition) - 1  # noqa: PLW2901
                self._in_flight.add(key, record, session, partition, offset)
        if commit.positions:
            await asyncio.to_thread(self._write_states, commit)
        self._release_flushed()

    async def flush(self, topic: str | None = None) -> None:
        """See `Log`."""
        await self._wait_until(lambda: not self.waiting(topic), "accepted records are not in the tables yet")

    async def wait_for_tables(self, topic: str) -> None:
        """See `Log`."""
        ends = await self._sink.ends_of(topic)
        await self._wait_until(
            lambda: not self._sink.progress.behind(ends), f"the last records of {topic} are not in the tables yet"
        )

    async def flush_session(self, session: str) -> None:
        """See `Log`."""
        key = session.encode()

        def is_settled() -> bool:
            # Until the sink has caught up after a start, the tables may lack records of other processes.
            return self._sink.progress.reached.is_set() and not self._in_flight.has_session(key)

        await self._wait_until(is_settled, "the session's last records are not in the tables yet")

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
        return len(self._in_flight) if topic is None else self._in_flight.count(topic)

    def states(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:  # noqa: ARG002 - workers have them
        """See `Log`."""
        return {}

    def pending_events(self, session: str) -> Mapping[str, int]:
        """See `Log`."""
        return self._in_flight.events_of(session.encode())

    def erased(self) -> Mapping[str, int]:
        """See `Log`."""
        return {} if self.encryption is None else self.encryption.erased

    def backpressure_reason(self) -> str:
        """See `Log`."""
        if not self._sink.progress.reached.is_set():
            return f"the tables are catching up with the topics: {self._sink.progress.lag} records are left"
        return "too many records wait for the tables" if len(self._in_flight) >= MAX_IN_FLIGHT else ""

    def warning(self) -> str:
        """See `Log`."""
        return "the sink has stopped writing records to the tables" if self.broken.is_set() else self._sink.problem

    def queues(self, submissions: int) -> Mapping[str, int]:
        """See `Log`."""
        return {"sink": self._sink.progress.lag, "unlanded": len(self._in_flight), "producing": submissions}

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

    async def _wait_until(self, is_done: Callable[[], bool], timeout_message: str) -> None:
        """Wait until a condition about the tables holds. Raises BusyError with the message if that takes too long."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while not is_done():
                    progressed = self._progressed
                    self._sink.hurry()
                    await progressed.wait()
        except TimeoutError as error:
            raise BusyError(timeout_message) from error

    def _handle_progress(self) -> None:
        """Handle progress of the sink: release the records that it has written, and wake waiting callers."""
        self._release_flushed()
        self.on_flushed()

    def _release_flushed(self) -> None:
        positions = self._sink.progress.positions
        self._in_flight.release(lambda partition: positions.get(partition, 0))
        self._progressed.set()
        self._progressed = asyncio.Event()
