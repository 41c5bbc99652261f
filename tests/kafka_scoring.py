"""Scoring on Kafka for tests: processes that score partitions, are killed and hand over, and what must hold of the topics then."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import builders as build
from aiokafka import AIOKafkaConsumer, TopicPartition
from engines import NOW, Clock, runner_over
from invariants import encoded

from analytics.store import Store
from audit.fingerprints import canonical_json
from audit.policy import Policy
from audit.prices import nano_of
from audit.questions import Question
from audit.redaction import Redactor
from schemas.codec import decode, encode
from schemas.records import DeadLetter, Exchange, Judgement, Record, Reservation, Score, ScoringTask
from service.simulator.scoring import simulated_answer
from streams.docket import STATE
from streams.judges.protocol import Judge, Purse, Verdict
from streams.kafka.connection import KafkaConnection
from streams.kafka.processing import Chunk
from streams.kafka.producing import Message, RecordProducer
from streams.kafka.scoring import ScoringProcessor
from streams.kafka.state import StateTopic
from streams.kafka.watchdog import Pulse
from streams.steps.intake import IntakeStep

TOPICS = ("scoring-tasks", "judgements", "scores", "scoring-state", "dead-letters")
TASKS = "scoring-tasks"
PARTITIONS = 2
PATIENCE = 20.0


async def came(condition: Callable[[], bool], what: str) -> None:
    """Return as soon as the condition holds; fails, saying what was waited for, when it does not come to hold."""
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends_at, f"waited {PATIENCE:g} s for {what}"
        await asyncio.sleep(0.002)


def answer(question: Question) -> str:
    """What the simulated judge says, without a server."""
    return canonical_json(simulated_answer(question.schema, {one.name: one.literal for one in question.materials}))


def tasks_of(policy: Policy, exchanges: Sequence[Exchange]) -> list[ScoringTask]:
    """The tasks that intake makes of exchanges."""
    outcome = IntakeStep(policy)(build.batch("exchanges", exchanges), {})
    return [record for _, record in outcome.records if isinstance(record, ScoringTask)]


def dialogue(session: str, turns: int) -> list[Exchange]:
    """Exchanges of a session; each says which it is, so that a judge can be watched."""
    return [
        build.exchange(session, turn, f"It is done, number {session}:{turn}, today.", turn_number=turn)
        for turn in range(1, turns + 1)
    ]


def subject_of(question: Question) -> str:
    """The exchange that a question is about."""
    found = re.search(r"number (\w+:\d+), today", " ".join(one.literal for one in question.materials))
    assert found is not None
    return found[1]


class WatchedJudge:
    """Notes which exchanges it is asked about, in order, and asks another judge; about those of some sessions it says nothing, ever."""

    def __init__(self, inner: Judge, *silent_about: str) -> None:
        self.inner = inner
        self.silent_about = silent_about
        self.subjects: list[str] = []
        self.hanging: list[str] = []
        """The exchanges about which calls hang: money is set aside for each."""

    async def ask(self, question: Question, purse: Purse) -> Verdict:
        """Note and pass on."""
        subject = subject_of(question)
        self.subjects.append(subject)
        if subject.split(":")[0] in self.silent_about:
            assert await purse.reserve()
            self.hanging.append(subject)
            await asyncio.Event().wait()
        return await self.inner.ask(question, purse)

    async def aclose(self) -> None:
        """Nothing to give back."""


class Mortal:
    """A producer whose process is killed at its n-th call: before that reaches the broker, or before it hears that it did."""

    def __init__(self, producer: RecordProducer, dies_at: int | None = None, *, having_sent: bool = False) -> None:
        self._producer = producer
        self._left = dies_at
        self._having_sent = having_sent
        self.dead = asyncio.Event()
        self.sends = 0

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> object:
        """Produce, as long as it lives."""
        self.sends += 1
        if self._left is not None:
            self._left -= 1
        if self._left == 0 and self._having_sent and not self.dead.is_set():
            await self._producer.send(topic, messages, partition=partition)
        if self._left is not None and self._left <= 0:
            self.dead.set()
        if self.dead.is_set():
            await asyncio.Event().wait()
        return await self._producer.send(topic, messages, partition=partition)


class Process:
    """A process that scores: it is handed chunks from where `Committed` stands, as a transport would."""

    def __init__(self, rig: Rig, judge: Judge | None, producer: Mortal, options: dict[str, Any]) -> None:
        self.states = StateTopic(rig.kafka, "scoring", producer)
        self.processor = ScoringProcessor(
            rig.kafka,
            rig.policy,
            judge,
            redactor=Redactor(rig.policy.redaction),
            now=rig.clock,
            producer=producer,
            states=self.states,
            **{"pulse": Pulse(1e9), "is_sure": lambda: True, "fail": rig.failures.append} | options,
        )
        self.mortal = producer
        self._rig = rig
        self._lanes: dict[int, asyncio.Task[None]] = {}
        self.chunks_done: Counter[int] = Counter()
        """By partition, how many chunks are done."""

    async def work(self, *partitions: int, size: int = 3) -> None:
        """Take up partitions where the group stands, in chunks of so many records."""
        await self.processor.assigned(frozenset(partitions))
        for partition in partitions:
            self._lanes[partition] = asyncio.create_task(self._lane(partition, size))

    async def take_again(self, partition: int) -> None:
        """Hand the partition's records over once more."""
        await self.processor.take(Chunk(TASKS, partition, self._rig.records[partition]), lambda: None)

    async def _lane(self, partition: int, size: int) -> None:
        start = self._rig.committed[partition]
        records = [one for one in self._rig.records[partition] if one.offset >= start]
        finished: dict[int, bool] = {}
        for first in range(0, len(records), size):
            chunk = Chunk(TASKS, partition, records[first : first + size])
            finished[chunk.next_offset] = False
            await self.processor.take(chunk, self._done(partition, chunk, finished))

    def _done(self, partition: int, chunk: Chunk, finished: dict[int, bool]) -> Callable[[], None]:
        def done() -> None:
            assert not finished[chunk.next_offset], "done twice"
            finished[chunk.next_offset] = True
            self.chunks_done[partition] += 1
            for offset, is_finished in finished.items():
                if not is_finished:
                    break
                self._rig.committed[partition] = max(self._rig.committed[partition], offset)

        return done

    async def drained(self) -> None:
        """Return when everything is taken and done; what comes out of the processor is raised."""
        await asyncio.gather(*self._lanes.values())
        await came(self._rig.is_done, "every task to be done")

    async def revoke(self, *partitions: int) -> None:
        """Give partitions away."""
        await self.processor.revoked(frozenset(partitions))
        await self._cancel([self._lanes.pop(partition) for partition in partitions])

    async def kill(self) -> None:
        """End as after kill -9: nothing is finished, nothing more gets out."""
        self.mortal.dead.set()
        partitions = self.processor._partitions.values()
        running = [task for one in partitions for task in (*one._queues._runners.values(), *one._lease._under_way)]
        await self._cancel([*self._lanes.values(), *running])
        self.states.close()

    async def stop(self, grace: float = 10.0) -> None:
        """End in good order."""
        await self.processor.stop(grace)
        await self._cancel(list(self._lanes.values()))
        self.states.close()

    async def _cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        tasks = list(tasks)
        for task in tasks:
            task.cancel()
        for came_of in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(came_of, Exception):
                self._rig.failures.append(came_of)


