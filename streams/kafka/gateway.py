"""The gateway of a server to Kafka: what callers bring is produced to its topic, and lands in the tables by the sink beside it.

1. A call returns when the broker has its records. Workers decide on them; nothing is scored here.
2. Calls that come at the same time are decided on and produced together: a group costs the event loop and the broker little more than
   one call. Of two calls at once with one record the second waits for what becomes of the first.
3. What was produced and has not landed yet is kept in mind, so that a repetition is known at once. A record of which it cannot be told
   whether the broker has it may be on the topic twice: sink and workers drop repetitions.
4. No record is taken before everything has landed that was on the topics at the start: until then it is not known what is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from analytics.identity.duplicate_matching import may_have_twin
from analytics.identity.identity_index import Identity, KnownIdentities
from analytics.identity.repetitions import unknown
from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from schemas.codec.arrow import INDEX, decode_batch
from schemas.errors import BrokerError, BusyError, DriftlineError, StoreError
from schemas.records import AgentEvent, Exchange, Record
from schemas.registry import schema_of
from streams.engine.engine_state import EngineLimits
from streams.engine.record_intake import RecordIntake
from streams.kafka.connection import KafkaConnection
from streams.kafka.decoding import Reframe
from streams.kafka.producing import RecordProducer, key_of
from streams.kafka.rebuilding import finish
from streams.kafka.sink import Sink, SinkLimits
from streams.log.admission import CONFLICT, KNOWN, WRITTEN, Committed
from streams.log.in_flight import InFlight, Name, names_of
from streams.log.ownership import require_kafka
from streams.stage_batches import named_session

PRODUCING_SECONDS = 10.0
"""Seconds that a broker has to take a record."""
SETTLING_SECONDS = 10.0
"""Seconds to wait for a session's last records to land."""
MOST_UNLANDED = 200_000
"""Records that may be on their way to the tables."""
RECENT = 30.0
"""Seconds for which a record that was not taken counts as trouble, unless one is taken before."""
GROUPS = 2
"""Groups of calls that are on their way to the broker at once; calls that come meanwhile make the next group."""
log = logging.getLogger(__name__)


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


class _Record(NamedTuple):
    """A record that was brought: its name, itself, and its encoding."""

    name: Name
    record: Record
    message: bytes


class _Call(NamedTuple):
    """A call that waits for the outcomes of its records."""

    records: Sequence[_Record]
    outcomes: asyncio.Future[list[str]]


