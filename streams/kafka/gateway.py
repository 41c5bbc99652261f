"""The gateway of a server to Kafka: what callers bring is produced to its topic, and lands in the tables by the sink beside it.

1. A call returns when the broker has its records. Workers decide on them; nothing is scored here.
2. What was produced and has not landed yet is known all the same (`streams.kafka.acceptance`).
3. No record is taken before everything has landed that was on the topics at the start: until then it is not known what is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import decode
from schemas.errors import DriftlineError, RecordError, StoreError
from schemas.records import Exchange, Record
from streams.engine.engine_state import EngineLimits, EngineState, Published
from streams.engine.stripes import Stripes
from streams.judging.rejudging import AT_ONCE, judging_requests, not_audited, unscored
from streams.kafka.acceptance import Acceptance
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.kafka.sink.rebuilding import finish
from streams.kafka.sink.sink import Sink, SinkLimits
from streams.kafka.values.decoding import Reframe
from streams.log.admission import Accepted, admissible, encoded_each
from streams.log.ingest_outcome import Taken, one_of, outcomes, placed
from streams.log.log_writer import Committed
from streams.log.ownership import require_kafka
from streams.stage_batches import named_session
from streams.upkeep.closing import EXPLICIT, closings, idle_closings

PRODUCING_SECONDS = 10.0
"""Seconds that a broker has to take a record."""
_STRIPES = 256
_UNDECIDED = Committed({}, {}, {})
log = logging.getLogger(__name__)


class Gateway:
    """See the module; a `streams.engine.record_intake.RecordIntake`. `reframe` is for the sink. Belongs to one event loop."""

    has_judge = True
    """The workers know whether they have one; what they cannot judge stays unscored with that reason."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        redactor: Redactor,
        now: Callable[[], datetime],
        connection: KafkaConnection,
        *,
        judge_name: str,
        reframe: Reframe | None = None,
        limits: EngineLimits | None = None,
        sink_limits: SinkLimits | None = None,
    ) -> None:
        self.store = store
        self.policy = policy
        self.redactor = redactor
        self.now = now
        self.judge_name = judge_name
        self._limits = limits or EngineLimits()
        self._producer = RecordProducer(connection, time_limit=PRODUCING_SECONDS)
        self._sink = Sink(store, connection, redactor, now, reframe=reframe, limits=sink_limits)
        self._acceptance = Acceptance(store, self._producer, self._sink, self._limits)
        self.broken = self._sink.broken
        self._turns = Stripes(_STRIPES)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect and begin to land what is on the topics; records are taken once that is done. BrokerError or SettingsError."""
        await asyncio.to_thread(require_kafka, self.store)
        await asyncio.to_thread(finish, self.store)
        try:
            await self._sink.start()
            await self._producer.start()
        except BaseException:
            await self.stop(0)
            raise
        self._tasks = [asyncio.create_task(self._close_idle_sessions())]

    async def stop(self, grace: float = 20.0) -> None:
        """Wait for what is being produced, for `grace` seconds at most, and for what is landing; the rest lands after the next start."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._acceptance.finished(grace)
        await self._producer.stop()
        await self._sink.stop()

    async def take_exchange(self, exchange: Exchange) -> Taken:
        """Take an exchange in: with the broker on return, decided on later.

        BusyError or BrokerError when it is not taken; RecordError when the record may not be written.
        """
        return one_of(await self.take_exchanges([exchange]))

    async def take_exchanges(self, exchanges: Sequence[Exchange]) -> list[Taken | RecordError]:
        """Take exchanges in together, with the broker on return: what became of each, or why it may not be written.

        BusyError or BrokerError when they are not taken: sent again, those that the broker has are known.
        """
        encoded = await encoded_each(exchanges)
        fates: dict[int, str] = {}
        for part in _rounds(exchanges, encoded):
            messages = [message for place in part if isinstance(message := encoded[place], bytes)]
            # Of two calls at once with one id the second has to wait for what becomes of the first.
            async with self._turns.held((exchanges[place].connection, exchanges[place].exchange_id) for place in part):
                told = await self._acceptance.take("exchanges", [exchanges[place] for place in part], messages)
            fates |= dict(zip(part, told, strict=True))
        found = placed(encoded, (fates[place] for place in sorted(fates)))
        return await outcomes(exchanges, found, _UNDECIDED, self.policy, self.store)

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Produce records from outside; with the broker on return. Known ones are left out, so that sending twice changes nothing."""
        messages = await asyncio.to_thread(lambda: [admissible(record) for record in records])
        fates = await self._acceptance.take(topic, records, messages) if records else []
        return Published.of(fates)

    async def finalize(self, connection: str, session_id: str) -> bool:
        """Record that a session ended, once its last records have landed; False where no record of it is there."""
        await self._acceptance.settled(named_session(connection, session_id).encode())
        values = {"session": session_id, "connection": connection, "as_of": self.now()}
        rows = await asyncio.to_thread(query_rows, self.store.cursor(), "open_topics", values)
        await self._publish(closings(rows, EXPLICIT, self.now()))
        return bool(rows)

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> int:
        """Ask for exchanges that stayed unscored to be judged again; answers how many."""
        without = not_audited(self.policy)
        rows = await asyncio.to_thread(unscored, self.store, project, reason, limit, without=without)
        written = 0
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            # A score can land before the judgements it rests on, and what is not seen would be paid for again.
            await self.landed("judgements")
            requests = await asyncio.to_thread(judging_requests, self.store, part, self.now())
            written += (await self.publish("exchanges", requests)).written
        return written

    async def landed(self, topic: str) -> None:
        """Return when everything has landed that the topic has at this moment; BusyError when that takes too long."""
        await self._acceptance.landed(topic)

    async def land_taken(self) -> None:
        """Return at once: this process keeps no log of its own."""

    def events_under_way(self, connection: str, session_id: str) -> Mapping[str, int]:
        """The events of a session that were produced and have not landed: id and position."""
        return self._acceptance.events_of(named_session(connection, session_id).encode())

    def state(self) -> EngineState:
        """Return the state of this moment."""
        why_not = self._why_not()
        return EngineState(not why_not, why_not, self._acceptance.queues, {}, 0.0)

    def failure(self) -> DriftlineError:
        """Return the error that broke it, with advice."""
        if isinstance(self._sink.failure, DriftlineError):
            return self._sink.failure
        return StoreError(
            f"{self.store.path}: the sink ended by a fault of Driftline", hint="Its log says which; start it again."
        )

    def _why_not(self) -> str:
        """Return the reason why it takes nothing; an empty text if it does."""
        if self.broken.is_set():
            return "what is on the topics lands no more"
        if not self._tasks:
            return "it is not started"
        return self._sink.trouble or self._acceptance.trouble or self._acceptance.no_room()

    async def _publish(self, accepted: Accepted) -> None:
        for topic, messages in accepted.messages.items():
            await self.publish(topic, [decode(message) for message in messages])

    async def _close_idle_sessions(self) -> None:
        """End sessions of which nothing was heard for longer than the session gap, while the tables show what was heard."""
        while True:
            await asyncio.sleep(self._limits.idle_check)
            if self._sink.progress.delay > max(self._limits.idle_check, 1.0) + PRODUCING_SECONDS:
                continue
            try:
                for part in await asyncio.to_thread(list, idle_closings(self.store, self.policy, self.now())):
                    await self._publish(part)
            except Exception:
                log.exception("sessions that fell idle could not be closed; trying again in %.0f s", self._limits.idle_check)


def _rounds(exchanges: Sequence[Exchange], encoded: Sequence[bytes | RecordError]) -> Iterator[list[int]]:
    """The places of those that may be written, so that no id is twice in a round: what repeats one is looked up after it."""
    left = [place for place, message in enumerate(encoded) if isinstance(message, bytes)]
    while left:
        first = {(exchanges[place].connection, exchanges[place].exchange_id): place for place in reversed(left)}
        taken = set(first.values())
        yield sorted(taken)
        left = [place for place in left if place not in taken]