class Rig:
    """Topics with tasks, the offsets that are committed, and the processes that come and go."""

    def __init__(self, kafka: KafkaConnection, policy: Policy, producer: RecordProducer) -> None:
        self.kafka = kafka
        self.policy = policy
        self.producer = producer
        self.clock = Clock(NOW)
        self.records: dict[int, list[Any]] = {}
        self.committed: dict[int, int] = defaultdict(int)
        self.failures: list[BaseException] = []

    async def publish(self, tasks: Sequence[ScoringTask]) -> None:
        """Put tasks on their topic."""
        messages = [(f"{one.connection}/{one.session_id}".encode(), encode(one)) for one in tasks]
        await self.produce(TASKS, messages)

    async def produce(self, topic: str, messages: Sequence[Message]) -> None:
        """Put messages on a topic."""
        await self.producer.send(topic, messages)
        self.records = await self.read(TASKS)

    def process(self, judge: Judge | None, producer: Mortal | None = None, **options: Any) -> Process:
        """A new process."""
        return Process(self, judge, producer or Mortal(self.producer), options)

    def is_done(self) -> bool:
        """Whether every task is committed."""
        return all(self.committed[number] > records[-1].offset for number, records in self.records.items())

    async def read(self, topic: str) -> dict[int, list[Any]]:
        """Everything on a topic, by partition; those without records are left out."""
        consumer = AIOKafkaConsumer(**self.kafka.for_aiokafka(), enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        try:
            name = self.kafka.topic(topic)
            places = [TopicPartition(name, number) for number in range(PARTITIONS)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            found: dict[int, list[Any]] = defaultdict(list)
            for place in places:
                while await consumer.position(place) < ends[place]:
                    found[place.partition] += (await consumer.getmany(place, timeout_ms=500)).get(place, [])
            return {number: records for number, records in found.items() if records}
        finally:
            await consumer.stop()

    async def decoded(self, topic: str) -> list[Record]:
        """The records on a topic."""
        return [decode(one.value) for records in (await self.read(topic)).values() for one in records]

    async def scores(self) -> list[Score]:
        """The scores, each revision once; that repetitions are equal is checked."""
        found: dict[tuple[str, str, int], Score] = {}
        for score in await self.decoded("scores"):
            assert isinstance(score, Score)
            assert score == found.setdefault((score.connection, score.exchange_id, score.revision), score)
        return list(found.values())

    async def calls(self) -> tuple[list[Judgement], list[Reservation]]:
        """Judgements and reservations, each once, the first of those with one id."""
        judgements: dict[str, Judgement] = {}
        reservations: dict[str, Reservation] = {}
        for record in await self.decoded("judgements"):
            if isinstance(record, Judgement):
                judgements.setdefault(record.judgement_id, record)
            elif isinstance(record, Reservation):
                reservations.setdefault(record.reservation_id, record)
        return list(judgements.values()), list(reservations.values())

    async def letters(self) -> list[DeadLetter]:
        """The dead letters."""
        return [one for one in await self.decoded("dead-letters") if isinstance(one, DeadLetter)]

    async def check(self, exchanges: Sequence[Exchange]) -> None:
        """What must hold once everything is done, whatever happened on the way."""
        assert [] == self.failures
        scores, (judgements, reservations) = await self.scores(), await self.calls()
        assert sorted(one.exchange_id for one in exchanges) == sorted(one.exchange_id for one in scores)
        spent: Counter[str] = Counter()
        for one in judgements:
            spent[f"{one.connection}/{one.session_id}"] += nano_of(one.cost_usd or 0)
        cap = self.policy.for_project("ops").cap
        assert cap is None or all(cost <= cap for cost in spent.values()), "beyond the cap"
        assert sum(spent.values()) == sum(nano_of(one.cost_usd) for one in scores)
        settled = [name for one in judgements for name in one.reservation_ids]
        assert sorted(one.reservation_id for one in reservations) == sorted(settled), "not settled once each"
        answered = Counter(one.fingerprint for one in judgements if one.outcome == "answered")
        assert set() == {name for name, count in answered.items() if count > 1}, "answered and asked again"
        assert {key: cost for key, cost in spent.items() if cost} == await self._spent_in_states()
        assert self._embedded(exchanges, judgements) == sorted(map(encode, scores))

    async def _spent_in_states(self) -> dict[str, int]:
        states = StateTopic(self.kafka, "scoring", self.producer)
        found: dict[str, int] = {}
        for partition, records in self.records.items():
            await states.load(partition)
            keys = {record.key.decode() for record in records}
            found |= {key: STATE.decode(one.state).spent for key, one in states.get(partition, keys).items()}
        states.close()
        return {key: cost for key, cost in found.items() if cost}

    def _embedded(self, exchanges: Sequence[Exchange], judgements: Sequence[Judgement]) -> list[bytes]:
        """The scores that the embedded runner makes of the same exchanges from the same judgements."""
        with Store(None) as store:
            with store.transaction() as transaction:
                transaction.append("exchanges", [encode(one) for one in exchanges])
                transaction.append("judgements", [encode(one) for one in judgements])
            runner_over(store, self.policy).run()
            return encoded(store, "scores")


@asynccontextmanager
async def scoring_on(kafka: KafkaConnection, policy: Policy) -> AsyncIterator[Rig]:
    """A rig over topics that are there."""
    producer = RecordProducer(kafka)
    await producer.start()
    try:
        yield Rig(kafka, policy, producer)
    finally:
        await producer.stop()
