"""Taking records to their topics: new ones are produced, and those that a topic or the tables have already are reported.

Calls that come at the same time are decided on and produced together: a group costs the event loop and the broker little more than one
call. What was produced and has not landed yet is kept in mind, so that a repetition is known at once. A record of which it cannot be told
whether the broker has it may be on the topic twice: sink and workers drop repetitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from analytics.identity.duplicate_matching import may_have_twin
from analytics.identity.identity_index import KnownIdentities, identities_of
from analytics.identity.repetitions import unknown
from analytics.store.store import Store
from schemas.codec.arrow import INDEX, decode_batch
from schemas.errors import BrokerError, BusyError
from schemas.records import AgentEvent, Record
from schemas.registry import schema_of
from streams.engine.engine_state import EngineLimits
from streams.kafka.in_flight import InFlight
from streams.kafka.keys import key_of
from streams.kafka.producing import RecordProducer
from streams.kafka.sink.sink import Sink
from streams.log.admission import CONFLICT, KNOWN, WRITTEN

SETTLING_SECONDS = 10.0
"""Seconds to wait for a session's last records to land."""
MOST_UNLANDED = 200_000
"""Records that may be on their way to the tables."""
RECENT = 30.0
"""Seconds for which a record that was not taken counts as trouble, unless one is taken before."""
GROUPS = 2
"""Groups of calls that are on their way to the broker at once; calls that come meanwhile make the next group."""
log = logging.getLogger(__name__)


class _Call(NamedTuple):
    """A call that waits for the fates of its records."""

    records: Sequence[Record]
    messages: Sequence[bytes]
    fates: asyncio.Future[list[str]]


class Acceptance:
    """See the module. Belongs to one event loop."""

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
        self._waiting: dict[str, list[_Call]] = defaultdict(list)
        """Calls that no group has taken up, by topic."""
        self._begins = False
        self._groups = 0
        self._tasks: set[asyncio.Task[None]] = set()
        sink.landed = self._landed

    async def take(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """Produce those of the records that are new; what becomes of each: written, known or conflict.

        The messages are the records, encoded. BusyError or BrokerError: it is as if nothing had been brought.
        """
        if why_not := self.no_room():
            raise BusyError(why_not)
        call = _Call(records, messages, asyncio.get_running_loop().create_future())
        with self._under_way():
            self._waiting[topic].append(call)
            self._begin_soon()
            return await call.fates

    def _begin_soon(self) -> None:
        """Take up what waits, with what comes before the event loop is back here."""
        if not self._begins and self._groups < GROUPS:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begins = False
        waiting, self._waiting = self._waiting, defaultdict(list)
        for topic, calls in waiting.items():
            self._groups += 1
            task = asyncio.create_task(self._take_together(topic, calls))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._groups -= 1
        if self._waiting:
            self._begin_soon()

    async def _take_together(self, topic: str, calls: Sequence[_Call]) -> None:
        """Decide on the records of several calls, produce those that are new, and answer the calls."""
        records = [record for call in calls for record in call.records]
        messages = [message for call in calls for message in call.messages]
        try:
            fates = await self._fates(topic, records, messages)
            fresh = [place for place, fate in enumerate(fates) if fate == WRITTEN]
            if fresh:
                await self._produce(topic, [records[place] for place in fresh], [messages[place] for place in fresh])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the callers'
            for call in calls:
                if not call.fates.done():
                    call.fates.set_exception(error)
            return
        left = iter(fates)
        for call in calls:
            own = list(islice(left, len(call.records)))
            if not call.fates.done():
                call.fates.set_result(own)

    async def _fates(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> list[str]:
        """The fate of each record; a record that another one before it repeats is known, too."""
        fates = [self._unlanded.fate(topic, record) for record in records]
        places = [place for place, fate in enumerate(fates) if fate is None]
        asked = [records[place] for place in places]
        seen = self._sink.writer.seen
        if not seen.is_busy and are_certainly_new(seen, topic, asked):
            return [fate or WRITTEN for fate in fates]
        found = await asyncio.to_thread(self._look_up, topic, [messages[place] for place in places])
        known = dict(zip(places, found, strict=True))
        return [fate or known[place] for place, fate in enumerate(fates)]

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

    async def landed(self, topic: str) -> None:
        """Return when everything has landed that a topic has at this moment; BusyError when that takes too long."""
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
        fates = [KNOWN] * len(messages)
        with contextlib.closing(self._store.cursor()) as cursor:
            for name, frame in decode_batch(messages).frames.items():
                fresh, conflicts = unknown(cursor, schema_of(name), frame, topic, self._sink.writer.seen, met=self._store.met)
                for place in fresh[INDEX].to_list():
                    fates[place] = WRITTEN
                for place in conflicts:
                    fates[place] = CONFLICT
        return fates

    async def _produce(self, topic: str, records: Sequence[Record], messages: Sequence[bytes]) -> None:
        keyed = [(key_of(record), message) for record, message in zip(records, messages, strict=True)]
        with self._noting_trouble():
            produced = await self._producer.send(topic, keyed)
        for record, (number, offset) in zip(records, produced, strict=True):
            partition = (topic, number)
            # Where the broker only says that it had the record already, it stands somewhere before the end.
            at = offset if offset >= 0 else await self._sink.end_of(partition) - 1
            self._unlanded.add(record, partition, at)
        self._landed()

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        self._producing += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._producing -= 1
            if not self._producing:
                self._quiet.set()

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


def are_certainly_new(seen: KnownIdentities, topic: str, records: Sequence[Record]) -> bool:
    """Tell, without asking the tables, whether `seen` knows none of the records, and none repeats another or can have a twin."""
    of_types: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_types[type(record).__name__].append(record)
    return all(_are_new(seen, topic, name, of_type) for name, of_type in of_types.items())


def _are_new(seen: KnownIdentities, topic: str, name: str, records: Sequence[Record]) -> bool:
    identities = identities_of(name, records)
    if len(set(identities)) < len(identities):
        return False
    may_be_twins = any(isinstance(one, AgentEvent) and may_have_twin(one.payload) for one in records)
    return not may_be_twins and seen.are_new(name, topic, identities)
