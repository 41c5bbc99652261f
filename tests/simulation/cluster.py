"""A cluster in memory: its topics, its group of workers, the network in between, and the clients of aiokafka that reach it.

1. A record is durable once it is on its topic. A request that left a process arrives, whether or not the process lives to hear of it.
2. What a producer sends may fail, fail and be there, be there in part, come late, or come again up to three seconds later.
3. The group gives every partition to one member. Who is not heard of for the session timeout is out, and only who has joined again is
   given any. A member hears that the group changes when it says that it is alive.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, RequestTimedOutError
from simulation.disk import JUDGEMENTS, Calls
from simulation.world import START, World

from streams.judging.judged_stages import SCORING, STATE
from streams.kafka.partitions import SESSION_SECONDS
from streams.kafka.states import DECODE, StoredState
from streams.kafka.topics import TEXT_KEYS, TOPICS, state_topic

PARTITIONS = 2
"""Of topics that are keyed by session; the others have one."""
LONG = 0.05
"""The share of requests that take long."""
REJOIN_SECONDS = 60.0
"""Seconds that members have to join again."""
LATE = 3.0
"""Seconds after which a request arrives at the latest: less than a worker leaves for it that may have lost its partitions."""


class SimulatedRecord(NamedTuple):
    """A record of a partition; a `streams.kafka.reading.RawRecord`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class _Request:
    """Messages of a producer that go to the cluster together, and who waits to hear of each."""

    messages: list[tuple[TopicPartition, bytes | None, bytes | None]] = field(default_factory=list)
    futures: list[asyncio.Future[Any]] = field(default_factory=list)


@dataclass(eq=False)
class _Fetch:
    """A question for records from these positions on, and who waits for the answer."""

    positions: Mapping[TopicPartition, int]
    most: int | None
    reply: Callable[[Any], None]


class Cluster:
    """See the module. `at` has the world call something at a time."""

    def __init__(self, world: World, at: Callable[[float, Callable[[], None]], None], sources: Collection[str]) -> None:
        self.world = world
        self.at = at
        self.partitions = {
            TopicPartition(name, number): list[SimulatedRecord | None]()
            for name, spec in TOPICS.items()
            if name != TEXT_KEYS  # nobody encrypts
            for number in range(PARTITIONS if spec.is_keyed else 1)
        }
        """The records by offset; None where none is any more, or never was: a mark of a transaction."""
        self.calls = Calls()
        """What is durable of calls to the judge."""
        self.group = Group(self, [place for place in self.partitions if place.topic in sources])
        self._chance = random.Random(f"network {world.history.seed}")
        self._fetches: list[_Fetch] = []
        """Those that wait for records."""

    def append(self, place: TopicPartition, key: bytes | None, value: bytes | None) -> SimulatedRecord:
        """Put a record on a partition."""
        now = START + timedelta(seconds=self.world.now())
        record = SimulatedRecord(len(self.partitions[place]), int(now.timestamp() * 1000), key, value)
        self.partitions[place].append(record)
        self.world.note(f"{place.topic}/{place.partition} {record.offset}: {len(value or b'')} bytes")
        if place.topic == JUDGEMENTS and value:
            self.calls.add([value])
        for fetch in [fetch for fetch in self._fetches if place in fetch.positions]:
            self._answer(fetch)
        return record

    def size(self) -> int:
        """The number of records that there are."""
        return sum(map(len, self.partitions.values()))

    def spent(self) -> dict[str, int]:
        """What each session has spent by its state: the one that is farthest counts."""
        states: dict[str, StoredState] = {}
        for place, records in self.partitions.items():
            for record in filter(None, records if place.topic == state_topic(SCORING.name) else ()):
                key, state = (record.key or b"").decode().split("/")[1], DECODE(record.value or b"")
                if key not in states or state.next_offset >= states[key].next_offset:
                    states[key] = state
        return {key: STATE.decode(state.state).spent for key, state in states.items()}

    def compact(self) -> None:
        """Leave the last record of each key on the topics of states."""
        for place, records in self.partitions.items():
            if TOPICS[place.topic].role == "state":
                last = {record.key: record for record in records if record is not None}
                records[:] = [record if record is not None and last[record.key] is record else None for record in records]

    def mark(self) -> None:
        """Put a mark on every partition, as a transaction does at its end."""
        for records in self.partitions.values():
            records.append(None)

    def draw_delay(self) -> float:
        """Seconds on the network: a few milliseconds mostly."""
        return self._chance.random() * (1.0 if self._chance.random() < LONG else 0.005)

    async def call(self, work: Callable[[], Any]) -> Any:
        """Have the cluster do something, and return what it answers; KafkaError where no answer comes."""
        fault = self.world.pass_point("call")
        answer = self.begin(lambda reply: reply(work()), is_lost=fault is not None and fault.what == "lost")
        if fault is None:
            return await answer
        await asyncio.sleep(self.draw_delay())
        raise RequestTimedOutError

    def begin(self, work: Callable[[Callable[[Any], None]], None], *, is_lost: bool = False) -> asyncio.Future[Any]:
        """Send a request to the cluster, whose work calls back with its answer."""
        self.world.reach()
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def hear(value: Any) -> None:
            if not loop.is_closed() and not answer.done():
                answer.set_result(value)

        if not is_lost:
            reply = lambda value: self.at(self.world.now() + self.draw_delay(), lambda: hear(value))  # noqa: E731
            self.at(self.world.now() + self.draw_delay(), lambda: work(reply))
        return answer

    def fetch(self, positions: Mapping[TopicPartition, int], most: int | None, seconds: float) -> asyncio.Future[Any]:
        """Ask for records; the answer comes once there are any, or after so many seconds."""

        def work(reply: Callable[[Any], None]) -> None:
            fetch = _Fetch(positions, most, reply)
            self._fetches.append(fetch)
            if any(start < len(self.partitions[place]) for place, start in positions.items()):
                self._answer(fetch)
            else:
                self.at(self.world.now() + seconds, lambda: self._answer(fetch))

        return self.begin(work)

    def _answer(self, fetch: _Fetch) -> None:
        if fetch in self._fetches:
            self._fetches.remove(fetch)
            found = {place: self.partitions[place][start:] for place, start in fetch.positions.items()}
            fetch.reply({place: records[: fetch.most] for place, records in found.items() if records})

    def send(self, request: _Request) -> None:
        """Take what a producer sends, as far as nothing goes wrong."""
        fault = self.world.pass_point("send")
        what = "" if fault is None else fault.what
        if what == "killed before":
            self.world.kill()
        written = len(request.messages)
        if what == "fails":
            written = 0
        if what == "partly written":
            written //= 2

        def work(reply: Callable[[Any], None]) -> None:
            reply(
                [(place.partition, self.append(place, key, value).offset) for place, key, value in request.messages[:written]]
            )

        def hear(answer: asyncio.Future[list[tuple[int, int]]]) -> None:
            places = [] if what == "fails, yet written" else answer.result()
            for index, future in enumerate(request.futures):
                if future.done():
                    continue
                if index < len(places):
                    future.set_result(SimpleNamespace(partition=places[index][0], offset=places[index][1]))
                else:
                    future.set_exception(KafkaError("the leader went away"))

        if what == "slow":
            self.at(self.world.now() + self._chance.uniform(0.5, LATE), self._sender(work, hear))
        else:
            self.begin(work).add_done_callback(hear)
        if what == "written twice":
            self.at(self.world.now() + self._chance.uniform(0.0, LATE), lambda: work(lambda _: None))
        if what == "killed after":
            self.world.kill()

    def _sender(
        self, work: Callable[[Callable[[Any], None]], None], hear: Callable[[asyncio.Future[Any]], None]
    ) -> Callable[[], None]:
        """What sends a request later, and has its producer hear of it."""
        answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(hear)

        def reply(value: Any) -> None:
            if not answer.get_loop().is_closed() and not answer.done():
                answer.set_result(value)

        return lambda: work(reply)


