"""Judged stages on Kafka for tests: processes that judge partitions, are killed and hand over; scoring tasks and their scores."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from support import builders as build
from support.clocks import NOW, TickingClock
from support.engines import runner_over
from support.invariants import encoded

from analytics.store.store import Store
from audit.cost import Usage, nano_of
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.policy import Policy
from audit.redaction import Redactor
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import decode, encode
from schemas.records import DeadLetter, Exchange, Judgement, Record, Reservation, Score, ScoringTask
from streams.judges.protocol import CallBudget, Judge, Verdict
from streams.judging.judged_stages import SCORING, STATE, JudgedStage, JudgedState
from streams.judging.judging_partition import JudgeCalls
from streams.kafka.connection import KafkaConnection
from streams.kafka.partitions import KafkaStage, PartitionWork
from streams.kafka.producing import Message, RecordProducer, key_of
from streams.kafka.reading import Chunk
from streams.kafka.stages import JudgedPartition, KafkaJudgingContext
from streams.kafka.states import StateTopic
from streams.kafka.topics import SPENDING, state_topic
from streams.steps.intake import IntakeStep

PARTITIONS = 2
PATIENCE = 300.0


async def came(condition: Callable[[], bool], description: str) -> None:
    """Return as soon as the condition holds; if it never does, fail with the description of the condition."""
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends_at, f"waited {PATIENCE:g} s for {description}"
        await asyncio.sleep(0.002)


def topics_of(stage: JudgedStage[Any]) -> tuple[str, ...]:
    """Return the topics that a judged stage needs."""
    return stage.source, "judgements", SPENDING, stage.sink, state_topic(stage.name), "dead-letters"


class SoundJudge:
    """Answers every question at once, at a low price."""

    def __init__(self, answer: Callable[[Question], str]) -> None:
        self._answer = answer

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Reserve, spend and answer."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        usage = Usage(1000, 100)
        budget.spend(usage, question.model)
        return Verdict(outcome="answered", answer=self._answer(question), attempts=1, usage=usage)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class Mortal:
    """A producer whose process is killed at its n-th call: before the record reaches the broker, or before the acknowledgement arrives."""

    def __init__(self, producer: RecordProducer, dies_at: int | None = None, *, having_sent: bool = False) -> None:
        self._producer = producer
        self._left = dies_at
        self._having_sent = having_sent
        self.dead = asyncio.Event()
        self.sends = 0

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int | None = None) -> object:
        """Produce until the process is killed."""
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


class Committing:
    """Processes a partition, and commits offsets as soon as a chunk is done."""

    def __init__(self, process: Process, number: int, work: PartitionWork) -> None:
        self.work = work
        self._process = process
        self._number = number

    async def take(self, chunk: Chunk, on_done: Callable[[], None]) -> None:
        """Process a chunk, and record its completion."""
        is_done = False

        def noted() -> None:
            nonlocal is_done
            assert not is_done, "done twice"
            is_done = True
            on_done()
            self._process.note_done(self._number)

        await self.work.take(chunk, noted)

    async def end(self, grace: float) -> None:
        """End the wrapped partition."""
        await self.work.end(grace)


class Process:
    """A judging process, which receives chunks from the committed offset on, as a worker would."""

    def __init__(self, rig: Rig, judge: Judge | None, producer: Mortal, options: dict[str, Any]) -> None:
        stage, redactor = rig.stage, Redactor(rig.policy.redaction)
        self.states = StateTopic(
            rig.kafka, stage.name, producer, source=stage.source, state_type=JudgedState, redactor=redactor
        )
        self.calls = JudgeCalls()
        context = KafkaJudgingContext(
            stage=rig.stage,
            connection=rig.kafka,
            policy=rig.policy,
            judge=judge,
            calls=self.calls,
            redactor=redactor,
            now=rig.clock,
            producer=producer,
            states=self.states,
            **{"is_sure": lambda: True, "fail": rig.failures.append} | options,
        )
        self.works: dict[int, JudgedPartition] = {}
        """By partition, what works on it."""
        self.mortal = producer
        self.chunks_done: Counter[int] = Counter()
        """By partition, how many chunks are done."""

        def open_partition(number: int) -> Committing:
            self.works[number] = context.open_partition(number)
            return Committing(self, number, self.works[number])

        self._stage = KafkaStage(stage.source, open_partition, records_at_once=1, fail=rig.failures.append)
        self._agents: list[asyncio.Task[None]] = []
        self._rig = rig

    async def work(self, *partitions: int, size: int = 3) -> None:
        """Process partitions from the committed offset, in chunks of this many records."""
        self._stage.records_at_once = size
        self._stage.assign(partitions)
        for partition in partitions:
            records = [one for one in self._rig.records[partition] if one.offset >= self._rig.committed[partition]]
            self._stage.partitions[partition].fetch(records)
            self._agents.append(asyncio.create_task(self._take_all(partition)))

    async def _take_all(self, number: int) -> None:
        for chunk in self._stage.partitions[number].deliver():
            await self._stage.run(chunk)

    async def take_again(self, partition: int) -> None:
        """Deliver the partition's records again."""
        await self.works[partition].take(Chunk(self._rig.stage.source, partition, self._rig.records[partition]), lambda: None)

    def note_done(self, number: int) -> None:
        """Commit the completed offsets."""
        self.chunks_done[number] += 1
        offset = self._stage.partitions[number].committable()
        self._rig.committed[number] = max(self._rig.committed[number], offset or 0)

    def has_taken_all(self) -> bool:
        """Return whether no chunk waits to be processed."""
        return all(agent.done() for agent in self._agents)

    async def wait_until_drained(self) -> None:
        """Return when every chunk is processed and done."""
        await came(lambda: bool(self._rig.failures) or (self.has_taken_all() and self._rig.is_done()), "every task to be done")
        assert self._rig.failures == []

    async def revoke(self, partition: int, grace: float = 10.0) -> None:
        """Revoke a partition."""
        await self._stage.partitions[partition].end(grace)

    async def kill(self) -> None:
        """End as after kill -9: nothing is finished, and nothing more is produced."""
        self.mortal.dead.set()
        running: list[asyncio.Task[Any]] = [
            *self._agents,
            *(one.running_task for one in self._stage.partitions.values() if one.running_task is not None),
        ]
        for work in self.works.values():
            running += [*work.tasks._runners.values(), *work._guard._running_calls]
        for task in running:
            task.cancel()
        self._rig.failures += [
            one for one in await asyncio.gather(*running, return_exceptions=True) if isinstance(one, Exception)
        ]
        self.states.close()

    async def stop(self, grace: float = 10.0) -> None:
        """Stop gracefully."""
        await self._stage.stop(grace)
        await asyncio.gather(*self._agents)
        self.states.close()


