"""The gateway of a server to Kafka: what callers bring is produced to its topic, and lands in the tables by the sink beside it.

1. A call returns when the broker has its records. Workers decide on them; nothing is scored here.
2. What was produced and has not landed yet is known all the same (`streams.kafka.acceptance`).
3. No record is taken before everything has landed that was on the topics at the start: until then it is not known what is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.errors import DriftlineError, StoreError
from schemas.records import Exchange, Record
from streams.engine.engine_state import EngineLimits
from streams.engine.record_intake import RecordIntake
from streams.kafka.acceptance import Acceptance
from streams.kafka.connection import KafkaConnection
from streams.kafka.producing import RecordProducer
from streams.kafka.sink.rebuilding import finish
from streams.kafka.sink.sink import Sink, SinkLimits
from streams.kafka.values.decoding import Reframe
from streams.log.admission import Committed
from streams.log.ownership import require_kafka
from streams.stage_batches import named_session

PRODUCING_SECONDS = 10.0
"""Seconds that a broker has to take a record."""


class Gateway(RecordIntake):
    """See the module; a `streams.engine.record_intake.RecordIntake`. `reframe` is for the sink. Belongs to one event loop."""

    has_judge = True
    """The workers know whether they have one; what they cannot judge stays unscored with that reason."""
    taken_at_once = 2_000
    """Workers decide on them, and a chunk of theirs costs nearly as much with a hundred records as with five hundred."""

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
        super().__init__(store, policy, redactor, now, judge_name=judge_name, limits=limits)
        self._producer = RecordProducer(connection, time_limit=PRODUCING_SECONDS)
        self._sink = Sink(store, connection, redactor, now, reframe=reframe, limits=sink_limits)
        self._acceptance = Acceptance(store, self._producer, self._sink, self._limits)
        self.broken = self._sink.broken
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

    async def _take(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        outcomes: dict[int, str] = {}
        for part in _rounds(records):
            told = await self._acceptance.take(topic, [records[place] for place in part], [messages[place] for place in part])
            outcomes |= dict(zip(part, told, strict=True))
        return Committed({topic: [outcomes[place] for place in sorted(outcomes)]}, {}, {})

    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything that the topic has at this moment; BusyError when that takes too long."""
        await self._acceptance.wait_for_tables(topic)

    async def flush(self, topic: str | None = None) -> None:
        """Return at once: this process keeps no log of its own."""

    def events_under_way(self, connection: str, session_id: str) -> Mapping[str, int]:
        """The events of a session that were produced and have not landed: id and position."""
        return self._acceptance.events_of(named_session(connection, session_id).encode())

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

    async def _settled(self, connection: str, session_id: str) -> None:
        await self._acceptance.settled(named_session(connection, session_id).encode())

    async def _shows_now(self) -> bool:
        return self._sink.progress.delay <= max(self._limits.idle_check, 1.0) + PRODUCING_SECONDS

    def _queues(self) -> Mapping[str, int]:
        return self._acceptance.queues


def _rounds(records: Sequence[Record]) -> list[Sequence[int]]:
    """Return the places of some, so that no exchange is twice in a round: what repeats one is looked up after it."""
    exchanges = [one for one in records if isinstance(one, Exchange)]
    ids = [(one.connection, one.exchange_id) for one in exchanges]
    if len(exchanges) < len(records) or len(set(ids)) == len(ids):
        return [range(len(records))]
    rounds, left = list[Sequence[int]](), list(range(len(ids)))
    while left:
        taken = set({ids[place]: place for place in reversed(left)}.values())
        rounds.append(sorted(taken))
        left = [place for place in left if place not in taken]
    return rounds