class Acceptance:
    """Takes records to their topics. Belongs to one event loop."""

    def __init__(self, store: Store, producer: RecordProducer, sink: Sink, limits: EngineLimits) -> None:
        self._store = store
        self._producer = producer
        self._sink = sink
        self._limits = limits
        self._unlanded = InFlight()
        self._moved = asyncio.Event()
        self._producing = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._refused_at = -RECENT
        self._waiting: dict[str, list[_Call]] = {}
        """Calls that no group has taken up, by topic."""
        self._begins = False
        self._groups = 0
        self._taken_up: set[Name] = set()
        """The records of the groups that are decided on or on their way to the broker."""
        self._tasks: set[asyncio.Task[None]] = set()
        sink.landed = self._landed

    async def take(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """Produce those of the records that are new; what becomes of each: written, known or conflict.

        The messages are the records, encoded. BusyError or BrokerError: it is as if nothing had been brought.
        """
        if why_not := self.no_room():
            raise BusyError(why_not)
        brought = list(map(_Record, names_of(topic, records), records, messages))
        call = _Call(brought, asyncio.get_running_loop().create_future())
        self._producing += 1
        self._quiet.clear()
        try:
            self._waiting.setdefault(topic, []).append(call)
            self._begin_soon()
            return await call.outcomes
        finally:
            self._producing -= 1
            if not self._producing:
                self._quiet.set()

    def _begin_soon(self) -> None:
        """Take up what waits, with what comes before the event loop is back here."""
        if not self._begins and self._groups < GROUPS:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begins = False
        waiting, self._waiting = self._waiting, {}
        for topic, calls in waiting.items():
            group, left = self._free(calls)
            if left:
                self._waiting[topic] = left
            if group:
                self._groups += 1
                task = asyncio.create_task(self._take_together(topic, group))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _free(self, calls: Sequence[_Call]) -> tuple[list[_Call], list[_Call]]:
        """Take up the calls of whose records no other call has taken one up; return them, and those that wait for another's outcome."""
        group, left = list[_Call](), list[_Call]()
        for call in calls:
            names = [one.name for one in call.records]
            if self._taken_up.isdisjoint(names):
                self._taken_up.update(names)
                group.append(call)
            else:
                left.append(call)
        return group, left

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._groups -= 1
        if self._waiting:
            self._begin_soon()

    async def _take_together(self, topic: str, calls: Sequence[_Call]) -> None:
        """Decide on the records of several calls, produce those that are new, and answer the calls."""
        records = [one for call in calls for one in call.records]
        try:
            outcomes = await self._look_up_outcomes(topic, records)
            await self._produce(topic, [one for one, outcome in zip(records, outcomes, strict=True) if outcome == WRITTEN])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the callers'
            for call in calls:
                if not call.outcomes.done():
                    call.outcomes.set_exception(error)
            return
        finally:
            self._taken_up.difference_update(one.name for one in records)
        left = iter(outcomes)
        for call in calls:
            own = list(islice(left, len(call.records)))
            if not call.outcomes.done():
                call.outcomes.set_result(own)

    async def _look_up_outcomes(self, topic: str, records: Sequence[_Record]) -> list[str]:
        """The outcome of each record; a record that another one before it repeats is known, too."""
        outcomes = [self._unlanded.outcome(one.name, one.record) for one in records]
        places = [place for place, outcome in enumerate(outcomes) if outcome is None]
        seen = self._sink.writer.seen
        if not seen.is_busy and _are_certainly_new(seen, topic, [records[place] for place in places]):
            return [outcome or WRITTEN for outcome in outcomes]
        found = await asyncio.to_thread(self._look_up, topic, [records[place].message for place in places])
        known = dict(zip(places, found, strict=True))
        return [outcome or known[place] for place, outcome in enumerate(outcomes)]

    def no_room(self) -> str:
        """Return the reason why no more records can be taken now; an empty text if they can."""
        if not self._sink.progress.reached.is_set():
            return f"what is on the topics lands first: {self._sink.progress.lag} records are left"
        if self._producing >= self._limits.waiting:
            return "too much waits for Kafka"
        return "too much is on its way to the tables" if len(self._unlanded) >= MOST_UNLANDED else ""

    @property
    def trouble(self) -> str:
        """The latest trouble, in words; an empty text if there was none of late."""
        return "Kafka did not take a record" if time.monotonic() - self._refused_at < RECENT else ""

    @property
    def queues(self) -> Mapping[str, int]:
        """Records that have not landed, of all and of those brought here, and calls that wait for the broker."""
        return {"sink": self._sink.progress.lag, "unlanded": len(self._unlanded), "producing": self._producing}

    def events_of(self, session: bytes) -> Mapping[str, int]:
        """The events of a session that were produced and have not landed: id and position."""
        return self._unlanded.events_of(session)

    async def settled(self, session: bytes) -> None:
        """Return when all that came of a session has landed; BusyError when that takes too long."""

        def settled() -> bool:
            # After a start the tables lack what others brought; only later is what they do not have not there.
            return self._sink.progress.reached.is_set() and not self._unlanded.has_session(session)

        await self._until(settled, "the session's last records have not landed yet")

    async def wait_for_tables(self, topic: str) -> None:
        """Return when the tables have everything that a topic has at this moment; BusyError when that takes too long."""
        ends = await self._sink.ends_of(topic)
        await self._until(lambda: not self._sink.progress.behind(ends), f"the last records of {topic} have not landed yet")

    async def _until(self, settled: Callable[[], bool], otherwise: str) -> None:
        try:
            async with asyncio.timeout(SETTLING_SECONDS):
                while not settled():
                    self._sink.hurry()
                    await self._moved.wait()
        except TimeoutError as error:
            raise BusyError(otherwise) from error

    async def finished(self, grace: float) -> None:
        """Return when nothing waits for the broker any more, after `grace` seconds at the latest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._quiet.wait()

    def _look_up(self, topic: str, messages: Sequence[bytes]) -> list[str]:
        """Look up what records are to the tables: new (written), known or a conflict; in a thread."""
        outcomes = [KNOWN] * len(messages)
        with contextlib.closing(self._store.cursor()) as cursor:
            for name, frame in decode_batch(messages).frames.items():
                fresh, conflicts = unknown(cursor, schema_of(name), frame, topic, self._sink.writer.seen, met=self._store.met)
                for place in fresh[INDEX].to_list():
                    outcomes[place] = WRITTEN
                for place in conflicts:
                    outcomes[place] = CONFLICT
        return outcomes

    async def _produce(self, topic: str, records: Sequence[_Record]) -> None:
        if not records:
            return
        keys = [key_of(one.record) for one in records]
        with self._noting_trouble():
            produced = await self._producer.send(topic, [(key, one.message) for key, one in zip(keys, records, strict=True)])
        for one, key, (number, offset) in zip(records, keys, produced, strict=True):
            partition = (topic, number)
            # Where the broker only says that it had the record already, it stands somewhere before the end.
            at = offset if offset >= 0 else await self._sink.end_of(partition) - 1
            self._unlanded.add(one.name, one.record, key, partition, at)
        self._landed()

    @contextlib.contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        try:
            yield
        except BrokerError as error:
            if time.monotonic() - self._refused_at >= RECENT:
                log.warning("Kafka takes no records: %s", error)
            self._refused_at = time.monotonic()
            raise
        self._refused_at = -RECENT

    def _landed(self) -> None:
        positions = self._sink.progress.positions
        self._unlanded.release(lambda partition: positions.get(partition, 0))
        self._moved.set()
        self._moved = asyncio.Event()


def _are_certainly_new(seen: KnownIdentities, topic: str, records: Sequence[_Record]) -> bool:
    """Tell, without asking the tables, whether `seen` knows none of the records, and none repeats another or can have a twin."""
    if len({one.name for one in records}) < len(records):
        return False
    if any(isinstance(one.record, AgentEvent) and may_have_twin(one.record.payload) for one in records):
        return False
    of_types: dict[str, list[Identity]] = defaultdict(list)
    for (_, name, identity), *_ in records:
        of_types[name].append(identity)
    return all(seen.are_new(name, topic, identities) for name, identities in of_types.items())