class Rig:
    """Topics with tasks, their committed offsets, and the processes that judge them."""

    def __init__(
        self,
        stage: JudgedStage[Any],
        kafka: KafkaConnection,
        policy: Policy,
        producer: RecordProducer,
        partitions: int = PARTITIONS,
    ) -> None:
        self.stage = stage
        self.kafka = kafka
        self.policy = policy
        self.producer = producer
        self.partitions = partitions
        self.clock = TickingClock(NOW)
        self.records: dict[int, list[Any]] = {}
        self.committed: dict[int, int] = defaultdict(int)
        self.failures: list[BaseException] = []

    async def publish(self, tasks: Sequence[Record]) -> None:
        """Publish tasks to their topic."""
        await self.produce(self.stage.source, [(key_of(one), encode(one)) for one in tasks])

    async def produce(self, topic: str, messages: Sequence[Message]) -> None:
        """Produce messages to a topic."""
        await self.producer.send(topic, messages)
        self.records = await self.read(self.stage.source)

    def process(self, judge: Judge | None, producer: Mortal | None = None, **options: Any) -> Process:
        """Start a new process."""
        return Process(self, judge, producer or Mortal(self.producer), options)

    def is_done(self) -> bool:
        """Return whether every task is committed."""
        return all(self.committed[number] > records[-1].offset for number, records in self.records.items())

    async def read(self, topic: str) -> dict[int, list[Any]]:
        """Return every record of a topic by partition, without empty partitions."""
        consumer = AIOKafkaConsumer(**self.kafka.for_aiokafka(), enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        try:
            name = self.kafka.topic(topic)
            places = [TopicPartition(name, number) for number in range(self.partitions)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            by_partition: dict[int, list[Any]] = defaultdict(list)
            for partition in places:
                while await consumer.position(partition) < ends[partition]:
                    by_partition[partition.partition] += (await consumer.getmany(partition, timeout_ms=500)).get(partition, [])
            return {number: records for number, records in by_partition.items() if records}
        finally:
            await consumer.stop()

    async def decoded(self, topic: str) -> list[Record]:
        """Return the decoded records of a topic."""
        return [decode(one.value) for records in (await self.read(topic)).values() for one in records]

    async def calls(self) -> tuple[list[Judgement], list[Reservation]]:
        """Return judgements and reservations, the first record of each id."""
        judgements: dict[str, Judgement] = {}
        reservations: dict[str, Reservation] = {}
        for record in await self.decoded("judgements"):
            if isinstance(record, Judgement):
                judgements.setdefault(record.judgement_id, record)
            elif isinstance(record, Reservation):
                reservations.setdefault(record.reservation_id, record)
        return list(judgements.values()), list(reservations.values())

    async def letters(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return [one for one in await self.decoded("dead-letters") if isinstance(one, DeadLetter)]

    def check_calls(self, judgements: Sequence[Judgement], reservations: Sequence[Reservation]) -> None:
        """Check the calls of a finished run: each is settled once, and no answered question is asked again."""
        assert self.failures == []
        settled = [name for one in judgements for name in one.reservation_ids]
        assert sorted(one.reservation_id for one in reservations) == sorted(settled), "not settled once each"
        answer_counts = Counter(one.fingerprint for one in judgements if one.outcome == "answered")
        assert {name for name, count in answer_counts.items() if count > 1} == set(), "answered and asked again"


TOPICS = topics_of(SCORING)
TASKS = SCORING.source


def answer(question: Question) -> str:
    """Return the answer of the simulated judge, without a server."""
    return canonical_json(simulated_answer(question.schema, {one.name: one.literal for one in question.materials}))


def tasks_of(policy: Policy, exchanges: Sequence[Exchange]) -> list[ScoringTask]:
    """Return the tasks that intake creates for exchanges."""
    outcome = IntakeStep(policy)(build.batch("exchanges", exchanges), {})
    return [record for _, record in outcome.records if isinstance(record, ScoringTask)]


def dialogue(session: str, turns: int) -> list[Exchange]:
    """Return exchanges of a session whose text identifies them, so that a judge's questions can be traced."""
    return [
        build.exchange(session, turn, f"It is done, number {session}:{turn}, today.", turn_number=turn)
        for turn in range(1, turns + 1)
    ]


def subject_of(question: Question) -> str:
    """Return the exchange that a question is about."""
    match = re.search(
        r"number (\w+:\d+), today", " ".join(text.literal for text in question.materials if text.name == "agent_response")
    )
    assert match is not None
    return match[1]


class WatchedJudge:
    """Records the exchanges that it is asked about, in order, and delegates to another judge; it never answers about some sessions."""

    def __init__(self, inner: Judge, *silent_about: str) -> None:
        self.inner = inner
        self.silent_about = silent_about
        self.subjects: list[str] = []
        self.hanging: list[str] = []
        """The exchanges about which calls hang: money is set aside for each."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Record the question and delegate it."""
        subject = subject_of(question)
        self.subjects.append(subject)
        if subject.split(":")[0] in self.silent_about:
            assert await budget.reserve()
            self.hanging.append(subject)
            await asyncio.Event().wait()
        return await self.inner.ask(question, budget)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class ScoringRig(Rig):
    """A rig of the scoring stage."""

    async def scores(self) -> list[Score]:
        """Return the scores, each revision once; repetitions must be equal."""
        scores: dict[tuple[str, str, int], Score] = {}
        for score in await self.decoded("scores"):
            assert isinstance(score, Score)
            assert score == scores.setdefault((score.connection, score.exchange_id, score.revision), score)
        return list(scores.values())

    async def check(self, exchanges: Sequence[Exchange]) -> None:
        """Check the invariants of a finished run."""
        scores, (judgements, reservations) = await self.scores(), await self.calls()
        assert sorted(one.exchange_id for one in exchanges) == sorted(one.exchange_id for one in scores)
        self.check_calls(judgements, reservations)
        spent: Counter[str] = Counter()
        for judgement in judgements:
            spent[f"{judgement.connection}/{judgement.session_id}"] += nano_of(judgement.cost_usd or 0)
        cap = self.policy.for_project("ops").cap
        assert cap is None or all(cost <= cap for cost in spent.values()), "beyond the cap"
        assert sum(spent.values()) == sum(nano_of(one.cost_usd) for one in scores)
        assert {key: cost for key, cost in spent.items() if cost} == await self._spent_in_states()
        assert self._embedded(exchanges, judgements) == sorted(map(encode, scores))

    async def _spent_in_states(self) -> dict[str, int]:
        states = StateTopic(self.kafka, "scoring", self.producer)
        spent: dict[str, int] = {}
        for partition, records in self.records.items():
            await states.load(partition)
            keys = {record.key.decode() for record in records}
            spent |= {key: STATE.decode(one.state).spent for key, one in states.get(partition, keys).items()}
        states.close()
        return {key: cost for key, cost in spent.items() if cost}

    def _embedded(self, exchanges: Sequence[Exchange], judgements: Sequence[Judgement]) -> list[bytes]:
        """Return the scores that the embedded runner makes of the same exchanges and judgements."""
        with Store(None) as store:
            with store.transaction() as transaction:
                transaction.append("exchanges", [encode(one) for one in exchanges])
                transaction.append("judgements", [encode(one) for one in judgements])
            runner_over(store, self.policy).run()
            return encoded(store, "scores")


@asynccontextmanager
async def scoring_on(kafka: KafkaConnection, policy: Policy, partitions: int = PARTITIONS) -> AsyncIterator[ScoringRig]:
    """Return a rig over existing topics."""
    producer = RecordProducer(kafka)
    await producer.start()
    try:
        yield ScoringRig(SCORING, kafka, policy, producer, partitions)
    finally:
        await producer.stop()