class Group:
    """The group of workers, as its coordinator keeps it."""

    def __init__(self, cluster: Cluster, places: Sequence[TopicPartition]) -> None:
        self.places = places
        self.committed = dict.fromkeys(places, 0)
        self.generation = 0
        self._cluster = cluster
        self._chance = random.Random(f"group {cluster.world.history.seed}")
        self._deadlines: dict[str, float] = {}
        """By member, when it is out unless it is heard of before."""
        self._joining: dict[str, Callable[[Any], None]] = {}
        self._is_changing = False

    def is_read(self) -> bool:
        """Whether everything is committed that there is to read."""
        return not any(any(self._cluster.partitions[place][self.committed[place] :]) for place in self.places)

    def join(self, member: str, reply: Callable[[Any], None]) -> None:
        """A member joins, for the first time or again; the answer is the generation and its partitions."""
        self._deadlines[member] = float("inf")
        self._joining[member] = reply
        self.change()
        self._complete()

    def leave(self, member: str) -> None:
        """A member leaves."""
        self._deadlines.pop(member, None)
        self._joining.pop(member, None)
        self.change()
        self._complete()

    def beat(self, member: str, generation: int) -> str:
        """A member says that it is alive; the answer: whether it has to join again."""
        if member not in self._deadlines or generation != self.generation:
            return "out"
        self._expect(member)
        return "changing" if self._is_changing else "in"

    def commit(self, member: str, generation: int, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit offsets of a member."""
        if member not in self._deadlines or generation != self.generation:
            return False
        self.committed |= offsets
        return True

    def change(self) -> None:
        """Have every member join again."""
        if self._is_changing or not self._deadlines:
            return
        self._is_changing, generation = True, self.generation
        self._cluster.world.note("the group changes")
        self._cluster.at(self._cluster.world.now() + REJOIN_SECONDS, lambda: self._give_up_waiting(generation))

    def _give_up_waiting(self, generation: int) -> None:
        if self._is_changing and self.generation == generation:
            for member in self._deadlines.keys() - self._joining.keys():
                del self._deadlines[member]
            self._complete()

    def _complete(self) -> None:
        """Deal the partitions out once every member has joined."""
        if not self._is_changing or self._deadlines.keys() != self._joining.keys():
            return
        self._is_changing, self.generation = False, self.generation + 1
        members = sorted(self._joining)
        self._chance.shuffle(members)
        for number, member in enumerate(members):
            dealt = self.places[number :: len(members)]
            self._cluster.world.note(f"{member} has {', '.join(f'{topic}/{partition}' for topic, partition in dealt)}")
            self._expect(member)
            self._joining[member]((self.generation, dealt))
        self._joining = {}

    def _expect(self, member: str) -> None:
        """Expect a sign of life within the session timeout."""
        is_watched = self._deadlines.get(member, float("inf")) < float("inf")
        self._deadlines[member] = self._cluster.world.now() + SESSION_SECONDS
        if not is_watched:
            self._watch(member)

    def _watch(self, member: str) -> None:
        deadline = self._deadlines.get(member, float("inf"))
        if deadline == float("inf"):
            return
        if deadline <= self._cluster.world.now():
            self._cluster.world.note(f"{member} is out of the group")
            self.leave(member)
        else:
            self._cluster.at(deadline, lambda: self._watch(member))


class SimulatedConsumer:
    """Takes the place of aiokafka's consumer, outside of any group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._positions: dict[TopicPartition, int] = {}
        self._client = SimpleNamespace(add_topic=lambda _: None)

    async def start(self) -> None:
        """Connect."""
        await self._cluster.call(lambda: None)

    async def stop(self) -> None:
        """Nothing to let go of."""

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """Read these partitions."""
        self._positions = dict.fromkeys(places, 0)

    def seek(self, place: TopicPartition, position: int) -> None:
        """Go on there."""
        self._positions[place] = position

    async def position(self, place: TopicPartition) -> int:
        """The next position."""
        return self._positions[place]

    async def topics(self) -> set[str]:
        """The topics that there are."""
        return {place.topic for place in self._cluster.partitions}

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The partitions of a topic."""
        return {place.partition for place in self._cluster.partitions if place.topic == topic}

    async def beginning_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions begin."""
        return dict.fromkeys(places, 0)

    async def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions end."""
        partitions = self._cluster.partitions
        ends: dict[TopicPartition, int] = await self._cluster.call(lambda: {place: len(partitions[place]) for place in places})
        return ends

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        """The first record of each partition since a time."""

        def work() -> dict[TopicPartition, Any]:
            return {
                place: next(
                    (record for record in self._cluster.partitions[place] if record and record.timestamp >= since), None
                )
                for place, since in times.items()
            }

        found: dict[TopicPartition, Any] = await self._cluster.call(work)
        return found

    async def getmany(
        self, *places: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[SimulatedRecord]]:
        """Records that have come, or come in time."""
        positions = {place: start for place, start in self._positions.items() if not places or place in places}
        found: dict[TopicPartition, list[SimulatedRecord | None]]
        found = await self._cluster.fetch(positions, max_records, timeout_ms / 1000)
        fetched = {place: records for place, records in found.items() if self._positions.get(place) == positions[place]}
        for place, records in fetched.items():
            self._positions[place] += len(records)
        return {place: there for place, records in fetched.items() if (there := [record for record in records if record])}


class SimulatedProducer:
    """Takes the place of aiokafka's producer: what is sent at one moment goes to the cluster together."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._request = _Request()
        self._open: list[asyncio.Future[Any]] = []
        self.client = SimpleNamespace(close=self.stop)
        self._message_accumulator = SimpleNamespace(_batches={}, _pending_batches=[], fail_all=self._fail_all)

    async def start(self) -> None:
        """Connect."""
        await self._cluster.call(lambda: None)

    async def stop(self) -> None:
        """Nothing to let go of."""

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic."""
        return {place.partition for place in self._cluster.partitions if place.topic == topic}

    async def send(self, topic: str, value: bytes | None, key: bytes | None, partition: int) -> asyncio.Future[Any]:
        """Send; the future has the place."""
        loop = asyncio.get_running_loop()
        if not self._request.futures:
            loop.call_soon(self._flush)
        future = loop.create_future()
        self._open = [*(one for one in self._open if not one.done()), future]
        self._request.messages.append((TopicPartition(topic, partition), key, value))
        self._request.futures.append(future)
        return future

    def _flush(self) -> None:
        request, self._request = self._request, _Request()
        self._cluster.world.reach()
        self._cluster.send(request)

    def _fail_all(self, error: Exception) -> None:
        for future in self._open:
            if not future.done():
                future.set_exception(error)


def partitions_on(cluster: Cluster, names: Collection[str]) -> list[tuple[str, int]]:
    """As `streams.kafka.administration.partitions_on`."""
    return [(topic, number) for topic, number in cluster.partitions if topic in names]
