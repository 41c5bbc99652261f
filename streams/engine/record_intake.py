"""Record intake: records of senders are taken in, durable on return, and audited: in this process, or by workers on Kafka.

What a sender is told, which sessions are ended and what is asked for again is the same for both. They differ in where records become
durable, and in when the tables show them.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import decode
from schemas.errors import DriftlineError, RecordError
from schemas.records import Exchange, Record
from streams.engine.engine_state import EngineLimits, EngineState, Published
from streams.judging.judge_calls import JudgeCalls
from streams.judging.rejudging import AT_ONCE, judging_requests, not_audited, unscored
from streams.log.admission import Accepted, encoded_each
from streams.log.ingest_outcome import Taken, one_of, outcomes, placed
from streams.log.log_writer import Committed
from streams.upkeep.closing import EXPLICIT, closings, idle_closings

log = logging.getLogger(__name__)


class RecordIntake(ABC):
    """See the module. BusyError or BrokerError: nothing was promised, send it again. Belongs to one event loop.

    `judge_name` says in words who judges.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        judge_name: str,
        limits: EngineLimits | None = None,
    ) -> None:
        self.store = store
        self.policy = policy
        self.redactor = redactor
        self.now = now
        self.judge_name = judge_name
        self.broken = asyncio.Event()
        """Set when it cannot go on without a new process."""
        self._limits = limits or EngineLimits()
        self._calls = JudgeCalls()

    @property
    @abstractmethod
    def has_judge(self) -> bool:
        """Whether anybody can be asked to judge."""

    @abstractmethod
    async def start(self) -> None:
        """Take up what was left, then work in the background."""

    @abstractmethod
    async def stop(self, grace: float = 20.0) -> None:
        """Finish what was begun, for `grace` seconds at most. Called again while it stops, with less grace, it hurries."""

    @abstractmethod
    async def landed(self, topic: str) -> None:
        """Return when the store shows everything that the topic has at this moment; BusyError when that takes too long."""

    @abstractmethod
    async def land_taken(self) -> None:
        """Let the store show what this process has taken in and keeps in a log of its own; on Kafka there is none."""

    @abstractmethod
    def failure(self) -> DriftlineError:
        """Why it is broken, and what to do about it."""

    async def take_exchange(self, exchange: Exchange) -> Taken:
        """Take an exchange in; RecordError when it may not be written."""
        return one_of(await self.take_exchanges([exchange]))

    async def take_exchanges(self, exchanges: Sequence[Exchange]) -> list[Taken | RecordError]:
        """Take exchanges in together, durable on return: what became of each, or why it may not be written."""
        encoded = await encoded_each(exchanges)
        sound = [
            (exchange, message) for exchange, message in zip(exchanges, encoded, strict=True) if isinstance(message, bytes)
        ]
        committed = await self._taken("exchanges", [one for one, _ in sound], [message for _, message in sound])
        return await outcomes(exchanges, placed(encoded, committed.fates["exchanges"]), committed, self.policy, self.store)

    async def publish(self, topic: str, records: Sequence[Record]) -> Published:
        """Take records from outside in. Known ones are left out, so that sending twice changes nothing; RecordError as above."""
        messages = list[bytes]()
        for message in await encoded_each(records):
            if isinstance(message, RecordError):
                raise message
            messages.append(message)
        return Published.of((await self._taken(topic, records, messages)).fates[topic])

    async def finalize(self, connection: str, session_id: str) -> bool:
        """Record that a session ended, once its last records have landed; False where no record of it is there."""
        await self._settled(connection, session_id)
        values = {"session": session_id, "connection": connection, "as_of": self.now()}
        rows = await asyncio.to_thread(query_rows, self.store.cursor(), "open_topics", values)
        await self._close(closings(rows, EXPLICIT, self.now()))
        return bool(rows)

    async def rejudge(self, project: str | None, reason: str | None, limit: int) -> int:
        """Ask for exchanges that stayed unscored to be judged again; answers how many."""
        await self.land_taken()
        without = not_audited(self.policy)
        rows = await asyncio.to_thread(unscored, self.store, project, reason, limit, without=without)
        written = 0
        for start in range(0, len(rows), AT_ONCE):
            # A score can land before the judgements it rests on, and what is not seen would be paid for again.
            await self.landed("judgements")
            requests = await asyncio.to_thread(judging_requests, self.store, rows[start : start + AT_ONCE], self.now())
            written += (await self.publish("exchanges", requests)).written
        return written

    def events_under_way(self, connection: str, session_id: str) -> Mapping[str, int]:  # noqa: ARG002 - the tables show all, but on Kafka
        """The events of a session that were taken in and that the store does not show yet: id and position."""
        return {}

    def state(self) -> EngineState:
        """How it is at this moment."""
        why_not = self._why_not()
        return EngineState(not why_not, why_not, self._queues(), self._calls.outcomes, self._calls.spent_usd)

    @abstractmethod
    async def _take(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        """Make those of the records durable that are new; the messages are the records, encoded."""

    @abstractmethod
    async def _settled(self, connection: str, session_id: str) -> None:
        """Return when the store shows what was taken in of a session."""

    @abstractmethod
    async def _shows_now(self) -> bool:
        """Tell whether the store shows what was heard up to now, so that idle sessions can be told."""

    @abstractmethod
    def _why_not(self) -> str:
        """Why it takes nothing, in words; nothing when it does."""

    @abstractmethod
    def _queues(self) -> Mapping[str, int]:
        """See `EngineState.queues`."""

    async def _taken(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> Committed:
        return await self._take(topic, records, messages) if records else Committed({topic: ()}, {}, {})

    async def _close(self, ended: Accepted) -> None:
        """Record that sessions ended."""
        for topic, messages in ended.messages.items():
            await self.publish(topic, [decode(message) for message in messages])

    async def _close_idle_sessions(self) -> None:
        """Record the end of sessions of which nothing was heard for longer than the session gap, again and again."""
        while True:
            await asyncio.sleep(self._limits.idle_check)
            try:
                parts = idle_closings(self.store, self.policy, self.now()) if await self._shows_now() else ()
                for part in await asyncio.to_thread(list, parts):
                    await self._close(part)
            except Exception:
                log.exception("sessions that fell idle could not be closed; trying again in %.0f s", self._limits.idle_check)
